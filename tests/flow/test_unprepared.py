"""Tests of a generation that cannot be prepared: it is abandoned with its cause.

The running generation continues and loses no step.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.cli.trial import NAMESPACE
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    CheckpointSaved,
    GenerationAbandoned,
    ProgressReported,
    TaskExited,
    TaskReady,
    TrainingResumed,
)
from tests.flow.stage import LOOK_S, PATIENCE_S, Scene, left_behind, stage

pytestmark = pytest.mark.long

FIRST_WORKER = 2  # its serial number: the chief has 0 and the ps 1
CROWDED = """

_alone = dataset
_quiet = Path({forbidden!r})


def dataset(numbers):
    if _quiet.exists() and int(os.environ["WEIR_TRAINER_SERIAL"]) > {first}:
        raise RuntimeError("this library admits one reader")
    return _alone(numbers)
"""


@pytest.mark.filterwarnings("default")
async def test_a_generation_that_cannot_be_prepared_is_abandoned_and_the_running_one_continues(
    tmp_path: Path,
) -> None:
    forbidden = tmp_path / "quiet"
    async with stage(tmp_path) as scene:
        scene.more = CROWDED.format(forbidden=str(forbidden), first=FIRST_WORKER)
        stranger = await scene.stranger_comes("node-2")
        await scene.submit(epochs=30)
        await scene.hear(TrainingResumed)

        stranger = await no_place_is_left(scene, stranger)

        with taken(free_port_of(scene, "chief")):
            await scene.stranger_leaves(stranger)
            await abandoned(scene, "gRPC server")
            forbidden.touch()
        await abandoned(scene, "RuntimeError: this library admits one reader")

        assert [m.generation for m in scene.of(TrainingResumed)] == [1]
        assert not [m for m in scene.of(CheckpointSaved) if m.final], "it never stopped"
        forbidden.unlink()
        grown = await scene.hear(TrainingResumed, lambda m: m.generation > 1)
        scene.pace(0)
        finished = await scene.watched.await_finish(PATIENCE_S)

    reports = [m for m in scene.of(ProgressReported) if m.generation == 1]
    steps = [m.step for m in reports]
    assert steps == sorted(set(steps)), "in every report it is further than in the one before"
    assert grown.samples >= reports[-1].samples and scene.of(TaskExited) == []
    assert finished.counted == finished.samples == reports[-1].total_samples
    assert left_behind(tmp_path) == []


async def no_place_is_left(scene: Scene, stranger: str) -> str:
    """Replace another user's pod by one that the allocator does not hear of. Return its name.

    What the allocator decides then does not fit.
    """
    since, monitor, allocator = scene.now, process(scene, "monitor"), process(scene, "allocator")
    os.kill(allocator, signal.SIGSTOP)
    await scene.stranger_leaves(stranger)
    await scene.hear(CapacityChanged, lambda m: m.node == "node-2" and m.free.cpu >= 2, since)
    os.kill(monitor, signal.SIGSTOP)
    next_one = await scene.stranger_comes("node-2")
    await settles(scene, next_one)
    os.kill(allocator, signal.SIGCONT)
    await scene.hear(AllocationDecided, lambda m: m.generation > 1, since)
    await abandoned(scene, "unschedulable")
    os.kill(monitor, signal.SIGCONT)
    await scene.hear(CapacityChanged, lambda m: m.node == "node-2" and m.free.cpu < 2, since)
    return next_one


def process(scene: Scene, service: str) -> int:
    found = scene.watched.stack.parts[service].process
    assert found is not None
    return found.pid


async def settles(scene: Scene, stranger: str) -> None:
    """Wait until the pod has a node."""
    async with asyncio.timeout(PATIENCE_S):
        while stranger not in [
            p["metadata"]["name"] for p in await scene.pods(NAMESPACE) if p["spec"].get("nodeName")
        ]:
            await asyncio.sleep(LOOK_S)


async def abandoned(scene: Scene, why: str) -> None:
    """Wait until a generation is abandoned for this reason, and the running one makes a step."""
    await scene.hear(GenerationAbandoned, lambda m: why in m.reason)
    since, before = scene.now, scene.of(ProgressReported)[-1]
    await scene.hear(ProgressReported, lambda m: m.generation == 1 and m.step > before.step, since)


def free_port_of(scene: Scene, role: str) -> int:
    """Return the port that the next generation will use for a task of this role."""
    used = {task.port for task in scene.spec(1).tasks}
    ready = next(m for m in scene.of(TaskReady) if m.role == role)
    return next(port for port in ready.ports if port not in used)


@contextmanager
def taken(port: int) -> Iterator[None]:
    """Listen on a port, as an unrelated process may."""
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("", port))
        squatter.listen()
        yield
