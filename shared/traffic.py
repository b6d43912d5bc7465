"""What went over the bus, counted. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from shared.metrics import Family, Measure, Meter
from shared.subjects import FACTS, ORDERS

PUBLISHED = Family(
    name="weir_bus_messages_published_total",
    kind="counter",
    help="Messages that the server has, by what they say.",
    labels=("fact",),
)
HEARD = Family(
    name="weir_bus_messages_heard_total",
    kind="counter",
    help="Messages that were read and dealt with, by what they say; those that are replayed at the start, too.",
    labels=("fact",),
)
BURIED = Family(
    name="weir_bus_dead_letters_total",
    kind="counter",
    help="Messages that nobody could use, by the stream that holds them.",
    labels=("stream",),
)
NEWER = Family(
    name="weir_bus_messages_newer_total",
    kind="counter",
    help="Messages of a newer version's services that this version does not know, and passed over, by what they say.",
    labels=("fact",),
)
WAITING = Family(
    name="weir_bus_messages_waiting",
    kind="gauge",
    help="Messages that were said in vain at least once, or wait behind one that was; the server has none of them yet.",
)
CONNECTED = Family(
    name="weir_bus_connected",
    kind="gauge",
    help="1 while there is a connection to the bus, else 0.",
)
AGAIN = Family(
    name="weir_bus_reconnects_total",
    kind="counter",
    help="Connections that took the place of a lost one.",
)


class Traffic:
    def __init__(self) -> None:
        self.published = Meter(PUBLISHED)
        self.heard = Meter(HEARD)
        self.newer = Meter(NEWER)
        self.buried = Meter(BURIED, [(stream,) for stream in (ORDERS, FACTS)])

    def measures(self, connected: bool, reconnects: int, waiting: int) -> Iterable[Measure]:
        counted = (
            meter.measure() for meter in (self.published, self.heard, self.newer, self.buried)
        )
        numbers = {CONNECTED: float(connected), AGAIN: float(reconnects), WAITING: float(waiting)}
        return (*counted, *(Measure(family, {(): number}) for family, number in numbers.items()))
