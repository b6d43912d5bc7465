"""What follows from a board by formula, what is new between two boards, and the use of cores over time.

share done       = examples applied / examples to apply
time left        = (examples to apply - applied) / examples a second, a mean of its reports (the newest counts most)
utilisation      = cores held by our tasks / allocatable cores;   of use: cores used / allocatable cores
memory share     = GiB held by our tasks / allocatable GiB;       of use: GiB used / allocatable GiB
speed            = examples between the first and the last report of a generation / the seconds between them
speed before     = the same, up to the last report before a decision: its preparation slows what trains
slowed by it     = (t2 - t1) - (n2 - n1) / speed before      [s], from that report to the last before the hand-over
CPU-hours        = sum of cores held x hours, pauses and waiting for images included
wasted           = examples that had been applied and were lost with what was not saved

Two boards are compared by identity: the parts of a board are frozen, and a part that has not changed
is the same object.

The use of cores is read at even times from the series of the cluster and of the jobs. Between two
points of a series the earlier one counts. allocatable = jobs + others + free.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from services.allocator.job_views import ENDED, JobView
from services.console.board import cluster as cluster_module
from services.console.board.board import Board
from services.console.board.cluster import Node, P, Totals
from services.console.board.job_history import Decision, GenerationSpan, JobHistory, Report

HOUR_S = 3600.0
BARS = 24
"""Points of a small curve beside a job's name."""


def share_done(view: JobView) -> float | None:
    """Of the examples, 0 to 1; None: not known how many there are."""
    return min(view.samples / view.total_samples, 1.0) if view.total_samples else None


def time_left_s(view: JobView) -> float | None:
    """Seconds to the end at the speed of late; None: it does not train, or has not said how
    fast.
    """
    speed = view.mean_samples_per_second or view.samples_per_second
    if is_ended(view) or not view.total_samples or speed <= 0:
        return None
    return max(view.total_samples - view.samples, 0) / speed


def is_ended(view: JobView) -> bool:
    return view.phase in ENDED.values()


def utilisation(totals: Totals) -> float | None:
    """Share of the cores that our tasks hold; None: there are none."""
    return totals.ours / totals.allocatable if totals.allocatable else None


def use(totals: Totals) -> float | None:
    """Share of the cores that our tasks use, as they last reported."""
    return totals.used / totals.allocatable if totals.allocatable else None


def memory_share(totals: Totals) -> float | None:
    """Share of the memory that our tasks hold; None: there is none."""
    return totals.ours_gib / totals.allocatable_gib if totals.allocatable_gib else None


def memory_use(totals: Totals) -> float | None:
    """Share of the memory that our tasks use, as they last reported."""
    return totals.used_gib / totals.allocatable_gib if totals.allocatable_gib else None


def generation_speed(stretch: GenerationSpan) -> float | None:
    """Examples a second while a generation trained; None where it did not report twice."""
    first, last = stretch.first, stretch.last
    if first is None or last is None or last.at_s <= first.at_s:
        return None
    return (last.samples - first.samples) / (last.at_s - first.at_s)


def core_seconds(story: JobHistory, now_s: float) -> float:
    """Held up to now; nothing more once it is over and its pods are gone."""
    since_s = story.held[-1].at_s if story.held else now_s
    return story.core_s + story.held_cpu * max(now_s - since_s, 0.0)


def cpu_hours(story: JobHistory, now_s: float) -> float:
    return core_seconds(story, now_s) / HOUR_S


def pauses_s(story: JobHistory) -> list[float]:
    """The known ones, oldest first."""
    return [stretch.pause_s for stretch in story.stretches if stretch.pause_s is not None]


def last_pause_s(story: JobHistory) -> float | None:
    """Where what was said of it is gone, as the allocator's stored state has it."""
    return next(reversed((*story.view.pauses, *pauses_s(story))), None)


def recent_losses(story: JobHistory, most: int = BARS) -> list[float]:
    """The last reported ones, oldest first."""
    return [report.loss for report in story.reports[-most:] if report.loss is not None]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision foresaw, and what came: the pause of the hand-over, speeds before the
    decision and after, and seconds of training that its preparation cost what trained meanwhile;
    None: not known, or it has not come (`abandoned` says why, where it will not). `applied`:
    examples, as last reported before the hand-over.
    """

    decision: Decision
    resumed_s: float | None = None
    pause_s: float | None = None
    before: float | None = None
    after: float | None = None
    slowed_s: float | None = None
    applied: int | None = None

    @property
    def reaction_s(self) -> float | None:
        """From the decision to its generation's first update."""
        return None if self.resumed_s is None else max(self.resumed_s - self.decision.at_s, 0.0)


