"""Figures of a board by formula, the changes between two boards, and the use of cores over time.

share done       = examples applied / examples to apply
time left        = (examples to apply - applied) / examples a second, a mean of its reports (the newest counts most)
utilisation      = cores held by our tasks / allocatable cores;   of use: cores used / allocatable cores
memory share     = GiB held by our tasks / allocatable GiB;       of use: GiB used / allocatable GiB
speed            = examples between the first and the last report of a generation / the seconds between them
speed before     = the same, up to the last report before a decision: its preparation slows what trains
slowed by it     = (t2 - t1) - (n2 - n1) / speed before      [s], from that report to the last before the hand-over
CPU-hours        = sum of cores held x hours, pauses and waiting for images included
wasted           = examples that had been applied and were lost because they were not saved

Two boards are compared by identity: the parts of a board are frozen, and a part that has not
changed is the same object.

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
"""Points of the small curve in a job's row."""


def share_done(view: JobView) -> float | None:
    """Return the share of the examples that is applied, 0 to 1; None if their total number is
    unknown.
    """
    if not view.total_samples:
        return None
    return min(view.samples / view.total_samples, 1.0)


def time_left_s(view: JobView) -> float | None:
    """Return the seconds to the end at the recent speed; None if the job reports no speed."""
    speed = view.mean_samples_per_second or view.samples_per_second
    if is_ended(view) or not view.total_samples or speed <= 0:
        return None
    return max(view.total_samples - view.samples, 0) / speed


def is_ended(view: JobView) -> bool:
    return view.phase in ENDED.values()


def utilisation(totals: Totals) -> float | None:
    """Return the share of the cores that our tasks hold; None if there are no cores."""
    return totals.ours / totals.allocatable if totals.allocatable else None


def use(totals: Totals) -> float | None:
    """Return the share of the cores that our tasks use, from their last reports."""
    return totals.used / totals.allocatable if totals.allocatable else None


def memory_share(totals: Totals) -> float | None:
    """Return the share of the memory that our tasks hold; None if there is no memory."""
    return totals.ours_gib / totals.allocatable_gib if totals.allocatable_gib else None


def memory_use(totals: Totals) -> float | None:
    """Return the share of the memory that our tasks use, from their last reports."""
    return totals.used_gib / totals.allocatable_gib if totals.allocatable_gib else None


def generation_speed(stretch: GenerationSpan) -> float | None:
    """Return the examples a second during a generation; None without two reports."""
    first, last = stretch.first, stretch.last
    if first is None or last is None or last.at_s <= first.at_s:
        return None
    return (last.samples - first.samples) / (last.at_s - first.at_s)


def core_seconds(history: JobHistory, now_s: float) -> float:
    """Return the core-seconds held up to now. They stop growing when the job's pods are gone."""
    since_s = history.held[-1].at_s if history.held else now_s
    return history.core_s + history.held_cpu * max(now_s - since_s, 0.0)


def cpu_hours(history: JobHistory, now_s: float) -> float:
    return core_seconds(history, now_s) / HOUR_S


def pauses_s(history: JobHistory) -> list[float]:
    """Return the known pauses in seconds, oldest first."""
    return [stretch.pause_s for stretch in history.generation_spans if stretch.pause_s is not None]


def last_pause_s(history: JobHistory) -> float | None:
    """Return the last pause in seconds; from the job's view if the log no longer has it."""
    pauses = pauses_s(history) or history.view.pauses
    return pauses[-1] if pauses else None


def recent_losses(history: JobHistory, most: int = BARS) -> list[float]:
    """Return the losses of the last reports, oldest first."""
    return [report.loss for report in history.reports[-most:] if report.loss is not None]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The forecast of a decision and its result. None: unknown, or it has not happened yet.

    `pause_s`: the pause of the hand-over. `before`, `after`: speeds in examples a second.
    `slowed_s`: seconds of training that the preparation cost the running generation. `applied`:
    examples in the last report before the hand-over. A generation that was abandoned has the reason
    in its decision.
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
        """The seconds from the decision to the first update of its generation."""
        return None if self.resumed_s is None else max(self.resumed_s - self.decision.at_s, 0.0)


def decision_outcomes(history: JobHistory) -> Iterable[Outcome]:
    """Yield the outcome of every known decision.

    Several decisions share a generation if a change was made in place; the first of them began it.
    """
    trained = {stretch.generation: stretch for stretch in history.generation_spans}
    begun_generations: set[int] = set()
    for decision in history.decisions:
        result = trained.get(decision.generation)
        if result is None or decision.generation in begun_generations:
            yield Outcome(decision=decision)
            continue
        begun_generations.add(decision.generation)
        outcome = Outcome(
            decision=decision,
            resumed_s=result.resumed_s,
            pause_s=result.pause_s,
            after=generation_speed(result),
        )
        before = trained.get(result.previous) if result.previous is not None else None
        if before:
            report = _report_by(history, before, decision.at_s)
            outcome = _with_generation_before(outcome, before, report)
        yield outcome


