"""The trainer lives with a root that it can only read: a whole story of a job, with one folder to
write to.

The machine must let us make a mount namespace; elsewhere this is left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source import ROOT

pytestmark = pytest.mark.long

FILE = "tests/trainer/test_training.py"
STORY = f"{FILE}::test_every_example_counts_once_an_epoch_however_often_the_job_grows_and_shrinks"
READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,bind,ro / && shift && ! touch /root-is-writable && exec "$@"'
WHOLE_STORY_S = 600


def confined(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run it where only `folder` can be written to; HOME and TMPDIR are there."""
    environment = {
        **os.environ,
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    words = [
        "unshare",
        "--mount",
        "--map-root-user",
        "sh",
        "-c",
        READ_ONLY,
        "sh",
        str(folder),
        *command,
    ]
    return subprocess.run(
        words,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WHOLE_STORY_S,
        check=False,
    )


def test_a_job_trains_with_a_root_that_can_only_be_read(tmp_path: Path) -> None:
    if confined(tmp_path, "true").returncode != 0:
        pytest.skip("this machine makes no mount namespaces for us")

    told = confined(tmp_path, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", STORY)

    assert told.returncode == 0, told.stdout + told.stderr
