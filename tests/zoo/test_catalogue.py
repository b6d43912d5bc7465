"""Tests that the catalogue and the programs of the zoo agree, and that each program trains in one
process. That needs TensorFlow for training.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, Module
from tests.zoo.catalogue import FOLDER, ZOO


def test_each_program_has_an_entry() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == set(ZOO)


@pytest.mark.parametrize("name", ZOO)
def test_a_program_has_a_switch_for_its_feature_and_imports_nothing_of_weir(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    parameters = {
        each.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for each in node.args.kwonlyargs
    }
    imported = Module(FOLDER / f"{name}.py", name).imports

    assert ("feature" in parameters) is not ZOO[name].shuffled
    assert ("folder" in parameters) is ZOO[name].reads_files
    assert not any(module.startswith(("services", "shared", "tests")) for module in imported)


@pytest.mark.long
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
