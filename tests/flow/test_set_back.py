"""Test of a bus that loses its last minute, in which a job saved and grew.

The job continues from its newest checkpoint.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.trial import trial
from services.local.stack import Stack
from shared.messages import CheckpointSaved, TrainingResumed
from tests.flow.stage import PATIENCE_S, PLACES, QUICK, Scene, left_behind
from tests.shared.restored_server import copy_stores, put_stores_back

pytestmark = pytest.mark.long

EPOCHS = 24


@pytest.mark.filterwarnings("default")
async def test_training_survives_a_bus_restored_from_a_backup_and_counts_stay_exact(
    tmp_path: Path,
) -> None:
    """The ledger names a checkpoint that is gone, and does not know the running generation."""
    file, copy = tmp_path / "cluster.yaml", tmp_path / "copy"
    file.write_text(PLACES)
    async with Stack(tmp_path / "weir", file, QUICK) as stack:
        async with trial(stack) as watched:
            scene = Scene(watched, tmp_path)
            strangers = [await scene.stranger_comes("node-2") for _ in range(2)]
            await scene.submit(epochs=EPOCHS)
            named = await scene.hear(CheckpointSaved)
            copy_stores(stack, copy)
            for stranger in strangers:
                await scene.stranger_leaves(stranger)
            grown = await scene.hear(TrainingResumed, lambda m: m.generation > named.generation)
            last = await scene.hear(
                CheckpointSaved, lambda m: m.generation == grown.generation and later(m, named)
            )
        await put_stores_back(stack, copy)
        async with trial(stack) as watched:
            scene = Scene(watched, tmp_path)
            again = await scene.hear(TrainingResumed, lambda m: m.generation > grown.generation)
            scene.pace(0)
            over = await watched.await_finish(PATIENCE_S)
            counts = await scene.counts(over)
    assert again.samples > last.samples, "it goes on from there, or from a later one"
    assert set(counts) == {EPOCHS}
    assert left_behind(tmp_path) == []


def later(saved: CheckpointSaved, named: CheckpointSaved) -> bool:
    """Return whether a checkpoint is later than another one whose file is gone."""
    return saved.step > named.step and not Path(named.path + ".index").exists()
