"""Tests of an upgrade: services are replaced one by one while a job trains.

The job starts under the recorded version, and every example is trained once per epoch.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.trial import trial
from shared.bus.subjects import DEAD
from shared.messages import CheckpointSaved, TrainingResumed
from tests.flow.stage import PATIENCE_S, PLACES, QUICK, Scene
from tests.versions.install import NotThere, commit_of, install_version
from tests.versions.two_versions import NEW, TwoVersions

pytestmark = pytest.mark.long

VERSION, EPOCHS = "0.2.0", 60  # a version without `consistency` and `max_staleness`
THREE_NODES = f"{PLACES}  - {{name: node-3, cpu: 2, memory_gib: 8}}\n"
SPAN = {"start": 1, "min": 1, "max": 3}
"""The policy adds a ps and a worker at a time, so each growth needs the room of two pods."""
ORDERS = [
    ("allocator", "launcher", "monitor"),
    ("launcher", "allocator", "monitor"),
    ("monitor", "launcher", "allocator"),
]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return install_version(VERSION, tmp_path_factory.mktemp("old") / VERSION)
    except NotThere:
        pytest.skip(f"commit {commit_of(VERSION)} is not in this clone: its history is cut off")


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
async def test_a_job_continues_training_while_services_are_upgraded(
    old: Path, tmp_path: Path, order: tuple[str, ...]
) -> None:
    first, *others = order
    file = tmp_path / "cluster.yaml"
    file.write_text(THREE_NODES)
    async with TwoVersions(tmp_path / "weir", file, QUICK, old) as stack, trial(stack) as watched:
        scene = Scene(watched, tmp_path)
        scene.more = FIRST_EDITION
        strangers = {
            node: [await scene.stranger_comes(node) for _ in range(2)]
            for node in ("node-2", "node-3")
        }
        await scene.submit(
            epochs=EPOCHS, ps=SPAN, workers=SPAN, consistency=None, max_staleness=None
        )
        small = await scene.hear(TrainingResumed)
        await scene.hear(CheckpointSaved)

        await stack.upgrade_bus()
        await scene.goes_on()
        await stack.roll(first, NEW)
        await scene.goes_on()
        grown = await grow(scene, strangers["node-2"], small.generation)

        for name in others:
            await stack.roll(name, NEW)
        await scene.goes_on()
        last = await grow(scene, strangers["node-3"], grown.generation)

        scene.pace(0)
        over = await watched.await_finish(PATIENCE_S)
        counts = await scene.counts(over)
        sizes = [len(scene.spec(each.generation).tasks) for each in (small, grown, last)]
        letters = (await watched.bus.js.stream_info(DEAD)).state.messages
        ended = {name: part.restarts for name, part in stack.parts.items() if part.restarts}

    assert set(counts) == {EPOCHS} and sizes == sorted(set(sizes))
    assert over.samples == over.counted
    assert ended == {} and letters == 0


FIRST_EDITION = """

dataset_of_numbers = dataset


def dataset(start, stop):
    return dataset_of_numbers(np.arange(start, stop))
"""
"""The recorded version calls a program's `dataset` with a range."""


async def grow(scene: Scene, strangers: list[str], generation: int) -> TrainingResumed:
    """Remove these pods of other users; return the next resumption once the job trains on."""
    for stranger in strangers:
        await scene.stranger_leaves(stranger)
    resumed = await scene.hear(TrainingResumed, lambda m: m.generation > generation)
    await scene.goes_on()
    return resumed
