"""Compile what importing these modules takes: python -S compile.py FOLDER MODULE...

A container's root is read-only, so without this every pod would compile TensorFlow's thousand
modules at its start. Not all of FOLDER: that would be four times as much to pull. Hashes are not
checked, for times change when files are copied.
"""

import importlib
import py_compile
import sys
from pathlib import Path

folder, *names = sys.argv[1:]
root = Path(folder).resolve()
sys.path[:0] = [str(root)]

for name in names:
    importlib.import_module(name)
files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
for file in sorted(files):
    if file.endswith(".py") and root in Path(file).parents:
        py_compile.compile(
            file, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
        )
