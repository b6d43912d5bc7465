"""Performing what was decided about children: each is started, told and ended here. Edge.

What becomes of a child is not judged here: its words, and that it ended by itself, are handed to
who ordered it.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from services.trainer import priority, program_file
from services.trainer.actions import (
    BeginChild,
    DrainChild,
    EndChild,
    ForChild,
    GoOnChild,
    SaveChild,
    StartChild,
)
from services.trainer.assignment import assignment
from services.trainer.children import Child, Nursery
from services.trainer.fence import Fence
from services.trainer.orders import Assignment, Begin, Drain, Failed, GoOn, Order, SaveNow, Word
from services.trainer.program import BadProgram
from services.trainer.settings import Settings
from services.trainer.usage import lacks_room, limit_gib
from services.trainer.voice import last_progress
from shared.bus.bus import Bus
from shared.messages import NOT_ENOUGH_MEMORY, ClusterSpecPublished

ENDING_S = 5.0  # more than a killed process takes to go
ChildAction = ForChild


class Ears(Protocol):
    """Who ordered the children, and hears what becomes of them."""

    def expects(self, generation: int) -> bool:
        """Whether a child that is about to be started is still wanted."""

    async def on_word(self, spec: ClusterSpecPublished, word: Word) -> None:
        """A child says something; or it could not even be born, and this is why."""

    async def on_end(self, spec: ClusterSpecPublished) -> None:
        """A child ended by itself, after its last word; not said of one that was ended."""

    async def on_missed(self, spec: ClusterSpecPublished, why: str) -> None:
        """No child was started, and none will be."""


class Hands:
    """The children of one pod, by generation."""

    def __init__(
        self,
        bus: Bus,
        settings: Settings,
        gate: Fence,
        folder: Path,
        nursery: Nursery | None,
        ears: Ears,
    ) -> None:
        self.bus = bus
        self.settings = settings
        self.gate = gate
        self.folder = folder
        self.nursery, self.ears = nursery, ears
        self.children: dict[int, Child] = {}
        self.leaving: list[Child] = []  # ended, and perhaps not gone yet
        self.nice = settings.prepare_nice if priority.may_raise() else 0

    async def perform(self, action: ChildAction) -> None:
        match action:
            case StartChild(spec, fresh):
                await self.start(spec, fresh)
            case BeginChild(generation, path, chief):
                await self.begin(generation, path, chief)
            case DrainChild(generation, successor):
                self.tell(generation, Drain(successor=successor))
            case SaveChild(generation):
                self.tell(generation, SaveNow())
            case GoOnChild(generation):
                await self.gate.claim(generation, back=True)
                self.tell(generation, GoOn())
            case EndChild(generation):
                self.end(generation)

    # ------------------------------------------------------------ start

    async def start(self, spec: ClusterSpecPublished, fresh: bool) -> None:
        """Returns when the child is born, or could not be; it may have been given up while we
        looked around.
        """
        await self.until_ports_are_free()
        if not fresh and (why := await self.lacks_room(spec)):
            return await self.ears.on_missed(spec, why)
        try:
            assigned = await self.assign(spec, fresh)
        except BadProgram as error:
            await self.ears.on_word(spec, Failed(cause=str(error)))
            return await self.gone(spec)
        if self.ears.expects(spec.generation):
            self.bear(spec, assigned, None if fresh else self.nursery)

    async def until_ports_are_free(self) -> None:
        """A child that was ended holds its port until it is gone, and the next but one needs that
        very port.
        """
        leaving, self.leaving = self.leaving, []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDING_S):
                await asyncio.gather(*(child.gone.wait() for child in leaving))

    async def lacks_room(self, spec: ClusterSpecPublished) -> str | None:
        """Why two children do not fit side by side, said beforehand: the job then stops and starts
        again.
        """
        running = self.children.get(max(self.children, default=-1))
        limit = await asyncio.to_thread(limit_gib, self.settings.memory_gib)
        why = await asyncio.to_thread(lacks_room, limit, running.pid if running else None)
        return why and f"{NOT_ENOUGH_MEMORY}: {why}"

    async def assign(self, spec: ClusterSpecPublished, fresh: bool) -> Assignment:
        """Raises `BadProgram` where the program is not to be had."""
        follows = spec.previous is not None or bool((await self.gate.look()).paths)
        program = await program_file.fetched(
            self.bus, spec.namespace, spec.request.program, self.folder
        )
        return assignment(
            spec, self.settings, str(program), fresh=fresh, follows=follows, nice=self.nice
        )

    def bear(
        self, spec: ClusterSpecPublished, assigned: Assignment, nursery: Nursery | None
    ) -> None:
        child = Child(
            assigned, nursery, lambda word: self.ears.on_word(spec, word), lambda: self.gone(spec)
        )
        self.children[spec.generation] = child
        self.bus.spawn(child.listen())

    async def gone(self, spec: ClusterSpecPublished) -> None:
        self.children.pop(spec.generation, None)
        await self.ears.on_end(spec)

    # ------------------------------------------------------------ tell, end

    async def begin(self, generation: int, path: str | None, chief: bool) -> None:
        """A chief takes the fence first; it restores what the ledger names, the newest that is
        whole.

        A checkpoint is in the ledger before it is announced, so where the ledger names any, the
        announced one (`path`) is among them, or older than them.
        """
        if not chief:
            return self.tell(generation, Begin())
        entry, last = await asyncio.gather(
            self.gate.claim(generation), last_progress(self.bus, self.settings)
        )
        paths = entry.paths or ((path,) if path else ())
        begin = Begin(paths=paths, digests=entry.digests, samples=entry.samples, past=entry.past)
        self.tell(
            generation,
            replace(begin, applied_step=last.step, applied_s=last.applied_s) if last else begin,
        )

    def tell(self, generation: int, order: Order) -> None:
        """A child may die while we make up our mind; its end is heard of, too."""
        if generation in self.children:
            self.children[generation].tell(order)

    def eldest(self) -> int | None:
        """The process of the generation that runs, if any."""
        return self.children[min(self.children)].pid if self.children else None

    def end(self, generation: int) -> None:
        child = self.children.pop(generation, None)
        if child is not None:
            child.end()
            self.leaving.append(child)

    async def close(self) -> None:
        """End every child; nothing of this pod stays behind."""
        for generation in list(self.children):
            self.end(generation)
        if self.nursery is not None:
            self.nursery.close()
        shutil.rmtree(self.folder, ignore_errors=True)
