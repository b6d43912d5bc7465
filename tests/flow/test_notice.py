"""Tests of notice on real parts: a cordon, an eviction and a SIGTERM lose no example.

They cost hardly any training time. The test prints each pause by the workers' clocks, the training
time that was repeated, and the numbers of examples that were lost and applied twice.
"""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    CheckpointSaved,
    GenerationAbandoned,
    JobFinished,
    JobMessage,
    ProgressReported,
    TaskAddress,
    TaskExited,
    TaskLeaving,
    TrainingResumed,
)
from tests.flow.kills import family
from tests.flow.stage import EPOCHS, PATIENCE_S, Scene, left_behind, stage

pytestmark = pytest.mark.long

NODES = (
    "nodes:\n  - {name: node-1, cpu: 3, memory_gib: 12}\n  - {name: node-2, cpu: 3, memory_gib:"
    " 12}\n"
)
BOTH = ("node-1", "node-2")
ONE = {"start": 1, "min": 1, "max": 1}
GRACE_S, EVERY_S = 40.0, 600.0  # no checkpoint is due in the time of the test
MOST_REDONE_S = 10.0


class Operator:
    """An operator who may cordon nodes and evict pods, and can send signals to processes."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.core = scene, f"{scene.watched.stack.kube_url}/api/v1"

    async def cordon(self, *nodes: str, closed: bool = True) -> None:
        for node in nodes:
            await self._send(
                "PATCH", f"nodes/{node}", {"spec": {"unschedulable": closed}}, "merge-patch+json"
            )

    async def evict(self, pod: str) -> None:
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": "default"},
        }
        await self._send("POST", f"namespaces/default/pods/{pod}/eviction", body, "json")

    async def terminate(self, pod: str) -> None:
        uid = next(
            p["metadata"]["uid"] for p in await self.scene.pods() if p["metadata"]["name"] == pod
        )
        supervisor = family(uid).supervisor
        assert supervisor is not None
        os.kill(supervisor, signal.SIGTERM)

    async def _send(self, verb: str, path: str, body: Any, media: str) -> None:
        headers = {"Content-Type": f"application/{media}"}
        async with aiohttp.ClientSession(headers=self.scene.watched.stack.kube_headers) as http:
            sent = http.request(verb, f"{self.core}/{path}", data=json.dumps(body), headers=headers)
            async with sent as answer:
                answer.raise_for_status()


def task(scene: Scene, role: str) -> TaskAddress:
    """Return a task with this role of the running generation."""
    return next(t for t in scene.spec(scene.running).tasks if t.role == role)


def nodes_of(scene: Scene, generation: int) -> set[str]:
    decided = next(m for m in scene.of(AllocationDecided) if m.generation == generation)
    return {task.node for task in decided.tasks}


def furthest(scene: Scene, generation: int) -> int:
    """Return the most samples that messages say a generation has applied."""
    said: list[Any] = [*scene.of(ProgressReported), *scene.of(CheckpointSaved)]
    return max(m.samples for m in said if m.generation == generation)


def begun_from(scene: Scene, generation: int) -> int:
    """Return the samples of the checkpoint that a generation restored: the last earlier one."""
    return max(m.samples for m in scene.of(CheckpointSaved) if m.generation < generation)


def redone_s(scene: Scene, before: int, after: int) -> float:
    """Return the time in s of training that generation `before` did and that was lost."""
    speeds = [m.samples_per_second for m in scene.of(ProgressReported) if m.generation == before]
    return max(0, furthest(scene, before) - begun_from(scene, after)) / max(speeds)


async def resumes(scene: Scene, since: int) -> TrainingResumed:
    return await scene.hear(TrainingResumed, since=since, within_s=PATIENCE_S)


async def cordoned(scene: Scene, operator: Operator) -> TrainingResumed:
    """Cordon the job's node: all its tasks move in one hand-over."""
    (home,), since = nodes_of(scene, scene.running), scene.now
    await operator.cordon(home)
    resumed = await resumes(scene, since)
    assert nodes_of(scene, resumed.generation) == {*BOTH} - {home} and resumed.previous is not None
    assert {m.why for m in scene.of(TaskLeaving)} == {"NodeCordoned"} and scene.of(TaskExited) == []
    await scene.goes_on()
    return resumed


