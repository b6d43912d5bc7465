"""The true speed of a model, between the points at which it was measured.

    v(batch, ps, workers)  [samples/s];  without ps: v(batch, workers)

Each axis is taken as its logarithm, and so is v; the axes are read in the order above. Between two
measured numbers log v is linear. Outside the measured range:

    above the largest    the last slope where v falls, flat where it rises: a size that was not
                         measured never gains
    below the smallest   in proportion: half the workers, half the speed; half the batch, the same
                         seconds a step

so v never exceeds the largest measured one. Measured twice, a point counts with its geometric mean.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from math import exp, log
from statistics import fmean

import msgspec

Row = tuple[tuple[float, ...], float]
"""A point: the logarithms of its coordinates, and of its speed."""


class Measured(msgspec.Struct, frozen=True):
    """One measured speed."""

    ps: int
    """0: devices side by side."""
    workers: int
    batch: int
    """The global one."""
    samples_per_second: float


class Axis(msgspec.Struct, frozen=True):
    """The measured numbers along one axis."""

    at: tuple[float, ...]
    """Their logarithms, rising."""
    then: tuple[Axis | float, ...]
    """At each of them log v, or the next axis."""


class Surface:
    """One model's true speeds."""

    def __init__(self, points: Iterable[Measured]) -> None:
        self.most_ps = 0
        self.most_workers = 0
        served: list[Row] = []
        alone: list[Row] = []
        for point in points:
            self.most_ps = max(self.most_ps, point.ps)
            self.most_workers = max(self.most_workers, point.workers)
            if point.ps:
                served.append(_row(point, point.batch, point.ps, point.workers))
            else:
                alone.append(_row(point, point.batch, point.workers))
        self.served = _axis(served)
        self.alone = _axis(alone)

    def speed(self, ps: int, workers: int, batch: float) -> float:
        """Return the samples a second.

        The speed is 0 without workers, and where the model was not measured in this form (with ps,
        or without).
        """
        if workers <= 0 or batch <= 0:
            return 0.0

        at: tuple[float, ...]
        if ps:
            axis = self.served
            at = (log(batch), log(ps), log(workers))
        else:
            axis = self.alone
            at = (log(batch), log(workers))
        if axis is None:
            return 0.0
        return exp(_read(axis, at))


# ---------------------------------------------------------------- axes


def _row(point: Measured, *at: int) -> Row:
    """Return a point of a surface; `at`: its coordinates."""
    place = tuple(map(log, at))
    return place, log(point.samples_per_second)


def _axis(rows: Sequence[Row]) -> Axis | float | None:
    """Return the first axis of the points, with the others below; log v, if there is no axis left.

    Return None without points.
    """
    if not rows:
        return None
    first_at, _ = rows[0]
    if not first_at:
        return fmean(value for _, value in rows)

    grouped = _grouped_rows(rows)
    numbers = sorted(grouped)
    thens = []
    for x in numbers:
        then = _axis(grouped[x])
        if then is not None:
            thens.append(then)
    return Axis(tuple(numbers), tuple(thens))


def _grouped_rows(rows: Sequence[Row]) -> dict[float, list[Row]]:
    """Return the points with each number of the first axis, without that number."""
    grouped: dict[float, list[Row]] = {}
    for at, value in rows:
        group = grouped.setdefault(at[0], [])
        group.append((at[1:], value))
    return grouped


def _read(axis: Axis | float, at: tuple[float, ...]) -> float:
    """Return log v at a point."""
    if isinstance(axis, float):
        return axis
    x = at[0]
    rest = at[1:]
    above = bisect_right(axis.at, x)
    if above == 0:
        return _read(axis.then[0], rest) + x - axis.at[0]
    if above == len(axis.at):
        return _beyond(axis, x, rest)

    below = above - 1
    from_value = _read(axis.then[below], rest)
    slope = _slope(axis, above, rest)
    return from_value + slope * (x - axis.at[below])


def _beyond(axis: Axis, x: float, rest: tuple[float, ...]) -> float:
    """Return log v above the largest number of an axis."""
    last = len(axis.at) - 1
    falling = 0.0
    if last:
        falling = min(0.0, _slope(axis, last, rest))
    largest = _read(axis.then[last], rest)
    return largest + falling * (x - axis.at[last])


def _slope(axis: Axis, above: int, rest: tuple[float, ...]) -> float:
    """Return d log v / d x between a measured number of an axis and the one before."""
    below = above - 1
    to_value = _read(axis.then[above], rest)
    from_value = _read(axis.then[below], rest)
    return (to_value - from_value) / (axis.at[above] - axis.at[below])
