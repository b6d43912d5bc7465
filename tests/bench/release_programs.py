"""Training programs that wait before each batch, for `release.py`: more workers are faster, though cores are few."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.flow.stage import BATCH, PACED, TASK
from tests.trainer.fleet import PROGRAMS

PLACES = "nodes:\n  - {name: node, count: 3, cpu: 2, memory_gib: 8}\n"
REAL_ENDING = (1, 1), (1, 1), 0
FULL = (1, 4)
"""The size for which there is room when one job has the cluster for itself."""
REAL_REQUEST: dict[str, Any] = {
    "epochs": 60,
    "batch": {"start": BATCH, "min": BATCH, "max": BATCH},
    "ps": {"start": 1, "min": 1, "max": 1},
    "workers": {"start": 1, "min": 1, "max": 4},
    "resources": {"chief": TASK, "ps": TASK, "worker": TASK},
    "grace_s": 5.0,
}
SLOW_S, QUICK_S = 0.5, 0.0


class PacedPrograms:
    """One program for each job, with its own pace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def program(self, job: str) -> Path:
        text = (PROGRAMS / "counting.py").read_text()
        assert PACED in text
        path = self.folder / f"{job}.py"
        path.write_text(text.replace(PACED, repr(str(self._pace(job)))))
        self._set_pace(job, SLOW_S)
        return path

    def begin(self, job: str, uid: int) -> None:
        return

    async def finish(self, job: str) -> None:
        self._set_pace(job, QUICK_S)

    def _pace(self, job: str) -> Path:
        return self.folder / f"{job}.pace"

    def _set_pace(self, job: str, seconds: float) -> None:
        written = self._pace(job).with_suffix(".new")
        written.write_text(str(seconds))
        written.rename(self._pace(job))
