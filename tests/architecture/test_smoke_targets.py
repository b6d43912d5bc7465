"""Tests of Makefile targets: each benchmark has a smoke test, and `.ci/run` runs all checks."""

from __future__ import annotations

import re

from tests.architecture.source import ROOT
from tests.smoke.targets import SMOKE, measured_targets

MAKEFILE = (ROOT / "Makefile").read_text()


def test_exactly_the_benchmark_targets_have_a_smoke_test() -> None:
    assert measured_targets() == sorted(SMOKE)


def test_every_target_is_declared_phony() -> None:
    """Without .PHONY, make takes a folder with the name of a target for its result."""
    declared = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    named = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))

    assert declared and named == set(declared[1].split())


def test_ci_runs_lint_then_the_short_and_the_long_tests() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()

    assert [line for line in lines if line.startswith("make ")] == [
        "make lint",
        "make test",
        "make test-long",
    ]
