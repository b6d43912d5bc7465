"""Tests of FlowCon on real parts: cores move from a job with a flat loss to one that learns.

Both jobs train on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.cli.trial import Trial, trial
from services.local.stack import Stack
from shared.messages import (
    AllocationDecided,
    GenerationAbandoned,
    ProgressReported,
    TaskExited,
    TaskUpdated,
    TrainingResumed,
)

pytestmark = pytest.mark.long

PROGRAMS = Path(__file__).parents[1] / "bench" / "programs"
CLUSTER = "nodes:\n  - {name: node, cpu: 1, memory_gib: 12}\n"
PATIENCE_S = 400.0
ONE, BATCH = {"start": 1, "min": 1, "max": 1}, {"start": 256, "min": 256, "max": 256}
SIZES = {
    role: {"cpu": cpu, "memory_gib": 1.6}
    for role, cpu in (("chief", 0.2), ("ps", 0.2), ("worker", 0.5))
}
JOBS = ("cancer", "late")
"""The loss of the first is flat after some seconds; the second keeps learning."""


def request(job: str) -> dict[str, Any]:
    sized = {"resources": SIZES, "ps": ONE, "workers": ONE, "batch": BATCH}
    return {"job": job, "epochs": 100_000, "policy": "flowcon", "cpu_limits": "soft", **sized}


def cores(watched: Trial) -> dict[str, float]:
    """Return the cores of each job according to its last decision."""
    return {
        m.job: sum(task.resources.cpu for task in m.tasks) for m in watched.of(AllocationDecided)
    }


def steps(watched: Trial) -> dict[str, int]:
    return {m.job: m.step for m in watched.of(ProgressReported)}


@pytest.mark.filterwarnings("default")
async def test_flowcon_moves_cores_to_the_learning_job_without_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER)
    async with Stack(tmp_path / "weir", file) as stack, trial(stack) as watched:
        for job in JOBS:
            await watched.submit(request(job), PROGRAMS / f"{job}.py")

        def moved() -> bool:
            has = cores(watched)
            return has.get("late", 0.0) > 1.5 * has.get("cancer", 1.0)

        await watched.until(moved, PATIENCE_S, "more cores for the one that learns")
        [decided] = [m for m in watched.of(AllocationDecided) if m.job == "late"][-1:]
        found = next(m for m in decided.tasks if m.role == "worker").resources
        await watched.until(
            lambda: any(m.resources == found for m in watched.of(TaskUpdated)),
            PATIENCE_S,
            "the worker's new cores",
        )
        before = steps(watched)
        await watched.until(
            lambda: all(steps(watched)[job] > before[job] for job in JOBS),
            PATIENCE_S,
            "further steps of both",
        )
    assert {m.generation for m in watched.of(AllocationDecided)} == {1} and len(
        watched.of(TrainingResumed)
    ) == 2
    assert watched.of(TaskExited) == watched.of(GenerationAbandoned) == []
    assert sum(cores(watched).values()) <= 1.0
