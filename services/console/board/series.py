"""What grows for ever, kept short: points in time, thinned and never invented. Pure.

A series that is full loses about half of its points, those that lie close to others, so that what
stays is spread evenly over the whole time. What stays is as it was said; nothing is averaged and
nothing put between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

MOST = 512
"""Points of a series."""


class Timed(Protocol):
    @property
    def at_s(self) -> float: ...


P = TypeVar("P", bound=Timed)
T = TypeVar("T")


def added(points: tuple[P, ...], point: P, most: int = MOST) -> tuple[P, ...]:
    """With one more at its end; where that is too many, thinned to at most `most / 2 + 2`."""
    longer = (*points, point)
    return longer if len(longer) <= most else thinned(longer, most)


def thinned(points: tuple[P, ...], most: int) -> tuple[P, ...]:
    """The first, the last, and of those between such as are more than 2 / `most` of the whole time
    apart.
    """
    gap = 2 * (points[-1].at_s - points[0].at_s) / most
    kept = [points[0]]
    for point in points[1:-1]:
        if point.at_s - kept[-1].at_s > gap:
            kept.append(point)
    return (*kept, points[-1])


def newest(things: tuple[T, ...], thing: T, most: int) -> tuple[T, ...]:
    """With one more, the newest of them."""
    return (*things[-most + 1 :], thing) if len(things) >= most else (*things, thing)


def come(before: Sequence[T], after: Sequence[T]) -> Sequence[T] | None:
    """What came at the end since then; None where it was thinned meanwhile, or is another
    series.
    """
    if not before:
        return after
    same = (
        len(after) >= len(before) and after[len(before) - 1] is before[-1] and after[0] is before[0]
    )
    return after[len(before) :] if same else None


def at(points: Sequence[P], at_s: float) -> P | None:
    """The last point up to a time: what a series of steps was then."""
    return next((point for point in reversed(points) if point.at_s <= at_s), None)
