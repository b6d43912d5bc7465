"""Begin a job with the last checkpoint of a finished one (`checkpoint.continue_from`). Edge.

Model, optimizer and the ledger of examples come from the earlier job. Its epochs count, so the new
job trains only those that it asks for in addition.
"""

from __future__ import annotations

import msgspec
import tensorflow as tf

from services.trainer import cause, disk, files, shards
from services.trainer.checkpoint import Checkpoint
from services.trainer.shards import Ledger
from shared.checkpoints import restore_candidates
from shared.text import format_count

FIELD = "checkpoint.continue_from"


def restore_earlier(checkpoint: Checkpoint, folder: str, ledger: Ledger) -> Ledger:
    """Restore the newest complete checkpoint in `folder`, and return its ledger with the epochs of
    `ledger`.

    Those that the earlier job's ledger has named come first.

    Fails the job, with the reason, if there is none or if it does not fit this program.
    """
    why = "it has no complete checkpoint"
    marked, found = files.committed_in(folder), files.checkpoints_in(folder)
    for path in (*restore_candidates((), marked), *(path for path in found if path not in marked)):
        if wrong := files.wrong(path, marked.get(path, "")):
            why = f"{path} cannot be restored: {wrong}"
            continue
        try:
            earlier = checkpoint.read(path)
        except (tf.errors.OpError, msgspec.DecodeError) as error:
            why = f"{path} cannot be restored: {disk.said(str(error))}"
            continue
        return _fit_ledger(earlier, folder, ledger)
    raise cause.plainly(f"{FIELD}: {folder}: {why}")


def _fit_ledger(earlier: Ledger, folder: str, ledger: Ledger) -> Ledger:
    if earlier.examples != ledger.examples:
        raise cause.plainly(
            f"{FIELD}: {folder} was trained on {format_count(earlier.examples, 'example')} an epoch, and this program has "
            f"{ledger.examples:,}"
        )
    try:
        return shards.extend(earlier, ledger.epochs)
    except ValueError as error:
        raise cause.plainly(f"{FIELD}: {folder}: {error}") from None