def decision_outcomes(story: JobHistory) -> Iterable[Outcome]:
    """Of every decision that is known; of those of one generation (a change in place) the first
    began it.
    """
    trained = {stretch.generation: stretch for stretch in story.stretches}
    told: set[int] = set()
    for decision in story.decisions:
        came = trained.get(decision.generation)
        if came is None or decision.generation in told:
            yield Outcome(decision=decision)
            continue
        told.add(decision.generation)
        known = Outcome(
            decision=decision,
            resumed_s=came.resumed_s,
            pause_s=came.pause_s,
            after=generation_speed(came),
        )
        before = trained.get(came.previous) if came.previous is not None else None
        yield _since(known, before, _report_by(story, before, decision.at_s)) if before else known


def _since(known: Outcome, before: GenerationSpan, heard: Report | None) -> Outcome:
    """With what is known of the generation before. `heard`: its last report before the decision."""
    last, pace = before.last, _pace(before, heard)
    if last is None or heard is None or not pace:
        return replace(known, before=pace)
    slowed_s = (last.at_s - heard.at_s) - (last.samples - heard.samples) / pace
    return replace(known, before=pace, slowed_s=max(slowed_s, 0.0), applied=last.samples)


def _pace(stretch: GenerationSpan, heard: Report | None) -> float | None:
    """Examples a second up to then; of a single report, what it says itself."""
    if heard is None:
        return None
    return generation_speed(replace(stretch, last=heard)) or (
        heard.samples_per_second if heard == stretch.first else None
    )


def _report_by(story: JobHistory, stretch: GenerationSpan, at_s: float) -> Report | None:
    """The last one of a generation up to a time."""
    found = bisect_right(story.reports, at_s, key=lambda report: report.at_s)
    report = story.reports[found - 1] if found else None
    return report if report and report.generation == stretch.generation else None


def loss_curve(reports: Iterable[Report]) -> list[tuple[float, float]]:
    """Loss over time: seconds since 1970, and the mean over the examples since the report
    before.
    """
    return [(report.at_s, report.loss) for report in reports if report.loss is not None]


T = TypeVar("T")


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """`gone_*`: names that are there no more. A list that is None was thinned: take the board's
    own, whole.
    """

    nodes: tuple[Node, ...] = ()
    gone_nodes: tuple[str, ...] = ()
    jobs: tuple[JobHistory, ...] = ()
    gone_jobs: tuple[str, ...] = ()
    cluster: tuple[Totals, ...] | None = ()
    decisions: tuple[Decision, ...] = ()


NONE = Changes()


def board_changes(before: Board, after: Board) -> Changes:
    if before is after:
        return NONE
    cluster = cluster_module.appended_points(before.cluster, after.cluster)
    return Changes(
        nodes=_new(before.nodes, after.nodes),
        gone_nodes=_gone_jobs(before.nodes, after.nodes),
        jobs=_new(before.jobs, after.jobs),
        gone_jobs=_gone_jobs(before.jobs, after.jobs),
        cluster=None if cluster is None else tuple(cluster),
        decisions=_latest(before.decisions, after.decisions),
    )


def _new(before: Mapping[str, T], after: Mapping[str, T]) -> tuple[T, ...]:
    return (
        ()
        if before is after
        else tuple(one for name, one in after.items() if before.get(name) is not one)
    )


def _gone_jobs(before: Mapping[str, T], after: Mapping[str, T]) -> tuple[str, ...]:
    return () if before is after else tuple(name for name in before if name not in after)


def _latest(before: Sequence[T], after: Sequence[T]) -> tuple[T, ...]:
    """Those at the end that were not there; of a list that forgets its oldest."""
    known = set(map(id, before))
    return tuple(one for one in after if id(one) not in known)


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


def stack_cores(board: Board, from_s: float, to_s: float) -> Stack:
    """From then, or from when the first node was heard of, whichever is later."""
    if not board.cluster or to_s <= (begins := max(from_s, board.cluster[0].at_s)):
        return Stack()
    times = [begins + (to_s - begins) * column / (COLUMNS - 1) for column in range(COLUMNS)]
    totals = [point or Totals() for point in sample_at(board.cluster, times)]
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


def sample_at(points: Sequence[P], times: Sequence[float]) -> list[P | None]:
    """The last point up to each time; None before the first. Both rise."""
    found: list[P | None] = []
    reached = 0
    for at_s in times:
        while reached < len(points) and points[reached].at_s <= at_s:
            reached += 1
        found.append(points[reached - 1] if reached else None)
    return found


def _most(stories: Iterable[JobHistory], times: Sequence[float]) -> list[Band]:
    """Those that held most over these times, the largest first."""
    bands = [
        _band(one, times)
        for one in stories
        if one.held and (one.held_cpu or one.held[-1].at_s > times[0])
    ]
    return sorted(
        (band for band in bands if any(band.cores)), key=lambda b: (-sum(b.cores), b.job)
    )[:NAMED]


def _band(story: JobHistory, times: Sequence[float]) -> Band:
    return Band(
        job=story.key,
        cores=tuple(point.cpu if point else 0.0 for point in sample_at(story.held, times)),
    )
