"""What a pod uses: CPU seconds and resident memory of all its processes, and how long they waited for a core.

A thread that could run and does not, waits: its group has used up its quota, or others have the machine. So what is
waited tells a task that has too little CPU from one that has little to do, whoever it is that takes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil

from shared.messages import TaskUsage

GIB = 1 << 30
NO_LIMIT = 1 << 60  # bytes; a group of version 1 without a limit has the most that there are
GROUPS, MINE = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
SAMPLES = msgspec.json.Decoder(TaskUsage)


def sample_of(body: bytes) -> TaskUsage | None:
    """What another pod says that it uses; None for what is nothing of the kind: anybody may speak on that subject."""
    try:
        return SAMPLES.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class Seconds(msgspec.Struct, frozen=True):
    """Of all processes of a pod since they began: on a core, and waiting for one (0 where the machine does not say)."""

    used: float
    waited: float


class Use:
    """Since the last look, mean cores and mean threads that waited for one; and GiB now (shared pages count once)."""

    def __init__(self) -> None:
        self._root = psutil.Process()
        self._before = self._seconds()

    def look(self, elapsed_s: float) -> tuple[float, float, float]:
        now, before = self._seconds(), self._before
        self._before = now
        used, waited = now.used - before.used, now.waited - before.waited
        return max(used, 0.0) / max(elapsed_s, 1e-6), max(waited, 0.0) / max(elapsed_s, 1e-6), self.memory()

    def _all(self) -> list[psutil.Process]:
        return [self._root, *self._root.children(recursive=True)]

    def _seconds(self) -> Seconds:
        used = waited = 0.0
        for process in self._all():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                used += times.user + times.system
                waited += waited_s(process.pid)
        return Seconds(used, waited)

    def memory(self) -> float:
        total = 0
        for process in self._all():
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total / GIB


def waited_s(pid: int) -> float:
    """Seconds that the threads of a process stood ready without a core, by the kernel's scheduler statistics.

    The second number of each thread's `schedstat`, in nanoseconds; 0 where there is no such file.
    """
    total = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += int(thread.read_text().split()[1])
    return total / 1e9


def spare(limit_gib: float, child: int | None) -> float | None:
    """GiB left in the pod beside a second child as large as this one; 0 where that cannot be seen; None: no limit."""
    if not limit_gib:
        return None
    if child is not None:
        with contextlib.suppress(psutil.Error):
            return limit_gib - Use().memory() - float(psutil.Process(child).memory_full_info().uss) / GIB
    return 0.0


def limit_gib(set_gib: float, groups: Path = GROUPS, mine: Path = MINE) -> float:
    """The memory that this process' control group has now, which may have been changed in place; else as it was set.

    The group is looked for by its path, and, in a container that sees only its own, at the top.
    """
    for path in (*_of_memory(groups, mine), groups / "memory.max", groups / "memory" / "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such file; or it says `max`
            limit = int(path.read_text())
            return limit / GIB if limit < NO_LIMIT else set_gib
    return set_gib


def _of_memory(groups: Path, mine: Path) -> Iterator[Path]:
    """Each line is `<number>:<controllers>:<path>`; of version 2 there is one, without controllers."""
    with contextlib.suppress(OSError):
        for line in mine.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield groups / path.lstrip("/") / "memory.max"
            elif "memory" in controllers.split(","):
                yield groups / "memory" / path.lstrip("/") / "memory.limit_in_bytes"


def lacks_room(limit_gib: float, child: int | None) -> str | None:
    """Why a second child as large as this one does not fit into the pod; None where it does, or no limit is known."""
    if not limit_gib or child is None:
        return None
    with contextlib.suppress(psutil.Error):
        own = psutil.Process(child).memory_full_info().uss / GIB
        now = Use().memory()
        if now + own > limit_gib:
            return (
                f"{now:.2f} GiB are in use and a second child takes {own:.2f} GiB more than the limit of {limit_gib:g}"
            )
    return None
