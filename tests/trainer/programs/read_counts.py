"""`python read_counts.py CHECKPOINT`: print how often each example was applied, as JSON.

It also prints how many examples Weir has counted, and the first element of each row of a table.
Variables that are trained have no names of their own: such a count has the shape of all examples,
and a table has many rows.
"""

import json
import sys

from services.trainer.worker import child

child.import_server_library()  # a tenth of TensorFlow is enough to read
from tensorflow.python.training import py_checkpoint_reader  # noqa: E402 -- behind the line above

MANY_ROWS = 1000
reader = py_checkpoint_reader.NewCheckpointReader(sys.argv[1])
names = reader.get_variable_to_shape_map()
named = [name for name in names if "counts" in name.split("/")]
trained = [name for name, shape in names.items() if shape == [250]]
counts = (named or trained)[0]
tables = [name for name, shape in names.items() if len(shape) == 2 and shape[0] >= MANY_ROWS]
applied = next(name for name in names if name.startswith("meter/applied"))
print(
    json.dumps(
        {
            "counts": reader.get_tensor(counts).tolist(),
            "applied": int(reader.get_tensor(applied)),
            "rows": [reader.get_tensor(name)[:, 0].tolist() for name in tables],
        }
    )
)
