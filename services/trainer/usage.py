"""What a pod uses: CPU seconds and resident memory of all its processes, and how long they waited for a core.

A thread that could run and does not, waits: its group has used up its quota, or others have the machine. So what is
waited tells a task that has too little CPU from one that has little to do, whoever it is that takes it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import psutil

from shared.messages import TaskUsage

GIB = 1 << 30
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
