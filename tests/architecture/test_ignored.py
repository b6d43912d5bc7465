"""Tests of .gitignore: git ignores the files that the README's commands create, and no source."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.architecture.source import ROOT

LEFT = (
    "digits.html",
    "request.json",
    ".weir/connection.json",
    "deploy/credentials/operator.creds",
    "weir-demo.png",
)
SOURCE = (
    "services/console/page/static/index.html",
    "deploy/credentials/kustomization.yaml",
    "deploy/jobs/digits.py",
)


def ignored(path: str) -> bool:
    return (
        subprocess.run(["git", "check-ignore", "-q", "--no-index", path], cwd=ROOT).returncode == 0
    )


@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="this is no checkout"
)
def test_generated_files_are_ignored_by_git_and_sources_are_not() -> None:
    assert [path for path in LEFT if not ignored(path)] == []
    assert [path for path in SOURCE if ignored(path)] == []
