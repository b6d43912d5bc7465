"""Tests of hand-overs and losses of a job with a divided table, with real trainers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from services.trainer.table_files import file_path
from services.trainer.worker.checkpoint_files import files_of_checkpoint
from shared.bus.bus import Bus
from shared.messages import CheckpointRule, CheckpointSaved, CheckpointSkipped
from tests.trainer.fleet import Fleet
from tests.trainer.programs import counting_rows

TABLE_BYTES = counting_rows.ROWS * counting_rows.WIDTH * 4


@pytest.fixture
def fleet(bus: Bus, nats_url: str, tmp_path: Path) -> Fleet:
    """Return a job with a divided table that saves every second."""
    often = CheckpointRule(every_s=1.0)
    return Fleet(bus, nats_url, tmp_path / "fleet", "counting_rows.py", checkpoint=often)


async def test_every_example_is_in_its_row_once_after_a_hand_over_and_a_lost_ps(
    fleet: Fleet,
) -> None:
    async with fleet:
        await fleet.generation(1, ps=2, workers=1)
        delta = await fleet.until(CheckpointSaved, lambda m: m.step > 0 and not m.stood)
        assert delta.bytes < TABLE_BYTES / 2

        resumed = await fleet.generation(2, ps=3, workers=1, previous=1)
        before = [each for each in resumed.table_rounds if not each.paused]
        in_pause = [each for each in resumed.table_rounds if each.paused]
        assert before[0].bytes == TABLE_BYTES, "the base is read while training goes on"
        changed = [*before[1:], *in_pause]
        assert all(0 < each.rows <= counting_rows.EXAMPLES for each in changed), "it is read once"

        await fleet.until(CheckpointSaved, lambda m: m.generation == 2 and not m.stood)
        await fleet.kill("ps-1")
        await fleet.generation(3, ps=[0, 2], workers=1, previous=2)
        fleet.pace(0)
        finished = await fleet.finished()

        epochs = fleet.request.epochs
        assert finished.outcome == "succeeded", finished.cause
        assert finished.counted == finished.samples == counting_rows.EXAMPLES * epochs
        assert _first_elements(fleet) == [epochs] * counting_rows.EXAMPLES


async def test_a_hand_over_reads_no_base_with_other_content(fleet: Fleet) -> None:
    async with fleet:
        await fleet.generation(1, ps=1, workers=1)
        delta = await fleet.until(CheckpointSaved, lambda m: m.step > 0 and not m.stood)
        (base, *_) = files_of_checkpoint(delta.path, delta.digest)
        _replace_by_other_rows(file_path(delta.path, base))

        await fleet.propose(2, ps=2, workers=1, previous=1)
        await fleet.prepared(2)
        await fleet.order(2, previous=1)
        skipped = await fleet.until(CheckpointSkipped)
        assert "base" in skipped.cause and "damaged" in skipped.cause


def _replace_by_other_rows(path: str) -> None:
    """Write a base again, with the rows of a table that was never trained."""
    reader = tf.train.load_checkpoint(path)
    names = list(reader.get_variable_to_shape_map())
    tensors = [tf.constant(reader.get_tensor(name) + 1) for name in names]
    tf.raw_ops.SaveV2(
        prefix=path, tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors
    )


def _first_elements(fleet: Fleet) -> list[float]:
    """Return the first element of each example's row in the last checkpoint."""
    saved = [m for m in fleet.said if isinstance(m, CheckpointSaved)][-1]
    reader = tf.train.load_checkpoint(saved.path)
    shape = [counting_rows.ROWS, counting_rows.WIDTH]
    (key,) = [k for k, v in reader.get_variable_to_shape_map().items() if list(v) == shape]
    rows = np.arange(counting_rows.EXAMPLES) * 13 % counting_rows.ROWS
    found: list[float] = reader.get_tensor(key)[rows, 0].tolist()
    return found
