"""A job whose size and times of decisions are set by a benchmark instead of the allocator."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from services.cli.trial import Trial
from services.local.stack import Stack
from shared.auth.permissions import ALLOCATOR
from shared.bus import bus
from shared.messages import (
    AllocationDecided,
    GenerationAbandoned,
    JobRequested,
    Resources,
    TaskPlan,
    TrainingResumed,
)

NODE = "node"
CLUSTER = f"nodes:\n  - {{name: {NODE}, cpu: 2, memory_gib: 16}}\n"
MEMORY_GIB = 2.5
PATIENCE_S = 180.0


def sizes(memory_gib: float = MEMORY_GIB, **cpu: float) -> dict[str, Resources]:
    return {role: Resources(cpu=cores, memory_gib=memory_gib) for role, cores in cpu.items()}


@asynccontextmanager
async def as_allocator(stack: Stack) -> AsyncIterator[bus.Bus]:
    """Yield a connection to the stack's bus with the credentials of the allocator."""
    voice = await bus.connect(stack.nats_url, ALLOCATOR, stack.credentials_of(ALLOCATOR))
    try:
        yield voice
    finally:
        await voice.close()


class Player:
    """Decide about one job in place of the allocator, with every task on the only node."""

    def __init__(
        self, watched: Trial, uid: int, request: JobRequested, sizes: Mapping[str, Resources]
    ) -> None:
        self.watched, self.uid, self.request, self.sizes = watched, uid, request, sizes
        self.generation = 0
        self.serials = iter(range(10_000))
        self.tasks: list[TaskPlan] = [self._task("chief", 0)]

    def _task(self, role: Any, index: int) -> TaskPlan:
        return TaskPlan(
            role=role, index=index, serial=next(self.serials), node=NODE, resources=self.sizes[role]
        )

    def _sized(self, ps: int, workers: int) -> list[TaskPlan]:
        """Return the tasks of a new size: tasks stay if possible, new tasks have new serials."""
        tasks = [t for t in self.tasks if t.role == "chief"]
        for role, count in (("ps", ps), ("worker", workers)):
            kept = [t for t in self.tasks if t.role == role][:count]
            tasks += kept + [self._task(role, n) for n in range(len(kept), count)]
        return tasks

    async def decide(self, ps: int, workers: int) -> float:
        """Publish a decision and wait until training has resumed; return when it was decided."""
        self.generation += 1
        self.tasks = self._sized(ps, workers)
        decided_s = await self._say()
        await self.watched.until(self._settled, PATIENCE_S, f"generation {self.generation}")
        return decided_s

    async def _say(self) -> float:
        """Publish a decision about the present tasks; return its time."""
        decided_s = time.time()
        decision = AllocationDecided(
            job=self.request.job,
            uid=self.uid,
            generation=self.generation,
            revision=self.generation,
            request=self.request,
            tasks=tuple(self.tasks),
            batch=self.request.batch.start,
            reason="the benchmark says so",
            decided_s=decided_s,
        )
        async with as_allocator(self.watched.stack) as voice:
            await voice.publish(decision)
        return decided_s

    def _settled(self) -> bool:
        for abandoned in self.watched.of(GenerationAbandoned):
            if abandoned.generation == self.generation:
                raise RuntimeError(
                    f"generation {self.generation} was abandoned: {abandoned.reason}"
                )
        return any(r.generation == self.generation for r in self.watched.of(TrainingResumed))
