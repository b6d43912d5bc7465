"""Test of Ctrl-C to `weir up` during training: the job saves, and continues at the next start."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.cli.trial import trial
from services.local.stack import Stack
from shared.bus.consumer import StoredMessage
from shared.messages import (
    CapacityChanged,
    CheckpointSaved,
    OwnPod,
    ProgressReported,
    TaskLeaving,
    TrainingResumed,
)
from tests.flow.stage import EPOCHS, PATIENCE_S, PLACES, QUICK, Scene, left_behind

pytestmark = pytest.mark.long

ASKED = {
    "ps": {"start": 1, "min": 1, "max": 1},
    "workers": {"start": 1, "min": 1, "max": 1},
    "policy": "static",
    "grace_s": 600.0,  # far more than Ctrl-C allows
    "checkpoint": {"every_s": 600.0},
}

LONGEST_S = 200.0  # a third of the grace period
TRIES = 3


@pytest.mark.filterwarnings("default")
async def test_ctrl_c_and_a_new_start_lose_no_training(tmp_path: Path) -> None:
    """Ctrl-C allows a job a few seconds to save. A machine that stalls as long makes a try fail."""
    for number in range(TRIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        if await goes_on_where_it_was(folder):
            return
    pytest.fail(f"it was set back {TRIES} times")


async def goes_on_where_it_was(tmp_path: Path) -> bool:
    """Return whether all training was saved before the stop and continued after it.

    The trainers must also have published the stop, and the nodes' last facts must contain no pods.
    """
    file = tmp_path / "cluster.yaml"
    file.write_text(PLACES)
    async with Stack(tmp_path / "weir", file, QUICK) as stack:
        async with trial(stack) as watched:
            scene = Scene(watched, tmp_path)
            await scene.submit(**ASKED)
            first = await scene.hear(TrainingResumed)
            await scene.goes_on()
            before = (await scene.goes_on()).samples
            assert scene.of(CheckpointSaved) == []
        began = time.monotonic()
    took_s = time.monotonic() - began
    down_s = time.time()
    assert left_behind(tmp_path) == [] and took_s < LONGEST_S
    async with Stack(tmp_path / "weir", file, QUICK) as stack, trial(stack) as watched:
        scene = Scene(watched, tmp_path)
        again = await scene.hear(TrainingResumed, lambda m: m.generation > first.generation)
        saved = [m for m in scene.of(CheckpointSaved) if m.generation == first.generation]
        reports = [
            m.samples for m in scene.of(ProgressReported) if m.generation == first.generation
        ]
        told = {m.pod for m in scene.of(TaskLeaving) if m.why == "SIGTERM"}
        held = _held(watched.heard, down_s)
        assert not any(fact.ready for fact in _last_of_nodes(watched.heard, down_s)), (
            "they may be others when it is up"
        )
        scene.pace(0)
        over = await watched.await_finish(PATIENCE_S)
        counts = await scene.counts(over)
    print(
        f"down in {took_s:.1f} s; samples: {max(reports)} reported, {saved} saved, {again.samples}"
        " at the start"
    )
    assert set(counts) == {EPOCHS}
    done = (
        bool(saved)
        and saved[-1].final
        and again.samples >= saved[-1].samples >= max(reports) >= before
    )
    return done and len(told) == 3 and again.off_s > 0 and not held


def _held(heard: Sequence[StoredMessage], until_s: float) -> list[OwnPod]:
    """Return Weir's pods in the last facts of the nodes before a time."""
    return [pod for fact in _last_of_nodes(heard, until_s) for pod in fact.own]


def _last_of_nodes(heard: Sequence[StoredMessage], until_s: float) -> list[CapacityChanged]:
    facts = [
        h.message for h in heard if h.stored_s < until_s and isinstance(h.message, CapacityChanged)
    ]
    return list({fact.node: fact for fact in facts}.values())
