"""The input pipeline of real workers, with every form of data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).parents[1] / "programs" / "pipelines.py"
EXAMPLES, EPOCHS = 250, 2
CASES = [
    "range",
    "shuffled range",
    "numbers",
    "shuffled numbers",
    "passes",
    "generator",
    "table",
]


@pytest.fixture(scope="module")
def told() -> Any:
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, env=environ, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", CASES)
def test_every_example_is_applied_once_per_epoch(told: Any, case: str) -> None:
    assert told[case]["counts"] == [EPOCHS]
    assert told[case]["applied"] == EPOCHS * EXAMPLES
