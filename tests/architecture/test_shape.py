"""How the house looks: docstrings, short functions, a small top level."""

from __future__ import annotations

import ast
import statistics
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
MEDIAN, NINETIETH, LONG, LONG_SHARE = 8, 25, 40, 0.02
README_LINES = 200
ALL = modules()
LENGTHS = {name: lines for module in ALL for name, lines in module.functions}


@pytest.mark.parametrize("module", modules("services", "shared", "tests", "deploy"), ids=str)
def test_every_module_says_what_it_is(module: Module) -> None:
    assert ast.get_docstring(module.tree), f"{module.path.relative_to(ROOT)} has no docstring"


def test_a_typical_function_is_a_few_lines() -> None:
    assert statistics.median(LENGTHS.values()) <= MEDIAN


def test_nine_of_ten_functions_fit_in_a_glance() -> None:
    assert statistics.quantiles(LENGTHS.values(), n=10)[-1] <= NINETIETH


def test_hardly_any_function_is_long() -> None:
    long = {name: lines for name, lines in LENGTHS.items() if lines > LONG}

    assert len(long) <= LONG_SHARE * len(LENGTHS), long


def test_the_readme_is_read_in_one_go() -> None:
    readme = ROOT / "README.md"
    if readme.exists():
        assert len(readme.read_text().splitlines()) <= README_LINES


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
