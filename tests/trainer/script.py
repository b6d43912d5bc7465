"""Run a script of `programs/` in a process of its own, because it uses TensorFlow's runtime anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
LONGEST_S = 900.0
"""The longest script takes 213 s on two cores; other machines take up to twice as long."""
SAME_BITS = {"TF_ENABLE_ONEDNN_OPTS": "0"}
"""oneDNN may add in another order in each process."""


def run_script(name: str, *words: str, environ: dict[str, str] | None = None) -> Any:
    """Return what the script prints last, which is JSON. `environ`: more environment variables."""
    whole = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        **(environ or {}),
    }
    command = [sys.executable, str(PROGRAMS / name), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, env=whole, timeout=LONGEST_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
