"""Tests that each program of the zoo trains in one process. They need TensorFlow for training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.zoo.catalogue import ZOO

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", ZOO)
def test_a_program_trains_in_one_process(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.zoo.reference", name, str(tmp_path), "1"]
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)

    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(ended.stdout)
    before, after = found["untrained"], found["metric"]
    if ZOO[name].metric == "auc":  # at least half of the way from guessing, 0.5, to 1
        assert after - max(before, 0.5) > 0.25
    else:
        assert abs(after - before) > 0.5 * max(after, before)
