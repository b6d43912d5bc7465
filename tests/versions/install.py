"""Install a recorded version of Weir beside this one.

    python -m tests.versions.install VERSION FOLDER

A wheel is built from the commit of that version and unpacked into FOLDER. Its dependencies are
those of the environment that runs this. Run the version with `PYTHONPATH=FOLDER`, from a folder
outside of this project.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.architecture.source import ROOT
from tests.versions.records import COMMIT, FIXTURES


class NotThere(Exception):
    """The commit of a version is not in this clone."""


def commit_of(version: str) -> str:
    return (FIXTURES / version / COMMIT).read_text().strip()


def build_wheel(version: str, folder: Path) -> Path:
    """Build the wheel of a version into a folder, and return its path. Raises `NotThere`."""
    commit = commit_of(version)
    with tempfile.TemporaryDirectory() as name:
        source = Path(name)
        archive = source / "source.tar"
        packed = subprocess.run(
            ["git", "archive", "--output", str(archive), commit],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if packed.returncode != 0:
            raise NotThere(
                f"commit {commit} of version {version} is not in this clone:"
                f" {packed.stderr.strip()}"
            )
        with tarfile.open(archive) as tar:
            tar.extractall(source / "tree", filter="data")
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, "--wheel-dir", str(folder), str(source / "tree")], check=True)
    return next(folder.glob("weir-*.whl"))


def install_version(version: str, folder: Path) -> Path:
    """Unpack the wheel of a version into a folder, and return the folder. Raises `NotThere`."""
    with (
        tempfile.TemporaryDirectory() as name,
        zipfile.ZipFile(build_wheel(version, Path(name))) as wheel,
    ):
        wheel.extractall(folder)
    return folder


def main() -> None:
    print(install_version(sys.argv[1], Path(sys.argv[2])))


if __name__ == "__main__":
    main()
