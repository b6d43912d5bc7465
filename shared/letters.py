"""How many dead letters there ever were, whoever buried them. Edge.

Services count their own, but nobody asks a trainer. Each letter has a number in its stream, and
numbers are never used again: so the last one counts them all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from nats.errors import Error as NatsError

from shared.bus import Bus
from shared.metrics import Family, Measure
from shared.subjects import DEAD

COUNT_S = 15.0
"""As often as Prometheus usually asks."""
LETTERS = Family(
    name="weir_dead_letters_total",
    kind="counter",
    help="Messages and entries that nobody could use, whoever buried them, trainers included.",
)


class Letters:
    """`number`: of the last one; None: not known yet, and nothing is told, for a number that jumps
    counts as many.
    """

    def __init__(self, number: int | None = None) -> None:
        self.number = number

    def measures(self) -> Iterable[Measure]:
        return [] if self.number is None else [Measure(LETTERS, {(): float(self.number)})]

    async def count(self, bus: Bus, every_s: float = COUNT_S) -> None:
        """For ever."""
        while True:
            with contextlib.suppress(
                NatsError, OSError
            ):  # the bus is away, say: then it is asked again
                self.number = (await bus.js.stream_info(DEAD)).state.last_seq
            await asyncio.sleep(every_s)
