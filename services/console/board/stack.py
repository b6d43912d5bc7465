"""Who held the cluster's cores over time: the cluster's series and the jobs', read at even times.
Pure.

What is between two points of a series of steps is as the earlier one says. allocatable = jobs +
others + free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from services.console.board.board import Board
from services.console.board.nodes import Totals
from services.console.board.series import P
from services.console.board.story import Story

COLUMNS, NAMED = 120, 7
"""Times that are read; jobs that are told by name: those that held most. There are as many
colours.
"""


class Band(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Cores held by a job's pods (`<namespace>.<job>`) at each time."""

    job: str
    cores: tuple[float, ...]


class Stack(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """At each of `times`, cores: of the `jobs` that held most, of all other jobs of ours, of
    others, free, allocatable; `used`: measured use of our tasks, which is part of what jobs
    hold.
    """

    times: tuple[float, ...] = ()
    jobs: tuple[Band, ...] = ()
    rest: tuple[float, ...] = ()
    others: tuple[float, ...] = ()
    free: tuple[float, ...] = ()
    allocatable: tuple[float, ...] = ()
    used: tuple[float, ...] = ()


def stack(board: Board, from_s: float, to_s: float) -> Stack:
    """From then, or from when the first node was heard of, whichever is later."""
    if not board.cluster or to_s <= (begins := max(from_s, board.cluster[0].at_s)):
        return Stack()
    times = [begins + (to_s - begins) * column / (COLUMNS - 1) for column in range(COLUMNS)]
    totals = [point or Totals() for point in sampled(board.cluster, times)]
    named = _most(board.jobs.values(), times)
    sums = [sum(column) for column in zip(*(band.cores for band in named), strict=True)] or [
        0.0
    ] * COLUMNS
    return Stack(
        times=tuple(times),
        jobs=tuple(named),
        rest=tuple(max(round(t.ours - held, 6), 0.0) for t, held in zip(totals, sums, strict=True)),
        others=tuple(t.others for t in totals),
        free=tuple(t.free for t in totals),
        allocatable=tuple(t.allocatable for t in totals),
        used=tuple(t.used for t in totals),
    )


def sampled(points: Sequence[P], times: Sequence[float]) -> list[P | None]:
    """The last point up to each time; None before the first. Both rise."""
    found: list[P | None] = []
    reached = 0
    for at_s in times:
        while reached < len(points) and points[reached].at_s <= at_s:
            reached += 1
        found.append(points[reached - 1] if reached else None)
    return found


def _most(stories: Iterable[Story], times: Sequence[float]) -> list[Band]:
    """Those that held most over these times, the largest first."""
    bands = [
        _band(one, times)
        for one in stories
        if one.held and (one.held_cpu or one.held[-1].at_s > times[0])
    ]
    return sorted(
        (band for band in bands if any(band.cores)), key=lambda b: (-sum(b.cores), b.job)
    )[:NAMED]


def _band(story: Story, times: Sequence[float]) -> Band:
    return Band(
        job=story.key,
        cores=tuple(point.cpu if point else 0.0 for point in sampled(story.held, times)),
    )
