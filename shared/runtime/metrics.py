"""Metrics: named families, and the numbers that a service counts; and the health of a service.

Law: units are base units (seconds, bytes, cores); a name begins with `weir_` and ends with its
unit, and with `_total` if the number only rises. Labels are bounded: no job, pod or node is one, so
that no series outlives its object. Events are counted as plain numbers; `http_server.py` converts
them for Prometheus at each scrape.

`Health` has the conditions that a service needs to be ready, and its sources of metrics. Each part
of a service adds its own at the start; `http_server.py` publishes them. A service is alive also
while its bus is away: to restart it would not help.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from shared.bus.subjects import FACTS, ORDERS

Labels = tuple[str, ...]


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """The definition of a metric. `labels`: the names of its labels; `bounds`: the upper bounds of
    a histogram's buckets, inclusive.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: Labels = ()
    bounds: tuple[float, ...] = ()


class Histogram(msgspec.Struct, frozen=True):
    """Observations of one family. `counts`: those in each bucket, not cumulative; the last one is
    above all bounds.
    """

    counts: tuple[int, ...]
    sum: float = 0.0


class Measure(msgspec.Struct, frozen=True):
    """A family with its numbers, by the values of its labels."""

    family: Family
    series: Mapping[Labels, float | Histogram]


class Meter:
    """Counts events of one family.

    `known`: label values for which a counter is 0 before the first event, because Prometheus can
    only compute the increase of a series that it has seen. A counter without labels has one such
    series.
    """

    def __init__(self, family: Family, known: Iterable[Labels] = ()) -> None:
        self.family = family
        alone = [()] if family.kind == "counter" and not family.labels else []
        self.counts: dict[Labels, float] = dict.fromkeys([*known, *alone], 0.0)
        self.histograms: dict[Labels, Histogram] = {}

    def count(self, *labels: str, by: float = 1) -> None:
        self.counts[labels] = self.counts.get(labels, 0) + by

    def observe(self, value: float, *labels: str) -> None:
        bounds = self.family.bounds
        before = self.histograms.get(labels, Histogram((0,) * (len(bounds) + 1)))
        counts = list(before.counts)
        counts[bisect_left(bounds, value)] += 1
        self.histograms[labels] = Histogram(tuple(counts), before.sum + value)

    def measure(self) -> Measure:
        return Measure(self.family, {**self.counts, **self.histograms})


# ---------------------------------------------------------------- the bus

PUBLISHED = Family(
    name="weir_bus_messages_published_total",
    kind="counter",
    help="Messages that the server has stored, by kind.",
    labels=("fact",),
)
HEARD = Family(
    name="weir_bus_messages_heard_total",
    kind="counter",
    help="Messages that were read and handled, by kind, including those read again at a start.",
    labels=("fact",),
)
BURIED = Family(
    name="weir_bus_dead_letters_total",
    kind="counter",
    help="Messages that could not be read or used, by stream.",
    labels=("stream",),
)
NEWER = Family(
    name="weir_bus_messages_newer_total",
    kind="counter",
    help="Messages of a newer version that this version does not know and ignored, by kind.",
    labels=("fact",),
)
WAITING = Family(
    name="weir_bus_messages_waiting",
    kind="gauge",
    help=(
        "Messages that are not stored yet: a first try failed, or they wait behind such a message."
    ),
)
CONNECTED = Family(
    name="weir_bus_connected",
    kind="gauge",
    help="1 while there is a connection to the bus, else 0.",
)
RECONNECTS = Family(
    name="weir_bus_reconnects_total",
    kind="counter",
    help="Reconnections after a lost connection.",
)


class BusTraffic:
    """Counts the messages of one connection."""

    def __init__(self) -> None:
        self.published = Meter(PUBLISHED)
        self.heard = Meter(HEARD)
        self.newer = Meter(NEWER)
        self.buried = Meter(BURIED, [(stream,) for stream in (ORDERS, FACTS)])

    def measures(self, connected: bool, reconnects: int, waiting: int) -> list[Measure]:
        return [
            self.published.measure(),
            self.heard.measure(),
            self.newer.measure(),
            self.buried.measure(),
            Measure(CONNECTED, {(): float(connected)}),
            Measure(RECONNECTS, {(): float(reconnects)}),
            Measure(WAITING, {(): float(waiting)}),
        ]


# ---------------------------------------------------------------- the health of a service

Condition = Callable[[], bool]
Source = Callable[[], Iterable[Measure]]

STARTED = "its start"
"""A condition of every service: met after its start, and while it stands by."""


class Health:
    def __init__(self) -> None:
        self.conditions: dict[str, Condition] = {}
        self.sources: dict[str, Source] = {}

    def require(self, what: str, met: Condition) -> None:
        """Add a condition for readiness. It replaces an earlier one of the same name."""
        self.conditions[what] = met

    def add_source(self, whose: str, source: Source) -> None:
        """Add a source of metrics, read at each scrape. No two sources may share a family."""
        self.sources[whose] = source

    def unmet(self) -> list[str]:
        """Return the conditions that are not met; the service is ready if there are none."""
        return [what for what, met in self.conditions.items() if not met()]

    def measures(self) -> list[Measure]:
        return [measure for source in self.sources.values() for measure in source()]
