"""What a pod uses: CPU seconds and resident memory of all its processes, and how long they waited
for a core.

A thread that could run and does not, waits: its group has used up its quota, or others have the
machine. So what is waited tells a task that has too little CPU from one that has little to do,
whoever it is that takes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import psutil

from shared.messages import TaskUsage

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
