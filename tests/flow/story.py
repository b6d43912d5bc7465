"""Plays a schedule of kills on a stage."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from functools import partial

from shared.messages import (
    AllocationDecided,
    ClusterSpecPublished,
    HandOverOrdered,
    JobFinished,
    JobMessage,
    TaskAddress,
    TaskExited,
    TaskStarted,
    TrainingResumed,
)
from tests.flow.kills import Family, Kill, Round, family
from tests.flow.stage import LOOK_S, PATIENCE_S, Scene

LOOKS = 10

BEGINS: dict[str, type[JobMessage]] = {
    "while it prepares": ClusterSpecPublished,
    "between order and resumption": HandOverOrdered,
    "just after": TrainingResumed,
}


def _later(generation: int, message: JobMessage) -> bool:
    return message.generation > generation


def _of(pod: str, message: TaskExited) -> bool:
    return message.pod == pod


class Story:
    """Plays a schedule. `told` is a log of the events, for the message of a failed test."""

    def __init__(self, scene: Scene, handover: str) -> None:
        self.scene, self.handover = scene, handover
        self.told: list[str] = []
        self.hit: list[Kill] = []
        self.strangers: list[str] = []
        self.dead: set[str] = set()  # pods that were killed
        self.workers_lost = 0

    async def play(self, rounds: Iterable[Round]) -> JobFinished:
        self.strangers = [await self.scene.stranger_comes("node-2")]
        for each in rounds:
            await self._round(each)
        self.scene.pace(0)
        return await self.scene.watched.await_finish(PATIENCE_S)

    async def _round(self, each: Round) -> None:
        since, generation = (
            self.scene.now,
            max((m.generation for m in self.scene.of(AllocationDecided)), default=0),
        )
        self._tell(f"it {each.change}")
        doomed = await {"starts": self._start, "grows": self._grow, "shrinks": self._shrink}[
            each.change
        ]()
        for kill in each.kills:
            if kill.moment != "before the decision":
                await self.scene.hear(BEGINS[kill.moment], partial(_later, generation), since)
            await asyncio.sleep(kill.delay_s)
            doomed += await self._strike(kill)
        for pod in doomed:
            await self.scene.hear(TaskExited, partial(_of, pod), since)
        last = await self.scene.goes_on()
        self._tell(f"generation {last.generation} goes on at step {last.step}")

    # ------------------------------------------------------------ changes of the size

    async def _start(self) -> list[str]:
        await self.scene.submit(handover=self.handover)
        await self.scene.hear(ClusterSpecPublished)
        return []

    async def _grow(self) -> list[str]:
        await self.scene.stranger_leaves(self.strangers.pop())
        return []

    async def _shrink(self) -> list[str]:
        """Create another user's pod on the node of the last worker, and kill that worker's pod."""
        task = max((t for t in self._tasks() if t.role == "worker"), key=lambda t: t.index)
        started = next(m for m in self.scene.of(TaskStarted) if m.pod == task.pod)
        self.strangers.append(await self.scene.stranger_comes(started.node))
        await self._end(Kill("supervisor", "worker", "before the decision", 0.0, 0), task.pod)
        return [task.pod]

    # ------------------------------------------------------------ kills

    async def _strike(self, kill: Kill) -> list[str]:
        """Kill a process. Return the pods that must end because of it."""
        if kill.part == "service":
            process = self.scene.watched.stack.parts[kill.who].process
            assert process is not None
            self._slay(kill, process.pid, kill.who)
            return []
        coming = self.scene.of(ClusterSpecPublished)[-1].generation
        generation = coming if kill.part == "next child" else self.scene.running or coming
        pods = sorted(
            t.pod
            for t in self.scene.spec(generation).tasks
            if t.role == kill.who and t.pod not in self.dead
        )
        if not pods:
            self._tell(f"no {kill.kind} left, {kill.moment}")
            return []
        pod = pods[kill.choice % len(pods)]
        doomed = self._ends_the_pod(kill)
        return [pod] if await self._end(kill, pod) and doomed else []

    def _ends_the_pod(self, kill: Kill) -> bool:
        """Return whether the kill surely ends the pod; a child that only prepares is restarted."""
        return kill.part == "supervisor" or (
            kill.part == "running child" and self.scene.running > 0
        )

    async def _end(self, kill: Kill, pod: str) -> bool:
        """Kill a process of a pod. Return False if none is found in `LOOKS` attempts."""
        uid = next(
            (p["metadata"]["uid"] for p in await self.scene.pods() if p["metadata"]["name"] == pod),
            "-",
        )
        for _ in range(LOOKS):
            chosen = self._chosen(kill, family(uid))
            if chosen is not None and self._slay(kill, chosen, pod):
                self.workers_lost += kill.costs_a_worker
                self.dead |= {pod} if self._ends_the_pod(kill) else set()
                return True
            await asyncio.sleep(LOOK_S)
        self._tell(f"no {kill.kind} in {pod}, {kill.moment}")
        return False

    def _chosen(self, kill: Kill, found: Family) -> int | None:
        if kill.part == "supervisor":
            return found.supervisor
        coming = self.scene.of(ClusterSpecPublished)[-1]
        return found.coming(coming.published_s) if kill.part == "next child" else found.running()

    def _slay(self, kill: Kill, pid: int, name: str) -> bool:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.hit.append(kill)
        self._tell(f"killed the {kill.kind} ({name}, pid {pid}), {kill.moment}")
        return True

    def _tasks(self) -> tuple[TaskAddress, ...]:
        return self.scene.spec(self.scene.running).tasks

    def _tell(self, what: str) -> None:
        self.told.append(f"{asyncio.get_running_loop().time():.1f} {what}")
