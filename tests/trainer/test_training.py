"""Real training in real processes: what was promised of hand-overs, held against a count kept on the ps itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.bus import Bus
from shared.messages import CheckpointSaved, JobFinished, ProgressReported, TrainingResumed
from tests.trainer.fleet import Fleet

EXAMPLES, BATCH = 250, 16
Start = Callable[..., Fleet]


@pytest.fixture
def start(bus: Bus, nats_url: str, tmp_path: Path) -> Start:
    def made(program: str = "counting.py", **fields: Any) -> Fleet:
        return Fleet(bus, nats_url, tmp_path / "fleet", program, **fields)

    return made


def counted_once(fleet: Fleet, finished: JobFinished) -> None:
    epochs = fleet.request.epochs
    assert finished.outcome == "succeeded", finished.cause
    assert finished.counted == finished.samples == EXAMPLES * epochs
    read = fleet.counts()
    assert read["counts"] == [epochs] * EXAMPLES
    assert read["applied"] == EXAMPLES * epochs


async def test_every_example_counts_once_an_epoch_however_often_the_job_grows_and_shrinks(start: Start) -> None:
    chance = random.Random(20)
    async with start() as fleet:
        sizes = [(1, 1), (2, 2), (1, 2), (2, 1)]
        for number, (ps, workers) in enumerate(sizes, start=1):
            fact = await fleet.generation(number, ps=ps, workers=workers, previous=number - 1 or None)
            assert (fact.pause_s is not None) == (number > 1)
            await fleet.steps(chance.randint(3, 12), generation=number)
        fleet.pace(0)
        counted_once(fleet, await fleet.finished())
        resumed = {m.generation: m for m in fleet.said if isinstance(m, TrainingResumed)}
        drained = {m.generation: m for m in fleet.said if isinstance(m, CheckpointSaved) and m.final}
        for number in (2, 3, 4):
            assert resumed[number].samples >= drained[number - 1].samples > 0
            assert resumed[number].phases.restore_s > 0
