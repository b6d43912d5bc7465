"""Tests that every benchmark, chaos, soak, fuzz and zoo run in their shortest form.

They run the targets of the Makefile. These are the only tests that need a whole training run for
one assertion. `make test-long` runs them, `make test` does not.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.smoke.targets import SMOKE

pytestmark = pytest.mark.long
WITHIN_S = 900.0
CANNOT_RUN = ("CPU limits are not enforced on this machine", "no Chromium here")
PASSED = re.compile(r"^\d+ passed", re.MULTILINE)


def run_target(target: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `make TARGET` with the Python of this test, without installing anything."""
    make = ("make", "--silent", "--old-file", ".venv/.ready", "--old-file", "browser", target)
    here = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MAKE", "MFLAGS", "PYTEST"))
    }
    return subprocess.run(
        [*make, f"BIN={Path(sys.executable).parent}"],
        cwd=ROOT,
        env={**here, **environ},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


@pytest.mark.parametrize("target", SMOKE)
def test_the_shortest_form_runs_and_reports(target: str, tmp_path: Path) -> None:
    smoke = SMOKE[target]
    ended = run_target(target, **smoke.environ, BENCH_PICTURE=str(tmp_path / "picture.png"))

    if ended.returncode != 0 and (
        reason := next((text for text in CANNOT_RUN if text in ended.stderr), "")
    ):
        pytest.skip(reason)
    assert ended.returncode == 0, f"{ended.stdout[-2000:]}\n{ended.stderr[-5000:]}"
    if smoke.keys:
        assert [
            key for key in smoke.keys if key not in json.loads(ended.stdout.splitlines()[-1])
        ] == []
    else:
        assert PASSED.search(ended.stdout)
