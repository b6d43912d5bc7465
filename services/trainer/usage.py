"""What a pod uses: CPU seconds and resident memory of all its processes."""

from __future__ import annotations

import contextlib

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


class Use:
    """Mean cores since the last look, and GiB now (proportional: shared pages count once)."""

    def __init__(self) -> None:
        self._root = psutil.Process()
        self._seconds = self._cpu_seconds()

    def look(self, elapsed_s: float) -> tuple[float, float]:
        seconds = self._cpu_seconds()
        cores = max(seconds - self._seconds, 0.0) / max(elapsed_s, 1e-6)
        self._seconds = seconds
        return cores, self.memory()

    def _all(self) -> list[psutil.Process]:
        return [self._root, *self._root.children(recursive=True)]

    def _cpu_seconds(self) -> float:
        total = 0.0
        for process in self._all():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def memory(self) -> float:
        total = 0
        for process in self._all():
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total / GIB


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
