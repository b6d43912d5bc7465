"""Perform the decided actions on children: start each, send it orders, end it.

It does not judge exits. Events of a child, and its own exit, go into the queue of events.

The program is fetched once, by digest, and used only if its bytes have that digest and are not too
large. The store does not check that the bytes under a name have that digest: a handwritten request
may name something else. The size in the store is the sender's claim, so no more than the limit is
read. The file has the name from the request, without folders; an archive is checked and unpacked.
Each try reads the program's description again, so that a program that is stored again meanwhile is
found.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace
from nats.errors import Error as NatsError
from nats.js.errors import APIError

from services.trainer.pod.children import Child, ForkServer
from services.trainer.pod.fence import Fence
from services.trainer.pod.publisher import last_progress
from services.trainer.pod.state_machine import (
    ChildAssigned,
    ChildEventReceived,
    ChildExited,
    ChildNotStarted,
    Event,
    PutEvent,
    SpawnChild,
)
from services.trainer.pod.supervise import (
    BeginChild,
    DrainChild,
    EndChild,
    ForChild,
    GoOnChild,
    ReadAheadChild,
    SaveChild,
    StartChild,
)
from services.trainer.pod.usage import memory_limit_gib, memory_shortage
from services.trainer.program import (
    ARCHIVE,
    BadProgram,
    program_digest,
    safe_file_name,
    write_program,
)
from services.trainer.program_archive import remove_folder
from services.trainer.protocol import (
    Assignment,
    Begin,
    CheckpointAvailable,
    ContinueTraining,
    Drain,
    Failed,
    Order,
    SaveNow,
)
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

ENDING_S = 5.0  # longer than a killed process needs to exit
ChildAction = ForChild | SpawnChild
CAP_SYS_NICE = 23
TRIES, AGAIN_S = 3, 0.5
BUSY_S = 2.0
"""Seconds between two tries while the bucket has its maximum of readers."""
FETCH_S = 60.0  # one try; for an object with a lost part the client would wait for ever
ANSWER_S = 2.0  # for an answer of a working bus
NOT_A_PROGRAM = (
    APIError,
    msgspec.DecodeError,
    ValueError,
    KeyError,
    TypeError,
    programs.NotProvisioned,
)
"""Errors of a read that returned no program."""
logger = structlog.get_logger()
BUSY_REMEDY = "many pods of the namespace fetch programs at once; this one retries"


class Executor:
    """The children of one pod, by generation. `ended`: the numbers of those that it ended."""

    def __init__(
        self,
        bus: Bus,
        settings: Settings,
        fence: Fence,
        folder: Path,
        fork_server: ForkServer | None,
        put_event: PutEvent,
    ) -> None:
        self.bus = bus
        self.settings = settings
        self.fence = fence
        self.folder = folder
        self.fork_server, self.put_event = fork_server, put_event
        self.children: dict[int, Child] = {}
        self.numbers: dict[int, int] = {}  # of the newest child of each generation
        self.ended: set[int] = set()
        self.spawned = 0
        self.ending: list[Child] = []  # may still run
        self.nice = settings.prepare_nice if may_raise_priority() else 0

    async def perform(self, action: ChildAction) -> Event | None:
        """Perform an action. Return the event that follows from it, if there is one."""
        match action:
            case StartChild(spec, fresh):
                return await self.start_child(spec, fresh)
            case SpawnChild(spec, assignment, fresh):
                self.spawn(spec, assignment, None if fresh else self.fork_server)
            case BeginChild(generation, path, chief):
                await self.begin_child(generation, path, chief)
            case ReadAheadChild(generation, path):
                self.send(generation, CheckpointAvailable(path=path))
            case DrainChild(generation, successor):
                self.send(generation, Drain(successor=successor))
            case SaveChild(generation):
                self.send(generation, SaveNow())
            case GoOnChild(generation):
                await self.fence.claim(generation, back=True)
                self.send(generation, ContinueTraining())
            case EndChild(generation):
                self.end_child(generation)
        return None

    # ------------------------------------------------------------ start

    async def start_child(self, spec: ClusterSpecPublished, fresh: bool) -> Event:
        """Prepare everything for a child. Return its assignment, or why it cannot start."""
        await self.wait_for_ports()
        if not fresh and (why := await self.memory_shortage(spec)):
            return ChildNotStarted(spec, why)
        try:
            assignment = await self.make_assignment(spec, fresh)
        except BadProgram as error:
            return ChildExited(spec, failure=Failed(cause=str(error)))
        return ChildAssigned(spec, assignment, fresh)

    async def wait_for_ports(self) -> None:
        """Wait until ended children are gone: each holds a port that the next generation but one
        needs.
        """
        leaving, self.ending = self.ending, []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDING_S):
                await asyncio.gather(*(child.gone.wait() for child in leaving))

    async def memory_shortage(self, spec: ClusterSpecPublished) -> str | None:
        """Return why two children do not fit side by side. The job then stops and starts again."""
        running = self.children.get(max(self.children, default=-1))
        limit = await asyncio.to_thread(memory_limit_gib, self.settings.memory_gib)
        why = await asyncio.to_thread(memory_shortage, limit, running.pid if running else None)
        return why and f"{NOT_ENOUGH_MEMORY}: {why}"

    async def make_assignment(self, spec: ClusterSpecPublished, fresh: bool) -> Assignment:
        """Return the assignment of a new child. Raise `BadProgram` if its program cannot be
        fetched.
        """
        follows = spec.previous is not None or bool((await self.fence.refresh()).paths)
        program = await fetch_program(self.bus, spec.namespace, spec.request.program, self.folder)
        return child_assignment(
            spec, self.settings, str(program), fresh=fresh, follows=follows, nice=self.nice
        )

    def spawn(
        self, spec: ClusterSpecPublished, assignment: Assignment, fork_server: ForkServer | None
    ) -> None:
        self.spawned += 1
        number = self.spawned
        child = Child(
            assignment,
            fork_server,
            lambda event: self.put_event(ChildEventReceived(spec, event, number)),
            lambda: self.put_event(ChildExited(spec, number)),
        )
        self.children[spec.generation] = child
        self.numbers[spec.generation] = number
        self.bus.spawn(child.listen())

    # ------------------------------------------------------------ send, end

    async def begin_child(self, generation: int, path: str | None, chief: bool) -> None:
        """Let a child begin. A chief claims the fence first and restores a checkpoint of the
        ledger.

        A checkpoint is in the ledger before it is announced. So if the ledger names any, the
        announced one (`path`) is among them or older than them.
        """
        if not chief:
            return self.send(generation, Begin())
        entry, last = await asyncio.gather(
            self.fence.claim(generation), last_progress(self.bus, self.settings)
        )
        paths = entry.paths or ((path,) if path else ())
        begin = Begin(paths=paths, digests=entry.digests, samples=entry.samples, past=entry.past)
        self.send(
            generation,
            replace(begin, applied_step=last.step, applied_s=last.applied_s) if last else begin,
        )

    def send(self, generation: int, order: Order) -> None:
        """Send an order to a child. A child may have ended meanwhile; its exit is reported
        separately.
        """
        if generation in self.children:
            self.children[generation].send(order)

    def child_pids(self) -> list[int]:
        """Return the processes of the generations, that of the running one first."""
        children = [self.children[generation] for generation in sorted(self.children)]
        return [child.pid for child in children if child.pid is not None]

    def end_child(self, generation: int) -> None:
        child = self.children.pop(generation, None)
        if child is not None:
            child.end()
            self.ending.append(child)
            self.ended.add(self.numbers.pop(generation, -1))

    def forget_child(self, generation: int) -> None:
        """Forget a child that exited by itself."""
        self.children.pop(generation, None)

    async def close(self) -> None:
        """End every child and remove the folder of this pod."""
        for generation in list(self.children):
            self.end_child(generation)
        if self.fork_server is not None:
            self.fork_server.close()
        remove_folder(self.folder)


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


def child_assignment(
    spec: ClusterSpecPublished,
    settings: Settings,
    program: str,
    *,
    fresh: bool,
    follows: bool,
    nice: int,
) -> Assignment:
    """Return the assignment of this pod's child: its place in the generation and how to prepare.

    `follows`: the job has trained before. `nice`: niceness of a child that prepares beside a
    running one. A child that has nothing running beside it does not warm up: that would only
    lengthen the pause.
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
        noise_share=settings.noise_share,
        ps_gib=tuple([each.memory_gib for each in spec.tasks if each.role == "ps"]),
    )


