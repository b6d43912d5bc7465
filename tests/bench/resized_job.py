"""A job on a stack of its own that is resized while it trains: for `zoo.py` and `consistency.py`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from services.cli.trial import Failed, Trial, trial
from services.local.stack import Stack
from shared.messages import (
    Bounds,
    ChangeRequested,
    ClusterSpecPublished,
    JobFinished,
    ProgressReported,
    TaskReady,
    TrainingResumed,
)
from shared.runtime import process
from tests.flow.kills import family

CLUSTER = "nodes:\n  - {name: node, count: 1, cpu: 8, memory_gib: 24}\n"
SETTINGS = {"WEIR_ALLOCATOR_WINDOW_S": "0.3", "WEIR_ALLOCATOR_COOLDOWN_S": "0.5"}
PATIENCE_S = 900.0
STOPPED_S, GOING_S = 0.5, 0.02
"""Times in s for which workers are stopped and run, in turn, while a change is prepared.

Without these stops, programs this small would end before four changes of their job.
"""


@asynccontextmanager
async def own_stack() -> AsyncIterator[Trial]:
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as place:
        cluster = Path(place) / "cluster.yaml"
        cluster.write_text(CLUSTER)
        async with Stack(Path(place) / "weir", cluster, SETTINGS) as stack, trial(stack) as watched:
            yield watched


def training_request(
    job: str,
    epochs: int,
    batch: int,
    consistency: str,
    workers: int = 1,
    chief_gib: float = 2.0,
    worker_gib: float = 2.0,
) -> dict[str, Any]:
    """Return a request whose size changes only on a `ChangeRequested`."""

    def fixed_span(count: int) -> dict[str, int]:
        return {"start": count, "min": count, "max": count}

    return {
        "job": job,
        "epochs": epochs,
        "batch": fixed_span(batch),
        "ps": fixed_span(1),
        "workers": fixed_span(workers),
        "resources": {
            "chief": {"cpu": 1.0, "memory_gib": chief_gib},
            "ps": {"cpu": 0.5, "memory_gib": 2.0},
            "worker": {"cpu": 1.0, "memory_gib": worker_gib},
        },
        "policy": "static",
        "consistency": consistency,
    }


async def resize_or_end(watched: Trial, job: str, sizes: Sequence[int]) -> None:
    """Give the job these numbers of workers, one after the other. If it ends before the last
    change, its sizes show it.
    """
    try:
        await _resize(watched, job, sizes)
    except Failed:
        if not watched.of(JobFinished):
            raise


async def _resize(watched: Trial, job: str, sizes: Sequence[int]) -> None:
    """Change the number of workers several times with `ChangeRequested`.

    Each change comes at its share of the training, or after the last change, whichever is later.
    """
    for number, workers in enumerate(sizes):
        share = (number + 0.5) / (len(sizes) + 1)
        await watched.until(partial(_has_trained, watched, share), PATIENCE_S, "its share")
        change = ChangeRequested(
            job=job, workers=Bounds(min=workers, max=workers), request_id=f"resize-{number}"
        )
        resumed = len(watched.of(TrainingResumed))
        async with _slow_workers(watched):
            await watched.bus.publish(change)
            await watched.until(
                partial(_has_resumed, watched, resumed), PATIENCE_S, f"{workers} workers"
            )


def _has_trained(watched: Trial, share: float) -> bool:
    reports = watched.of(ProgressReported)
    return bool(reports) and reports[-1].samples >= share * reports[-1].total_samples


def _has_resumed(watched: Trial, before: int) -> bool:
    return len(watched.of(TrainingResumed)) > before


@asynccontextmanager
async def _slow_workers(watched: Trial) -> AsyncIterator[None]:
    """Stop the workers of the running generation most of the time, inside the context."""
    pids = _running_workers(watched)
    braking = asyncio.create_task(_brake(pids))
    try:
        yield
    finally:
        await process.cancel_tasks(braking)
        _send(pids, signal.SIGCONT)


async def _brake(pids: Sequence[int]) -> None:
    while True:
        _send(pids, signal.SIGSTOP)
        await asyncio.sleep(STOPPED_S)
        _send(pids, signal.SIGCONT)
        await asyncio.sleep(GOING_S)


def _running_workers(watched: Trial) -> list[int]:
    """Return the processes that train in the workers of the running generation."""
    generation = watched.of(TrainingResumed)[-1].generation
    spec = next(m for m in watched.of(ClusterSpecPublished) if m.generation == generation)
    pods = {task.pod for task in spec.tasks if task.role == "worker"}
    uids = {m.pod_uid for m in watched.of(TaskReady) if m.pod in pods}
    running = [family(uid).running() for uid in uids]
    return [pid for pid in running if pid is not None]


def _send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def job_sizes(watched: Trial) -> tuple[int, ...]:
    """Return the number of workers of each generation that trained."""
    specs = {m.generation: m for m in watched.of(ClusterSpecPublished)}
    resumed = watched.of(TrainingResumed)
    return tuple([len(specs[m.generation].addresses("worker")) for m in resumed])
