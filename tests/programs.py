"""Paths of the programs in constraints.txt that tests run: nats-server and kubectl."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def program_path(name: str) -> str:
    """Return the path of a program: the one installed beside this Python, else the one on the PATH.

    Raises `FileNotFoundError` if there is none: a test that needs it fails, and is not skipped.
    """
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"there is no {name}: install constraints.txt, as `make test` does")
    return found
