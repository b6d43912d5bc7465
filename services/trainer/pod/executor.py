"""Performing what was decided about children: each is started, told and ended here. Edge.

What becomes of a child is not judged here: its words, and that it ended by itself, are handed to
who ordered it.

What a child of this pod is told at its birth: who it is in its generation, and how it is to
prepare.

The program's file: fetched once, by digest, and used only if it has that digest and is not too
large. Edge.

The store keeps a digest of its own for what it holds, but nobody has checked that what lies under a
name is what the name says; a request that was written by hand may even name something else. What
the store says of an object's size is its sender's word: no more than is allowed is read in any
case. The file's name is the request's; no folder is.

Each try reads the program's description anew, so a program that is stored again meanwhile is found.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
from pathlib import Path
from typing import Protocol

import msgspec
import structlog
from msgspec.structs import replace
from nats.errors import Error as NatsError
from nats.js.errors import APIError

from services.trainer.pod.children import Child, Nursery
from services.trainer.pod.fence import Fence
from services.trainer.pod.publisher import last_progress
from services.trainer.pod.supervise import (
    BeginChild,
    DrainChild,
    EndChild,
    ForChild,
    GoOnChild,
    SaveChild,
    StartChild,
)
from services.trainer.pod.usage import lacks_room, limit_gib
from services.trainer.program import BadProgram, digest_of, file_name
from services.trainer.protocol import Assignment, Begin, Drain, Failed, GoOn, Order, SaveNow, Word
from services.trainer.settings import Settings
from shared.bus import programs
from shared.bus.bus import Bus
from shared.bus.client import is_outage
from shared.messages import (
    LARGEST_PROGRAM,
    NOT_ENOUGH_MEMORY,
    ClusterSpecPublished,
    Program,
    Resources,
)
from shared.runtime.log import RateLimitedWarning

ENDING_S = 5.0  # more than a killed process takes to go
ChildAction = ForChild
CAP_SYS_NICE = 23


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
        self.nice = settings.prepare_nice if may_raise_priority() else 0

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
        program = await fetched(self.bus, spec.namespace, spec.request.program, self.folder)
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


def may_raise_priority() -> bool:
    """Return whether this process and its children may raise their own CPU weight again.

    That takes a privilege that a restricted container lacks. There a child that prepares keeps its
    full weight.
    """
    limit = resource.getrlimit(resource.RLIMIT_NICE)[0]
    if limit == resource.RLIM_INFINITY or limit >= 20:
        return True
    with open("/proc/self/status") as status:
        held = next(text.split()[1] for text in status if text.startswith("CapEff"))
    return bool(int(held, 16) >> CAP_SYS_NICE & 1)


def assignment(
    spec: ClusterSpecPublished,
    settings: Settings,
    program: str,
    *,
    fresh: bool,
    follows: bool,
    nice: int,
) -> Assignment:
    """`follows`: something of the job has run before. `nice`: niceness of who prepares beside what
    runs.

    Where nothing runs, or a fresh child starts because it has stopped, to warm up would only make
    the pause longer.
    """
    task = spec.of(settings.pod)
    assert task is not None, "only members start children"
    return Assignment(
        generation=spec.generation,
        role=task.role,
        index=task.index,
        cluster={role: spec.addresses(role) for role in ("chief", "ps", "worker")},
        request=spec.request,
        batch=spec.batch,
        program=program,
        checkpoint_dir=settings.checkpoint_dir,
        continue_from=settings.continue_from,
        resources=Resources(cpu=settings.cpu, memory_gib=settings.memory_gib),
        warms_up=spec.previous is not None and not fresh,
        off_s=spec.off_s,
        first=not follows,
        beside=spec.previous is not None,
        nice=nice if spec.previous is not None else 0,
        progress_s=settings.progress_s,
        stuck_early_s=settings.stuck_early_s,
        stuck_s=settings.stuck_s,
        stuck_patience=settings.stuck_patience,
        redo_s=settings.redo_s,
    )


TRIES, AGAIN_S = 3, 0.5
BUSY_S = 2.0
"""Between two tries where the bucket has as many readers as it may have: pods that wait ask no more
often.
"""
FETCH_S = 60.0  # one try; of an object that has lost a part the client would wait for ever
ANSWER_S = 2.0  # until a bus that answers has answered
WRONG = (APIError, msgspec.DecodeError, ValueError, KeyError, TypeError, programs.NotProvisioned)
"""Answers, but no program."""
logger = structlog.get_logger()


async def fetched(bus: Bus, namespace: str, program: Program, folder: Path) -> Path:
    """Where it lies; raises `BadProgram` where the store has none of this digest, however often it
    is asked.
    """
    path = folder / program.digest / file_name(program.name)
    if not (path.is_file() and digest_of(path.read_bytes()) == program.digest):
        _keep(path, await _asked_for(bus, namespace, program))
    return path


def _keep(path: Path, body: bytes) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(".part")  # no program is called so
    part.write_bytes(body)
    os.replace(part, path)


async def _asked_for(bus: Bus, namespace: str, program: Program) -> bytes:
    why = ""
    tries = 0
    busy = RateLimitedWarning()
    while tries < TRIES:
        try:
            body, why = await _looked_up(bus, namespace, program.digest)
        except programs.BucketBusy as error:
            busy.warn_error("ProgramWaitsForOtherReaders", error, program=program.name, remedy=BUSY)
            await asyncio.sleep(BUSY_S)
            continue
        if body is not None:
            return body
        logger.warning("ProgramNotAsAskedFor", program=program.name, why=why)
        tries += await _answers(bus, namespace, program.digest)
        await asyncio.sleep(AGAIN_S)
    raise BadProgram(f"{program.name} is not to be had: {why}")


BUSY = (
    "many pods of the namespace fetch programs at once; this one tries again until it is its turn"
)


async def _looked_up(bus: Bus, namespace: str, digest: str) -> tuple[bytes | None, str]:
    """The program; or None, and why. Raises `BucketBusy`, which says nothing about the program."""
    try:
        async with asyncio.timeout(FETCH_S):
            body = await _stored(bus, namespace, digest)
    except programs.ProgramTooLarge:
        return None, f"what the store has under {digest} is larger than {LARGEST_PROGRAM:,} bytes"
    except TimeoutError:
        return None, f"the store did not give {digest} within {FETCH_S:g} s"
    except WRONG as error:
        return None, f"the store has no {digest}: {error!r}"
    found = digest_of(body)
    if found == digest:
        return body, ""
    return (
        None,
        f"what the store has under {digest} is something else, of {len(body)} bytes and the digest {found}",
    )


async def _answers(bus: Bus, namespace: str, digest: str) -> bool:
    """Return whether the bus answers at all; a try that failed while it did not says nothing about
    the program.
    """
    try:
        async with asyncio.timeout(ANSWER_S):
            await programs.read_description(bus, namespace, digest)
    except TimeoutError:
        return False
    except WRONG as error:
        return not is_outage(error)
    return True


async def _stored(bus: Bus, namespace: str, digest: str) -> bytes:
    """Return what lies under this name, as soon as the bus is there."""
    while True:
        try:
            return await programs.read_program(bus, namespace, digest, LARGEST_PROGRAM)
        except programs.BucketBusy:
            raise
        except (NatsError, *WRONG) as error:
            if not is_outage(error):
                raise
            logger.warning("FetchWaits", digest=digest, error=repr(error))
            await asyncio.sleep(AGAIN_S)