async def fetch_program(bus: Bus, namespace: str, program: Program, folder: Path) -> Path:
    """Return the path of the program's file, of its entry if it has several. Raise `BadProgram` if
    the store has none of this digest after several tries, or if its archive cannot be used.
    """
    stored = folder / program.digest / safe_file_name(program.name)
    if program.entry:
        stored = folder / f"{program.digest}{ARCHIVE}"
    body = await asyncio.to_thread(_read_unchanged, stored, program.digest)
    if body is None:
        body = await _fetch_with_retries(bus, namespace, program)
    return await asyncio.to_thread(
        write_program, body, program.name, program.digest, program.entry, folder
    )


def _read_unchanged(path: Path, digest: str) -> bytes | None:
    """Return the content of a file if it has this digest."""
    if not path.is_file():
        return None
    body = path.read_bytes()
    return body if program_digest(body) == digest else None


async def _fetch_with_retries(bus: Bus, namespace: str, program: Program) -> bytes:
    why = ""
    tries = 0
    busy = RateLimitedWarning()
    while tries < TRIES:
        try:
            body, why = await _try_fetch(bus, namespace, program.digest)
        except programs.BucketBusy as error:
            busy.warn_error(
                "ProgramWaitsForOtherReaders", error, program=program.name, remedy=BUSY_REMEDY
            )
            await asyncio.sleep(BUSY_S)
            continue
        if body is not None:
            return body
        logger.warning("ProgramNotAsAskedFor", program=program.name, why=why)
        tries += await _bus_answers(bus, namespace, program.digest)
        await asyncio.sleep(AGAIN_S)
    raise BadProgram(f"{program.name} cannot be fetched: {why}")


