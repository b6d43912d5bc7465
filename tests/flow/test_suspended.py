"""Tests on real parts of jobs that are suspended or preempted, and continue later.

The job saves, and no example is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from shared.messages import (
    AllocationDecided,
    CancelRequested,
    CheckpointSaved,
    JobFinished,
    JobMessage,
    ResumeRequested,
    SuspendRequested,
    TaskExited,
    TrainingResumed,
)
from tests.flow.stage import EPOCHS, JOB, LOOK_S, PATIENCE_S, Scene, left_behind, stage

pytestmark = pytest.mark.long

ONE_NODE = "nodes:\n  - {name: node-1, cpu: 3, memory_gib: 12}\n"
URGENT = "urgent"
ELASTIC = {
    "ps": {"start": 1, "min": 1, "max": 1},
    "workers": {"start": 1, "min": 1, "max": 2},
    "policy": "static",
}
NEVER_S = 600.0
"""Interval of checkpoints in s; none is due in the time of the test."""
M = TypeVar("M", bound=JobMessage)


async def heard(
    scene: Scene, kind: type[M], job: str, fits: Callable[[M], bool] = lambda _: True
) -> M:
    """Return the first message about a job that fits; the other job may have finished already."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = next((m for m in scene.of(kind) if m.job == job and fits(m)), None)
            if found is not None:
                return found
            await asyncio.sleep(LOOK_S)


async def test_a_suspended_job_saves_and_continues_when_it_is_resumed(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, places=ONE_NODE) as scene:
        await scene.submit(**{**ELASTIC, "grace_s": 40.0, "checkpoint": {"every_s": NEVER_S}})
        await scene.hear(TrainingResumed)
        before = await scene.goes_on()
        await scene.watched.bus.publish(SuspendRequested(job=JOB, request_id="1"))
        given = await heard(scene, AllocationDecided, JOB, lambda m: m.generation == 2)
        assert given.tasks == () and "suspended by its user" in given.reason
        saved = await heard(scene, CheckpointSaved, JOB, lambda m: m.final)
        assert saved.generation == 1 and saved.samples >= before.samples
        await scene.watched.bus.publish(ResumeRequested(job=JOB, request_id="2"))
        again = await heard(scene, TrainingResumed, JOB, lambda m: m.generation == 3)
        assert again.samples >= saved.samples and again.previous is None
        scene.pace(0)
        over = await heard(scene, JobFinished, JOB)
        counts = await scene.counts(over)
    assert (over.outcome, set(counts)) == ("succeeded", {EPOCHS})
    assert left_behind(tmp_path) == []


async def test_a_preempted_job_saves_waits_and_continues_from_its_checkpoint(
    tmp_path: Path,
) -> None:
    asked = {**ELASTIC, "grace_s": 40.0, "checkpoint": {"every_s": NEVER_S}}
    async with stage(tmp_path, places=ONE_NODE) as scene:
        await scene.submit(**asked)
        await scene.hear(TrainingResumed)
        before = await scene.goes_on()
        await scene.submit(**asked, job=URGENT, priority=10)
        given = await heard(scene, AllocationDecided, JOB, lambda m: m.generation == 2)
        assert (
            given.tasks == ()
            and "preempted by default.urgent, which has priority 10" in given.reason
        )
        saved = await heard(scene, CheckpointSaved, JOB, lambda m: m.final)
        assert saved.generation == 1 and saved.samples >= before.samples
        await heard(scene, TrainingResumed, URGENT)
        assert [m for m in scene.of(TrainingResumed) if m.job == JOB][-1].generation == 1
        await scene.watched.bus.publish(CancelRequested(job=URGENT, namespace="default"))
        await heard(scene, JobFinished, URGENT)
        again = await heard(scene, TrainingResumed, JOB, lambda m: m.generation == 3)
        assert again.samples >= saved.samples and again.previous is None
        scene.pace(0)
        over = await heard(scene, JobFinished, JOB)
        counts = await scene.counts(over)
        lost = [m.pod for m in scene.of(TaskExited) if m.job == JOB]
    assert (over.outcome, set(counts)) == ("succeeded", {EPOCHS})
    assert lost == [], "what was sent away is no loss"
    assert left_behind(tmp_path) == []
