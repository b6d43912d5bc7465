"""Tests that the catalogue and the programs of the zoo agree."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.source import Module
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
