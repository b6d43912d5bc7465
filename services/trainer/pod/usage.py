"""What a pod uses: CPU seconds and resident memory of all its processes, and how long they waited
for a core.

A thread that could run and does not, waits: its group has used up its quota, or others have the
machine. So what is waited tells a task that has too little CPU from one that has little to do,
whoever it is that takes it.

What pods use, told to their chief: over the bus' plain side, because only the newest value
matters. Edge.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import psutil
import structlog
from nats.aio.msg import Msg

from services.trainer.protocol import Room
from services.trainer.settings import Settings
from shared.auth.permissions import USAGE
from shared.bus.bus import Bus
from shared.messages import ClusterSpecPublished, TaskUsage, task_name

GIB = 1 << 30
NO_LIMIT = 1 << 60  # bytes; a group of version 1 without a limit has the most that there are
GROUPS, MINE = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
SAMPLES = msgspec.json.Decoder(TaskUsage)


def sample_of(body: bytes) -> TaskUsage | None:
    """What another pod says that it uses; None for what is nothing of the kind: anybody may speak
    on that subject.
    """
    try:
        return SAMPLES.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


Thread = tuple[int, int]
"""Its process, and its own number."""


class Spent(msgspec.Struct, frozen=True):
    """What a thread has spent since it began, in seconds: on a core, and ready without one."""

    used: float
    waited: float


NOTHING = Spent(0.0, 0.0)


class Look(msgspec.Struct, frozen=True):
    """What a pod used between two looks, and holds now.

    `cpu`: mean cores; `waited`: mean threads that stood ready without a core; `busy`: the share of
    the time in which its busiest thread ran or stood ready; `memory_gib`: shared pages count once.
    """

    cpu: float
    waited: float
    busy: float
    memory_gib: float


class Use:
    """What this process and its children use from look to look."""

    def __init__(self) -> None:
        here = family()
        self._before = cores_s(here), threads(here)

    def look(self, elapsed_s: float) -> Look:
        here = family()
        (used_s, before), (now_s, now) = self._before, (cores_s(here), threads(here))
        self._before = now_s, now
        since = [
            (spent.used - old.used, spent.waited - old.waited) for spent, old in _pairs(now, before)
        ]
        elapsed_s = max(elapsed_s, 1e-6)
        return Look(
            cpu=max(now_s - used_s, 0.0) / elapsed_s,
            waited=sum(waited for _, waited in since) / elapsed_s,
            busy=min(1.0, max((used + waited for used, waited in since), default=0.0) / elapsed_s),
            memory_gib=memory_gib(here),
        )


def family() -> list[psutil.Process]:
    """This process and all that came of it; who asks walks through all processes of the machine."""
    root = psutil.Process()
    return [root, *root.children(recursive=True)]


def cores_s(processes: Iterable[psutil.Process]) -> float:
    """CPU seconds, with those of threads that have ended."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def threads(processes: Iterable[psutil.Process]) -> dict[Thread, Spent]:
    found = dict[Thread, Spent]()
    for process in processes:
        found |= spent(process.pid)
    return found


