"""Tests of the README pages: the paths and commands that they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from services.__main__ import COMMANDS
from tests.deploy.rendered import COMPONENTS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "deploy/README.md", ROOT / "deploy/jobs/README.md"]
NAMES = ["README", "deploy", "jobs"]
MADE = (".creds", "keys.json", "ca.crt", "/team-a")
"""Endings of paths that the commands create."""


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_path_in_the_deploy_readme_exists(page: Path) -> None:
    paths = {
        path.rstrip("/.") for path in re.findall(r"(?<![\w/])deploy/[\w./-]+", page.read_text())
    }
    assert paths
    assert {
        path for path in paths if not (ROOT / path).exists() and not path.endswith(MADE)
    } == set()


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_weir_command_in_the_deploy_readme_exists(page: Path) -> None:
    typed = set(re.findall(r"^    weir ([a-z-]+)", page.read_text(), re.MULTILINE))
    assert typed
    assert typed <= set(COMMANDS)


def test_every_component_is_documented_with_its_commands() -> None:
    text = (ROOT / "deploy/README.md").read_text()
    for component in COMPONENTS:
        block = re.search(rf"\*\*{component}\*\*.*?\n\n((    [^\n]*\n)+)", text, re.DOTALL)
        assert block and len(block[1].splitlines()) == 3, component


def test_git_ignores_every_credential() -> None:
    ignored = (ROOT / "deploy/credentials/.gitignore").read_text().split()
    assert ignored == ["*", "!.gitignore", "!kustomization.yaml"]
