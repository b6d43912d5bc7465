"""Tests that the files and folders that docstrings, comments and documents name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.source import ROOT

GENERATED = (
    "deploy/credentials/",
    "deploy/overlays/production/team-a",
    "services/console/example_jobs",
)
"""Files that an operator creates (deploy/README.md), and the folder of example jobs in a wheel."""
FORMER = ("services/allocator/placing/",)
"""Folders of modules that exist only for policies of older versions; they name old paths."""
FOLDERS = ("services", "shared", "tests", "deploy")
NAMED_PATH = re.compile(r"(?<![\w./-])(?:services|shared|tests|deploy)/[\w./-]*\w")
NAMED_FILE = re.compile(r"`([a-z_]+\.py)`")


def _documents() -> list[Path]:
    found = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml")]
    for folder in FOLDERS:
        found += [
            path
            for suffix in ("*.py", "*.md", "*.yaml")
            for path in (ROOT / folder).rglob(suffix)
            if "fixtures" not in path.parts
        ]
    return found


DOCUMENTS = _documents()
NAMES = {path.name for path in DOCUMENTS}


@pytest.mark.parametrize("folder", (".", *FOLDERS))
def test_named_files_exist(folder: str) -> None:
    missing = []
    for path in DOCUMENTS:
        name = str(path.relative_to(ROOT))
        top = name.partition("/")[0] if "/" in name else "."
        if top != folder or name.startswith(FORMER):
            continue
        text = path.read_text()
        for named in NAMED_PATH.findall(text):
            if not (ROOT / named).exists() and not named.startswith(GENERATED):
                missing.append(f"{name}: {named}")
        for named in NAMED_FILE.findall(text):
            if named not in NAMES and path.suffix == ".py":
                missing.append(f"{name}: {named}")
    assert missing == []