def memory_gib(processes: Iterable[psutil.Process]) -> float:
    """Shared pages count once."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total / GIB


def _pairs(now: dict[Thread, Spent], before: dict[Thread, Spent]) -> Iterator[tuple[Spent, Spent]]:
    """Each thread now and at the last look. A number that was given to another thread since begins
    anew.
    """
    for thread, spent in now.items():
        old = before.get(thread, NOTHING)
        yield spent, old if old.used <= spent.used and old.waited <= spent.waited else NOTHING


def spent(pid: int) -> dict[Thread, Spent]:
    """Of each thread of a process, by the kernel's scheduler statistics: the first two numbers of
    its `schedstat`, in nanoseconds. None of a process that is gone, or where there are no such
    files.
    """
    found = {}
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError):
            used, waited, *_ = map(int, thread.read_text().split())
            found[pid, int(thread.parent.name)] = Spent(used / 1e9, waited / 1e9)
    return found


def spare(limit_gib: float, child: int | None) -> float | None:
    """GiB left in the pod beside a second child as large as this one; 0 where that cannot be seen;
    None: no limit.
    """
    if not limit_gib:
        return None
    if child is not None:
        with contextlib.suppress(psutil.Error):
            return (
                limit_gib
                - memory_gib(family())
                - float(psutil.Process(child).memory_full_info().uss) / GIB
            )
    return 0.0


def limit_gib(set_gib: float, groups: Path = GROUPS, mine: Path = MINE) -> float:
    """The memory that this process' control group has now, which may have been changed in place;
    else as it was set.

    The group is looked for by its path, and, in a container that sees only its own, at the top.
    """
    for path in (
        *_of_memory(groups, mine),
        groups / "memory.max",
        groups / "memory" / "memory.limit_in_bytes",
    ):
        with contextlib.suppress(OSError, ValueError):  # no such file; or it says `max`
            limit = int(path.read_text())
            return limit / GIB if limit < NO_LIMIT else set_gib
    return set_gib


def _of_memory(groups: Path, mine: Path) -> Iterator[Path]:
    """Each line is `<number>:<controllers>:<path>`; of version 2 there is one, without
    controllers.
    """
    with contextlib.suppress(OSError):
        for line in mine.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield groups / path.lstrip("/") / "memory.max"
            elif "memory" in controllers.split(","):
                yield groups / "memory" / path.lstrip("/") / "memory.limit_in_bytes"


def lacks_room(limit_gib: float, child: int | None) -> str | None:
    """Why a second child as large as this one does not fit into the pod; None where it does, or no
    limit is known.
    """
    if not limit_gib or child is None:
        return None
    with contextlib.suppress(psutil.Error):
        own = psutil.Process(child).memory_full_info().uss / GIB
        now = memory_gib(family())
        if now + own > limit_gib:
            return f"{now:.2f} GiB are in use and a second child takes {own:.2f} GiB more than the limit of {limit_gib:g}"
    return None


logger = structlog.get_logger()


class Meter:
    """Every pod `measure`s and tells; a chief also `collect`s. `usage`: the newest of each task, by
    its name.

    `child`: the process of the generation that runs in this pod.
    """

    def __init__(
        self, bus: Bus, settings: Settings, child: Callable[[], int | None] = lambda: None
    ) -> None:
        self.bus = bus
        self.settings = settings
        self.child = child
        self.subject = f"{USAGE}.{settings.namespace}.{settings.job}.{settings.uid}"
        self.usage: dict[str, TaskUsage] = {}
        self.complained = False

    async def measure(self) -> None:
        use, name = Use(), task_name(self.settings.role, self.settings.serial)
        while True:
            await asyncio.sleep(self.settings.usage_s)
            look = await asyncio.to_thread(use.look, self.settings.usage_s)
            limit = await asyncio.to_thread(limit_gib, self.settings.memory_gib)
            left = await asyncio.to_thread(spare, limit, self.child())
            rounded = {key: round(value, 3) for key, value in msgspec.structs.asdict(look).items()}
            sample = TaskUsage(task=name, **rounded, spare_gib=left)
            if self.bus.client.is_connected:  # what is old when the bus is back is of no use
                await self.bus.client.publish(self.subject, msgspec.json.encode(sample))

    async def collect(self) -> None:
        await self.bus.client.subscribe(self.subject, cb=self.on_usage)

    def of(self, spec: ClusterSpecPublished) -> tuple[TaskUsage, ...]:
        """What the tasks of a generation use: the last word of a task that is gone says nothing of
        it.
        """
        names = {task.pod.removeprefix(f"{spec.job}-") for task in spec.tasks}
        return tuple(sample for name, sample in self.usage.items() if name in names)

    async def on_usage(self, raw: Msg) -> None:
        """Plain messages only: a server's answers, which one may have sent here, have headers or
        other subjects.
        """
        plain = raw.subject == self.subject and not raw.headers
        sample = sample_of(raw.data) if plain else None
        if sample is not None:
            self.usage[sample.task] = sample
        elif not self.complained:
            self.complained = True
            logger.warning(
                "OddUsage", subject=raw.subject, body=raw.data[:200].decode("utf-8", "replace")
            )


def memory_headroom(spec: ClusterSpecPublished, usage: Mapping[str, TaskUsage]) -> Room | None:
    """Return how much memory the fullest ps of a generation has left beside a second child.

    Return None while a ps has not reported its usage yet.
    """
    names = [task_in_job(task.pod) for task in spec.tasks if task.role == "ps"]
    if any(name not in usage for name in names):
        return None
    spare = [usage[name].spare_gib for name in names]
    limited = [gib for gib in spare if gib is not None]
    return Room(gib=min(limited, default=None))


def task_in_job(pod: str) -> str:
    """Return the name of a pod `<job>-<role>-<serial>` without the job."""
    return "-".join(pod.split("-")[-2:])
