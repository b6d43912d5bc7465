"""Tests of the code's shape: docstrings, function names, the README's length, the top level."""

from __future__ import annotations

import ast
import re
import subprocess

import pytest

from tests.architecture.source import ROOT, Module, modules

ALLOWED = {
    "README.md",
    "CONTRIBUTING.md",
    "services",
    "shared",
    "deploy",
    "tests",
    "Makefile",
    "pyproject.toml",
    "LICENSE",
    "CHANGELOG.md",
}
README_LINES = 200
README_COLUMNS = 100
BARE_PARTICIPLES = 20
"""Fewer functions than this may be named by a bare participle.

`told`, for example, names neither an action nor a result.
"""
IRREGULAR_PARTICIPLE = re.compile(
    "told|said|heard|seen|kept|stood|held|given|asked|known|made|found|wanted|spoken|taken|gone|done"
    "|left|lost|meant|sought|rewritten|written|drawn|torn|shown"
)
NO_PARTICIPLES = {"feed", "need", "seed", "speed", "embed", "exceed", "proceed", "succeed", "shed"}


@pytest.mark.parametrize("module", modules("services", "shared", "tests", "deploy"), ids=str)
def test_every_module_has_a_docstring(module: Module) -> None:
    assert ast.get_docstring(module.tree), f"{module.path.relative_to(ROOT)} has no docstring"


def is_bare_participle(function: str) -> bool:
    word = function.strip("_")
    if "_" in word or word in NO_PARTICIPLES:
        return False
    return bool(IRREGULAR_PARTICIPLE.fullmatch(word)) or word.endswith("ed")


def test_functions_are_named_for_what_they_do_or_return() -> None:
    found = [
        f"{module.name}.{node.name}"
        for module in modules("services", "shared")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and is_bare_participle(node.name)
    ]
    assert len(found) < BARE_PARTICIPLES, found


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= README_LINES
    assert [line for line in lines if len(line) > README_COLUMNS] == []


def test_the_top_level_holds_what_the_plan_names_and_nothing_else() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    top = {line.split("/")[0] for line in listed.stdout.splitlines()}
    others = {
        n
        for n in top
        if not n.startswith(".") and not (n.startswith("constraints") and n.endswith(".txt"))
    }

    assert others - ALLOWED == set()