async def evicted(scene: Scene, operator: Operator) -> TrainingResumed:
    """Evict the ps: it moves to the node that accepts tasks again; the old one works meanwhile."""
    since, ps = scene.now, task(scene, "ps")
    home = nodes_of(scene, scene.running)
    await operator.cordon(*BOTH, closed=False)
    await operator.evict(ps.pod)
    notice = await scene.hear(TaskLeaving, lambda m: m.why == "Evicted", since)
    await saved_at_once(scene, since)
    resumed = await resumes(scene, since)
    assert notice.pod == ps.pod and notice.leaves_s > 0 and task(scene, "ps").pod != ps.pod
    assert not nodes_of(scene, resumed.generation) <= home
    await scene.goes_on()
    return resumed


async def terminated(scene: Scene, operator: Operator) -> TrainingResumed:
    """Send SIGTERM to a ps while no node accepts tasks: it works on, and is replaced later."""
    since = scene.now
    await operator.cordon(*BOTH)
    for node in BOTH:  # until both nodes are closed, tasks may move from the first to the second
        await scene.hear(CapacityChanged, partial(is_closed, node), since)
    await scene.goes_on()
    since, ps = scene.now, task(scene, "ps")
    await operator.terminate(ps.pod)
    await scene.hear(TaskLeaving, lambda m: m.why == "SIGTERM", since)
    await saved_at_once(scene, since)
    gone = await scene.hear(TaskExited, lambda m: m.pod == ps.pod, since)
    assert gone.exit_code == 143
    last = [m for m in scene.of(CheckpointSaved) if m.final][-1]
    assert last.generation == scene.running and last.successor is None
    await operator.cordon(*BOTH, closed=False)
    resumed = await resumes(scene, since)
    await scene.goes_on()
    return resumed


def is_closed(node: str, seen: CapacityChanged) -> bool:
    return seen.node == node and not seen.schedulable


async def saved_at_once(scene: Scene, since: int) -> None:
    """Check that a checkpoint is saved before the final one at the end of the grace period."""
    assert not (await scene.hear(CheckpointSaved, since=since)).final


def told(
    scene: Scene, over: JobFinished, resumed: dict[str, TrainingResumed], counts: list[int]
) -> dict[str, Any]:
    before = {
        name: max(m.generation for m in _heard_before(scene, after))
        for name, after in resumed.items()
    }
    return {
        **{f"{name}_pause_s": round(m.pause_s or 0.0, 2) for name, m in resumed.items()},
        **{
            f"{name}_redone_s": round(redone_s(scene, before[name], m.generation), 2)
            for name, m in resumed.items()
        },
        "examples_lost": sum(max(0, EPOCHS - count) for count in counts),
        "applied_twice": sum(max(0, count - EPOCHS) for count in counts),
        "outcome": over.outcome,
    }


def _heard_before(scene: Scene, after: JobMessage) -> list[TrainingResumed]:
    return [m for m in scene.of(TrainingResumed) if m.generation < after.generation]


@pytest.mark.filterwarnings("default")
async def test_cordon_eviction_and_sigterm_lose_no_example(tmp_path: Path) -> None:
    asked = {
        "ps": ONE,
        "workers": ONE,
        "policy": "static",
        "grace_s": GRACE_S,
        "checkpoint": {"every_s": EVERY_S},
    }
    async with stage(tmp_path, places=NODES) as scene:
        operator = Operator(scene)
        await scene.submit(**asked)
        await scene.hear(TrainingResumed)
        await scene.goes_on()
        moves = {"cordon": cordoned, "eviction": evicted, "sigterm": terminated}
        resumed = {name: await move(scene, operator) for name, move in moves.items()}
        scene.pace(0)
        over = await scene.watched.await_finish(PATIENCE_S)
        counts = await scene.counts(over)
        figures = told(scene, over, resumed, counts)
        gave_up = [m.reason for m in scene.of(GenerationAbandoned)]
    print(json.dumps(figures))
    assert (figures["examples_lost"], figures["applied_twice"], over.outcome) == (
        0,
        0,
        "succeeded",
    ), gave_up
    assert max(figures[f"{name}_redone_s"] for name in resumed) <= MOST_REDONE_S
    assert left_behind(tmp_path) == []
