"""Gradient accumulation across hand-overs, in real trainers: nothing that was accumulated is lost
or counts twice.
"""

from __future__ import annotations

from pathlib import Path

from shared.bus.bus import Bus
from shared.messages import CheckpointSaved, Span
from tests.trainer.fleet import Fleet

EXAMPLES, BATCH, EPOCHS = 250, 16, 6


async def test_examples_of_accumulated_updates_count_once_an_epoch_across_hand_overs(
    bus: Bus, nats_url: str, tmp_path: Path
) -> None:
    fields = {"epochs": EPOCHS, "batch": Span(start=BATCH, min=5, max=BATCH), "device_batch_max": 5}
    async with Fleet(bus, nats_url, tmp_path / "fleet", "accumulating.py", **fields) as fleet:
        await fleet.generation(1, ps=1, workers=1)
        await fleet.steps(2, generation=1)
        resumed = await fleet.generation(2, ps=2, workers=2, previous=1)
        fleet.pace(0)
        finished = await fleet.finished()

    assert finished.outcome == "succeeded", finished.cause
    assert finished.counted == finished.samples == EXAMPLES * EPOCHS
    assert fleet.counts()["counts"] == [EPOCHS] * EXAMPLES
    drained = next(m for m in fleet.said if isinstance(m, CheckpointSaved) and m.final)
    assert 0 < drained.samples <= drained.step * 3 * BATCH and resumed.step >= drained.step
    assert finished.step * 3 * BATCH >= finished.samples > finished.step * BATCH
