"""Training programs that wait before each batch, for `release.py`.

More workers are then faster, although the machine has few cores.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.flow.stage import BATCH, PACED, TASK
from tests.trainer.fleet import PROGRAMS

PLACES = "nodes:\n  - {name: node, count: 3, cpu: 2, memory_gib: 8}\n"
REAL_ENDING = (1, 1), (1, 1), 0
FULL = (1, 4)
"""The size that fits when one job has the cluster for itself."""
REAL_REQUEST: dict[str, Any] = {
    "epochs": 60,
    "batch": {"start": BATCH, "min": BATCH, "max": BATCH},
    "ps": {"start": 1, "min": 1, "max": 1},
    "workers": {"start": 1, "min": 1, "max": 4},
    "resources": {"chief": TASK, "ps": TASK, "worker": TASK},
    "consistency": "async",
    "grace_s": 5.0,
}
BATCH_S = 0.5
"""Time in s for which a worker waits before each batch."""
EPOCHS = 10, 15
"""Minimum and maximum number of epochs of a job that ends by itself.

One worker trains for 80 to 120 s. The other job starts within half a minute.
"""


class PacedPrograms:
    """One program for all jobs, so that the policy knows its speeds after the first one."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "counting.py"
        pace = folder / "pace"
        pace.write_text(str(BATCH_S))
        text = (PROGRAMS / "counting.py").read_text()
        assert PACED in text
        self.path.write_text(text.replace(PACED, repr(str(pace))))

    def program(self, job: str) -> Path:
        return self.path

    def begin(self, job: str, uid: int) -> None:
        return

    def length(self, chance: random.Random, succeeds: bool) -> dict[str, Any]:
        return {"epochs": chance.randint(*EPOCHS)} if succeeds else {}

    async def finish(self, job: str) -> None:
        return
