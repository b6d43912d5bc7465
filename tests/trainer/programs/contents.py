"""The values of a built model's variables, as hashes."""

import hashlib

import numpy as np

from services.trainer.worker.sharded_table import ps_variables


def hashes(built):
    """Return the hash of each variable of model and optimizer, of a table that of all rows."""
    variables = [*built.model.variables, *built.optimizer.variables]
    found = {}
    for number, variable in enumerate(variables):
        pieces = [np.atleast_1d(each.numpy()) for each in ps_variables(variable)]
        digest = hashlib.sha256(np.concatenate(pieces).tobytes()).hexdigest()
        found[f"{number}/{variable.path}"] = digest
    return found
