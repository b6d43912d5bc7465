"""`python read_counts.py CHECKPOINT`: prints how often each example was applied, and the meter's number, as JSON."""

import json
import sys

import tensorflow as tf

reader = tf.train.load_checkpoint(sys.argv[1])
names = reader.get_variable_to_shape_map()
counts = next(name for name in names if "/counts/" in name or "counts" in name.split("/")[-3:])
applied = next(name for name in names if name.startswith("meter/applied"))
print(json.dumps({"counts": reader.get_tensor(counts).tolist(), "applied": int(reader.get_tensor(applied))}))
