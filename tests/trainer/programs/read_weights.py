"""`python read_weights.py CHECKPOINT`: print a digest of every bit of the model and the optimizer.

Two checkpoints with the same digest have the same variables with the same bytes. The time of the
last update and the like do not count.
"""

import hashlib
import json
import re
import sys

from services.trainer.worker import child

child.import_server_library()  # a tenth of TensorFlow is enough to read
from tensorflow.python.training import py_checkpoint_reader  # noqa: E402 -- behind the line above

VARIABLE = re.compile(r"(model|optimizer|states)/.*VARIABLE_VALUE$")

reader = py_checkpoint_reader.NewCheckpointReader(sys.argv[1])
names = sorted(name for name in reader.get_variable_to_shape_map() if VARIABLE.match(name))
digest = hashlib.sha256()
for name in names:
    value = reader.get_tensor(name)
    digest.update(f"{name} {value.dtype} {value.shape};".encode())
    digest.update(value.tobytes())
print(json.dumps({"digest": digest.hexdigest(), "variables": len(names)}))
