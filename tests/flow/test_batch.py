"""Tests of elastic-batch on real parts: a hand-over changes the batch and the learning rate.

The job names its policy and the rule of its learning rate.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from shared.messages import (
    AllocationDecided,
    ClusterSpecPublished,
    JobAccepted,
    ProgressReported,
    TrainingResumed,
)
from tests.flow.stage import BATCH, EPOCHS, EXAMPLES, PATIENCE_S, left_behind, stage

pytestmark = pytest.mark.long

LARGER, RATE = 4 * BATCH, 1e-3
ONE = {"start": 1, "min": 1, "max": 1}


@pytest.mark.filterwarnings("default")
async def test_elastic_batch_changes_the_batch_and_the_learning_rate_of_a_running_job(
    tmp_path: Path,
) -> None:
    asked = {
        "batch": {"start": BATCH, "min": BATCH, "max": LARGER},
        "ps": ONE,
        "workers": ONE,
        "policy": "elastic-batch",
        "learning_rate": "sqrt",
        "epochs": EPOCHS,
    }
    async with stage(tmp_path, {"WEIR_ALLOCATOR_POLICY": "static"}) as scene:
        await scene.submit(**asked)
        after = await scene.hear(TrainingResumed, lambda m: m.previous is not None)
        report = await scene.goes_on()
        scene.pace(0)
        over = await scene.watched.await_finish(PATIENCE_S)
        counts = await scene.counts(over)

    before = scene.of(TrainingResumed)[0]
    assert scene.of(JobAccepted)[0].request.policy == "elastic-batch"
    assert [m.batch for m in scene.of(ClusterSpecPublished)] == [BATCH, LARGER]
    assert {len(m.tasks) for m in scene.of(AllocationDecided) if m.tasks} == {3}, (
        "nothing but the batch has changed"
    )
    assert before.learning_rate == pytest.approx(RATE)
    assert after.learning_rate == pytest.approx(RATE * (LARGER / BATCH) ** 0.5)
    assert after.pause_s is not None
    assert report.generation == after.generation
    assert sizes(scene.of(ProgressReported), after.generation) <= LARGER
    assert sizes(scene.of(ProgressReported), after.generation) > BATCH
    assert over.counted == over.samples == EXAMPLES * EPOCHS
    assert counts == [EPOCHS] * EXAMPLES
    assert left_behind(tmp_path) == []


def sizes(reports: list[ProgressReported], generation: int) -> float:
    """Return the most examples per update between two reports of a generation."""
    mine = [m for m in reports if m.generation == generation]
    return max(
        (b.samples - a.samples) / (b.step - a.step) for a, b in pairwise(mine) if b.step > a.step
    )
