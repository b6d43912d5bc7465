"""What is measured, and how it is told: in Prometheus' text format, version 0.0.4. Pure.

Law: units are base units (seconds, bytes, cores); a name begins with `weir_` and ends with its
unit, and with `_total` where the number only rises. Labels are bounded: no job, pod or node is one,
so that no series outlives what it was about. What happens is counted as plain numbers where it
happens, and put into words when somebody asks.

What went over the bus, counted. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Literal

import msgspec

from shared.bus.subjects import FACTS, ORDERS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[str, ...]


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """What one number means. `labels`: their names; `bounds`: upper ends of a histogram's buckets,
    each included.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: Labels = ()
    bounds: tuple[float, ...] = ()


class Histogram(msgspec.Struct, frozen=True):
    """How many were at most each bound, and above the bound before; the last counts what was above
    all of them.
    """

    counts: tuple[int, ...]
    sum: float = 0.0


class Measure(msgspec.Struct, frozen=True):
    """A family with its numbers, by the values of its labels."""

    family: Family
    series: Mapping[Labels, float | Histogram]


class Meter:
    """A family whose numbers are counted as things happen.

    `known`: labels of a counter that are told as 0 before anything happened, because whoever asks
    how much a number has risen must have seen it before; without labels there is one such series.
    """

    def __init__(self, family: Family, known: Iterable[Labels] = ()) -> None:
        self.family = family
        alone = [()] if family.kind == "counter" and not family.labels else []
        self.counts: dict[Labels, float] = dict.fromkeys([*known, *alone], 0.0)
        self.histograms: dict[Labels, Histogram] = {}

    def count(self, *labels: str, by: float = 1) -> None:
        self.counts[labels] = self.counts.get(labels, 0) + by

    def observe(self, value: float, *labels: str) -> None:
        empty = Histogram((0,) * (len(self.family.bounds) + 1))
        self.histograms[labels] = observed(
            self.histograms.get(labels, empty), value, self.family.bounds
        )

    def measure(self) -> Measure:
        return Measure(self.family, {**self.counts, **self.histograms})


def observed(histogram: Histogram, value: float, bounds: tuple[float, ...]) -> Histogram:
    """One more value."""
    counts = list(histogram.counts)
    counts[bisect_left(bounds, value)] += 1
    return Histogram(tuple(counts), histogram.sum + value)


# ---------------------------------------------------------------- in words


def format_metrics(measures: Iterable[Measure]) -> str:
    return "".join(f"{line}\n" for measure in measures for line in _lines(measure))


def _lines(measure: Measure) -> Iterator[str]:
    family = measure.family
    yield f"# HELP {family.name} {family.help}"
    yield f"# TYPE {family.name} {family.kind}"
    for values, number in sorted(measure.series.items()):
        labels = dict(zip(family.labels, values, strict=True))
        if isinstance(number, Histogram):
            yield from _buckets(family, labels, number)
        else:
            yield f"{family.name}{_braced(labels)} {float(number)}"


def _buckets(family: Family, labels: Mapping[str, str], histogram: Histogram) -> Iterator[str]:
    """Each counts what is at most its bound, so the ones before, too."""
    ends = [*(str(float(bound)) for bound in family.bounds), "+Inf"]
    counts = list(accumulate(histogram.counts))
    for end, count in zip(ends, counts, strict=True):
        yield f"{family.name}_bucket{_braced({**labels, 'le': end})} {count}"
    yield f"{family.name}_sum{_braced(labels)} {histogram.sum}"
    yield f"{family.name}_count{_braced(labels)} {counts[-1]}"


def _braced(labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


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
RECONNECTS = Family(
    name="weir_bus_reconnects_total",
    kind="counter",
    help="Connections that took the place of a lost one.",
)


class BusTraffic:
    def __init__(self) -> None:
        self.published = Meter(PUBLISHED)
        self.heard = Meter(HEARD)
        self.newer = Meter(NEWER)
        self.buried = Meter(BURIED, [(stream,) for stream in (ORDERS, FACTS)])

    def measures(self, connected: bool, reconnects: int, waiting: int) -> Iterable[Measure]:
        counted = (
            meter.measure() for meter in (self.published, self.heard, self.newer, self.buried)
        )
        numbers = {
            CONNECTED: float(connected),
            RECONNECTS: float(reconnects),
            WAITING: float(waiting),
        }
        return (*counted, *(Measure(family, {(): number}) for family, number in numbers.items()))
