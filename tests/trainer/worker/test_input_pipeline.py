"""Tests of the input pipeline of real workers with every form of data."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).parents[1] / "programs" / "pipelines.py"
EXAMPLES, EPOCHS = 250, 2
CASES = (
    "shuffled range",
    "shuffled numbers",
    "passes",
    "calls that fail for a moment",
    "generator",
    "table",
    "compressed tfrecord",
    "python generator",
    "padded of ranges",
)
MORE_CASES = (
    "range",
    "numbers",
    "text",
    "csv",
    "tfrecord",
    "numpy",
    "interleave, cache, map",
    "another file system",
    "files in order",
    "passes of files",
    "padded of files",
    "padded of numbers",
    "ragged of files",
    "ragged of numbers",
    "ragged of ranges",
    "sparse of files",
    "sparse of numbers",
    "sparse of ranges",
)
if shutil.which("g++"):  # it is a plugin of TensorFlow, which the test compiles
    MORE_CASES += ("a registered file system",)


def run_cases(*cases: str) -> Any:
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, str(SCRIPT), *cases]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def told() -> Any:
    return run_cases(*CASES)


@pytest.mark.parametrize("case", CASES)
def test_every_example_is_applied_once_per_epoch(told: Any, case: str) -> None:
    assert told[case]["counts"] == [EPOCHS]
    assert told[case]["applied"] == EPOCHS * EXAMPLES


@pytest.mark.long
def test_every_example_is_applied_once_per_epoch_with_every_other_form_of_data() -> None:
    told = run_cases(*MORE_CASES)
    assert set(told) == set(MORE_CASES)
    for case, found in told.items():
        assert (found["counts"], found["applied"]) == ([EPOCHS], EPOCHS * EXAMPLES), case