def _with_generation_before(
    known: Outcome, before: GenerationSpan, report: Report | None
) -> Outcome:
    """Add the speed and the delay of the generation before. `report`: its last before the
    decision.
    """
    last = before.last
    speed = _speed_until(before, report)
    if last is None or report is None or not speed:
        return replace(known, before=speed)
    slowed_s = (last.at_s - report.at_s) - (last.samples - report.samples) / speed
    return replace(known, before=speed, slowed_s=max(slowed_s, 0.0), applied=last.samples)


def _speed_until(stretch: GenerationSpan, report: Report | None) -> float | None:
    """Return the examples a second up to a report; the report's own figure if it is the only
    one.
    """
    if report is None:
        return None
    speed = generation_speed(replace(stretch, last=report))
    if not speed and report == stretch.first:
        return report.samples_per_second
    return speed


def _report_by(history: JobHistory, stretch: GenerationSpan, at_s: float) -> Report | None:
    """Return the last report up to a time, if that report is of this generation."""
    found = bisect_right(history.reports, at_s, key=lambda report: report.at_s)
    report = history.reports[found - 1] if found else None
    return report if report and report.generation == stretch.generation else None


def loss_curve(reports: Iterable[Report]) -> list[tuple[float, float]]:
    """Return points (seconds since 1970, mean loss of the examples since the report before)."""
    return [(report.at_s, report.loss) for report in reports if report.loss is not None]


T = TypeVar("T")


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """The difference of two boards. `gone_*`: names that were removed. `cluster` is None if the
    series was thinned: take the whole series from the board.
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
        nodes=_changed_values(before.nodes, after.nodes),
        gone_nodes=_removed_names(before.nodes, after.nodes),
        jobs=_changed_values(before.jobs, after.jobs),
        gone_jobs=_removed_names(before.jobs, after.jobs),
        cluster=None if cluster is None else tuple(cluster),
        decisions=_new_items(before.decisions, after.decisions),
    )


def _changed_values(before: Mapping[str, T], after: Mapping[str, T]) -> tuple[T, ...]:
    if before is after:
        return ()
    return tuple(value for name, value in after.items() if before.get(name) is not value)


def _removed_names(before: Mapping[str, T], after: Mapping[str, T]) -> tuple[str, ...]:
    return tuple(name for name in before if name not in after)


def _new_items(before: Sequence[T], after: Sequence[T]) -> tuple[T, ...]:
    """Return the new items at the end of a list that drops its oldest."""
    known = set(map(id, before))
    return tuple(item for item in after if id(item) not in known)


COLUMNS, NAMED = 120, 7
"""The number of sampled times; the number of jobs with a band and a colour of their own."""


class Band(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Cores held by a job's pods (`<namespace>.<job>`) at each time."""

    job: str
    cores: tuple[float, ...]


class Stack(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Cores at each of `times`. `jobs`: those that held most; `rest`: all other jobs of Weir;
    `others`: pods of others; `used`: measured use of our tasks, a part of the cores that jobs hold.
    """

    times: tuple[float, ...] = ()
    jobs: tuple[Band, ...] = ()
    rest: tuple[float, ...] = ()
    others: tuple[float, ...] = ()
    free: tuple[float, ...] = ()
    allocatable: tuple[float, ...] = ()
    used: tuple[float, ...] = ()


def stack_cores(board: Board, from_s: float, to_s: float) -> Stack:
    """Sample the use of cores evenly over a time span; it starts no earlier than the first node
    fact.
    """
    if not board.cluster:
        return Stack()
    begins = max(from_s, board.cluster[0].at_s)
    if to_s <= begins:
        return Stack()
    times = []
    for column in range(COLUMNS):
        times.append(begins + (to_s - begins) * column / (COLUMNS - 1))
    totals = [point or Totals() for point in sample_at(board.cluster, times)]
    bands = _largest_bands(board.jobs.values(), times)
    rest = []
    for column, total in enumerate(totals):
        named_cores = sum(band.cores[column] for band in bands)
        rest.append(max(round(total.ours - named_cores, 6), 0.0))
    series = {}
    for name in ("others", "free", "allocatable", "used"):
        series[name] = tuple(getattr(total, name) for total in totals)
    return Stack(times=tuple(times), jobs=tuple(bands), rest=tuple(rest), **series)


def sample_at(points: Sequence[P], times: Sequence[float]) -> list[P | None]:
    """Return the last point up to each time; None before the first point. Both are in order of
    time.
    """
    samples: list[P | None] = []
    reached = 0
    for at_s in times:
        while reached < len(points) and points[reached].at_s <= at_s:
            reached += 1
        samples.append(points[reached - 1] if reached else None)
    return samples


def _largest_bands(histories: Iterable[JobHistory], times: Sequence[float]) -> list[Band]:
    """Return the bands of the jobs that held most over these times, the largest first."""
    bands = []
    for history in histories:
        if not history.held or (not history.held_cpu and history.held[-1].at_s <= times[0]):
            continue
        band = _band_of(history, times)
        if any(band.cores):
            bands.append(band)
    bands.sort(key=lambda band: (-sum(band.cores), band.job))
    return bands[:NAMED]


def _band_of(history: JobHistory, times: Sequence[float]) -> Band:
    points = sample_at(history.held, times)
    return Band(job=history.key, cores=tuple(point.cpu if point else 0.0 for point in points))
