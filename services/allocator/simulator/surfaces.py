"""How fast a model really trains, between the points at which it was measured.

    v(batch, ps, workers)  [samples/s];  without ps: v(batch, workers)

Each axis is taken as its logarithm, and so is v; the axes are read in the order above. Between two measured numbers
log v is linear. Outside what was measured:

    above the largest    the last slope where v falls, flat where it rises: what was not measured never gains
    below the smallest   in proportion: half the workers, half the speed; half the batch, the same seconds a step

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
    """One measured speed. `ps` = 0: devices side by side; `batch` is the global one."""

    ps: int
    workers: int
    batch: int
    samples_per_second: float


class Axis(msgspec.Struct, frozen=True):
    """Measured numbers (their logarithms, rising), and what was measured at each: log v, or the next axis."""

    at: tuple[float, ...]
    then: tuple[Axis | float, ...]


class Surface:
    """One model's true speeds. Each is worked out once."""

    def __init__(self, points: Iterable[Measured]) -> None:
        known = tuple(points)
        self.most_ps = max((p.ps for p in known), default=0)
        self.most_workers = max((p.workers for p in known), default=0)
        self.served = _axis([_row(p, p.batch, p.ps, p.workers) for p in known if p.ps])
        self.alone = _axis([_row(p, p.batch, p.workers) for p in known if not p.ps])
        self._asked: dict[tuple[int, int, float], float] = {}

    def speed(self, ps: int, workers: int, batch: float) -> float:
        """Samples a second; 0 without workers, and where the model was not measured in this form (with ps, without)."""
        asked = (ps, workers, batch)
        if asked not in self._asked:
            self._asked[asked] = self._speed(ps, workers, batch)
        return self._asked[asked]

    def _speed(self, ps: int, workers: int, batch: float) -> float:
        axis, at = (self.served, (batch, ps, workers)) if ps else (self.alone, (batch, workers))
        return exp(_read(axis, [log(n) for n in at])) if axis is not None and workers > 0 and batch > 0 else 0.0


def _row(point: Measured, *at: int) -> Row:
    return tuple(log(n) for n in at), log(point.samples_per_second)


def _axis(rows: Sequence[Row]) -> Axis | float | None:
    if not rows:
        return None
    if not rows[0][0]:
        return fmean(value for _, value in rows)
    grouped: dict[float, list[Row]] = {}
    for at, value in rows:
        grouped.setdefault(at[0], []).append((at[1:], value))
    thens = (_axis(grouped[x]) for x in sorted(grouped))
    return Axis(tuple(sorted(grouped)), tuple(then for then in thens if then is not None))


def _read(axis: Axis | float, at: Sequence[float]) -> float:
    """log v at a point."""
    if isinstance(axis, float):
        return axis
    x, rest = at[0], at[1:]
    above = bisect_right(axis.at, x)
    if above == 0:
        return _read(axis.then[0], rest) + x - axis.at[0]
    if above == len(axis.at):
        return _beyond(axis, x, rest)
    return _read(axis.then[above - 1], rest) + _slope(axis, above, rest) * (x - axis.at[above - 1])


def _beyond(axis: Axis, x: float, rest: Sequence[float]) -> float:
    last = len(axis.at) - 1
    falling = min(0.0, _slope(axis, last, rest)) if last else 0.0
    return _read(axis.then[last], rest) + falling * (x - axis.at[last])


def _slope(axis: Axis, above: int, rest: Sequence[float]) -> float:
    """Of log v over the logarithm of this axis, between a measured number and the one before."""
    rise = _read(axis.then[above], rest) - _read(axis.then[above - 1], rest)
    return rise / (axis.at[above] - axis.at[above - 1])
