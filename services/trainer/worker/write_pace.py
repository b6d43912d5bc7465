"""Spread the write of a checkpoint over time, so that training keeps its CPU time on the ps.

A write without rests uses up the CPU quota of a ps for as long as it takes, also where training
leaves a part of the quota unused. With rests between its blocks it takes that part.
"""

from __future__ import annotations

import threading

REST_RATIO = 3.0
"""The length of a rest, divided by the time that the block before it took."""


class WritePace:
    """The rests of one write. `most_s`: all of them together."""

    def __init__(self, most_s: float) -> None:
        self._left_s = most_s
        self._is_urgent = threading.Event()

    def rest(self, busy_s: float, blocks_left: int) -> None:
        """Wait after a block that took `busy_s` seconds, unless it was the last one or training
        waits for the write.
        """
        if blocks_left == 0:
            return
        rest_s = min(REST_RATIO * busy_s, self._left_s / blocks_left)
        self._left_s -= rest_s
        self._is_urgent.wait(rest_s)

    def end_rests(self) -> None:
        """Let the other blocks follow without rests: training waits for the write."""
        self._is_urgent.set()