async def _try_fetch(bus: Bus, namespace: str, digest: str) -> tuple[bytes | None, str]:
    """Return the program, or None and the reason. Raise `BucketBusy`, which says nothing about the
    program.
    """
    try:
        async with asyncio.timeout(FETCH_S):
            body = await _read_stored(bus, namespace, digest)
    except programs.ProgramTooLarge:
        return None, f"the object {digest} in the store is larger than {LARGEST_PROGRAM:,} bytes"
    except TimeoutError:
        return None, f"the store did not deliver {digest} within {FETCH_S:g} s"
    except NOT_A_PROGRAM as error:
        return None, f"the store has no {digest}: {error!r}"
    found = program_digest(body)
    if found == digest:
        return body, ""
    why = f"the store has something else under {digest}: {len(body)} bytes with the digest {found}"
    return None, why


async def _bus_answers(bus: Bus, namespace: str, digest: str) -> bool:
    """Return whether the bus answers at all. A failed try without an answer says nothing about the
    program.
    """
    try:
        async with asyncio.timeout(ANSWER_S):
            await programs.read_description(bus, namespace, digest)
    except TimeoutError:
        return False
    except NOT_A_PROGRAM as error:
        return not is_outage(error)
    return True


async def _read_stored(bus: Bus, namespace: str, digest: str) -> bytes:
    """Return the bytes under this name, as soon as the bus is available."""
    while True:
        try:
            return await programs.read_program(bus, namespace, digest, LARGEST_PROGRAM)
        except programs.BucketBusy:
            raise
        except (NatsError, *NOT_A_PROGRAM) as error:
            if not is_outage(error):
                raise
            logger.warning("FetchWaits", digest=digest, error=repr(error))
            await asyncio.sleep(AGAIN_S)
