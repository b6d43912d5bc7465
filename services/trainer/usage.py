"""What a pod uses: CPU seconds and resident memory of all its processes."""

from __future__ import annotations

import contextlib

import psutil

GIB = 1 << 30


class Use:
    """Mean cores since the last look, and GiB now (proportional: shared pages count once)."""

    def __init__(self) -> None:
        self._root = psutil.Process()
        self._seconds = self._cpu_seconds()

    def look(self, elapsed_s: float) -> tuple[float, float]:
        seconds = self._cpu_seconds()
        cores = max(seconds - self._seconds, 0.0) / max(elapsed_s, 1e-6)
        self._seconds = seconds
        return cores, self._memory()

    def _all(self) -> list[psutil.Process]:
        return [self._root, *self._root.children(recursive=True)]

    def _cpu_seconds(self) -> float:
        total = 0.0
        for process in self._all():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def _memory(self) -> float:
        total = 0
        for process in self._all():
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total / GIB
