"""Tests of the wheel of this version: its files, its metadata, and commands outside a checkout."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from shared.version import VERSION
from tests.architecture.source import ROOT

EXAMPLES = "services/console/example_jobs"
WITHOUT_EXTRAS = ("click", "msgspec", "nats", "nkeys", "psutil", "structlog")
SHOW_EXAMPLES = """
from services.cli import doctor, submit
from services.console import job_file
print(job_file.FIELDS_HINT, *submit.EXAMPLES, *doctor.EXAMPLES, sep="\\n")
print(job_file.examples_folder())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this checkout, without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    words = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
        "--directory",
        str(folder),
    ]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (built,) = folder.glob("weir-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the wheel, as an installer does with a wheel that has only Python files."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return Parser().parsestr(archive.read(f"weir-{VERSION}.dist-info/METADATA").decode())


def run_outside(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in an empty folder with the unpacked wheel before everything else."""
    environ = {**os.environ, "PYTHONPATH": str(installed), "COLUMNS": "80"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_wheel_has_every_file_of_the_code_and_the_example_jobs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    listed = subprocess.run(
        ["git", "ls-files", "services", "shared", "deploy/jobs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    wanted = {line.replace("deploy/jobs", EXAMPLES) for line in listed.stdout.splitlines()}

    assert wanted - held == set()
    assert {name.split("/")[0] for name in held} == {
        "services",
        "shared",
        f"weir-{VERSION}.dist-info",
    }
    assert f"weir-{VERSION}.dist-info/licenses/LICENSE" in held


def test_a_package_index_takes_its_metadata(wheel: Path) -> None:
    told = metadata(wheel)

    assert [word for word in told.get_all("Classifier", []) if word.startswith("Private")] == []
    for field in (
        "Summary",
        "Author",
        "License-Expression",
        "License-File",
        "Keywords",
        "Classifier",
    ):
        assert told[field], field
    assert told["Version"] == VERSION and told["Description-Content-Type"] == "text/markdown"
    assert {"all", "control-plane", "trainer", "local"} <= set(told.get_all("Provides-Extra", []))


def test_the_extra_all_has_the_requirements_of_one_machine(wheel: Path) -> None:
    asked = [line.partition(";") for line in metadata(wheel).get_all("Requires-Dist", [])]
    of = {
        extra: {name for name, _, marker in asked if f"'{extra}'" in marker}
        for extra in ("all", "control-plane", "trainer", "local")
    }

    assert of["all"] == of["control-plane"] | of["trainer"] | of["local"]


def test_commands_run_outside_a_checkout(installed: Path, tmp_path: Path) -> None:
    version = run_outside(installed, tmp_path, "-m", "services", "--version")
    demo = run_outside(installed, tmp_path, "-m", "services", "demo", "--help")

    assert (version.returncode, version.stdout) == (0, f"weir {VERSION}\n")
    assert demo.returncode == 0 and demo.stdout.startswith("usage: weir demo")


def test_examples_in_help_texts_are_in_the_package(installed: Path, tmp_path: Path) -> None:
    done = run_outside(installed, tmp_path, "-c", SHOW_EXAMPLES)

    assert done.returncode == 0, done.stderr
    *lines, folder = done.stdout.splitlines()
    named = {word for line in lines for word in line.split() if "digits" in word or "plays" in word}
    assert Path(folder) == installed / EXAMPLES
    assert named and {name for name in named if not Path(name).is_file()} == set()
    assert str(ROOT) not in done.stdout


def test_an_example_can_be_submitted_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    file = str(installed / EXAMPLES / "digits.yaml")

    done = run_outside(installed, tmp_path, "-m", "services", "submit", "--print", file)

    assert done.returncode == 0, done.stderr
    assert '"digits"' in done.stdout


def test_without_the_extras_a_command_says_what_to_install(installed: Path, tmp_path: Path) -> None:
    """Python sees the wheel and the packages that every installation has, and no others (-S)."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in WITHOUT_EXTRAS:
        (packages / name).symlink_to(Path(importlib.import_module(name).__file__ or "").parent)
    environ = {"PYTHONPATH": os.pathsep.join([str(installed), str(packages)])}

    done = subprocess.run(
        [sys.executable, "-S", "-m", "services", "jobs"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("weir jobs: ") and done.stderr.count("\n") == 1
    assert "is not installed; `pip install 'weir[all]'`" in done.stderr
