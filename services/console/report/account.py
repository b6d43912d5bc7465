"""Where the time and the cores of a job went; the length of each epoch; forecasts and outcomes.

    completion time   = end - submission, waiting included (now, where it has not ended)                  [s]
    waiting           = submission to the first update; paused = sum of the pauses; off = while the
                        whole cluster was; the rest trained                                                   [s]
    held              = integral of the cores that its pods requested, as the nodes' facts list them      [core-seconds]
    used              = sum of cores used, as its tasks measured, x seconds between two reports           [core-seconds]
    utilisation       = used / held                                                    of the job
                      = integral of cores requested / integral of allocatable cores    of the cluster

Each core-second that was held is in one of these parts, which add up to all of it:

    starting          before the first update: images, imports, building
    training          of tasks of the generation that trained
    beside            of other pods meanwhile: of a generation that was prepared, or that had to leave
    paused            while training stood still for a hand-over or after a crash
    ending            after the end, until the pods had gone

    done again        of training: examples lost with a ps or a chief / examples a second before / x cores had by then

Epochs are a fold of their own, because the read model thins reports. An epoch is over when as many
examples as it and the epochs before it have were applied; between two reports, at

    before_s + (epochs x size - before) / (samples - before) x (at_s - before_s)

with the times and examples of the two reports, and `size` the examples of an epoch: the time
between two reports is shared evenly, a pause is not. An epoch that was rolled back ends when it is
complete again; the first begins with the first update.

A decision's forecast and its result, by the formula of the allocator
(`steps/resize_conditions.py`):

forecast   saved = remaining / v - remaining / v',  for a pause of so many seconds
result     saved = left / v - left / v'';  in all: saved - slowed - pause

remaining  examples that were left when it was decided                                      [examples]
left       examples that were left when the next generation took over                       [examples]
v, v''     measured: examples a second before the decision, and of the generation that came [examples/s]
v' the forecast; from `saved`, `remaining` and `v` by the first formula        [examples/s]
slowed     by how much the running generation got behind while the next was prepared beside it        [s]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from services.console.board import cluster
from services.console.board.board import Board
from services.console.board.cluster import Totals
from services.console.board.figures import Outcome, decision_outcomes, generation_speed
from services.console.board.job_history import GenerationSpan, JobHistory
from services.whatif.event_log import LogEntry
from shared.messages import JobAccepted, ProgressReported, TrainingResumed


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The held core-seconds by purpose, as in the list above."""

    starting: float = 0.0
    training: float = 0.0
    beside: float = 0.0
    paused: float = 0.0
    ending: float = 0.0

    @property
    def held_total(self) -> float:
        return self.starting + self.training + self.beside + self.paused + self.ending


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The time and the cores of a job from `from_s` to `to_s`.

    `waited_s`: to the first update; None if there was none. `done_again_core_s` is a part of
    training. `cluster_ours`, `cluster_all`: shares of the allocatable core-seconds; None if no node
    is known.
    """

    from_s: float
    to_s: float
    over: bool
    waited_s: float | None
    paused_s: float
    pauses: int
    off_s: float
    parts: Parts
    used_core_s: float
    lost: int
    done_again_core_s: float
    examples_per_second: float | None
    cluster_ours: float | None
    cluster_all: float | None

    @property
    def completion_s(self) -> float:
        return self.to_s - self.from_s

    @property
    def trained_s(self) -> float:
        if self.waited_s is None:
            return 0.0
        return max(self.completion_s - self.waited_s - self.paused_s - self.off_s, 0.0)

    @property
    def utilisation(self) -> float | None:
        """The used share of the held core-seconds; None if nothing was measured."""
        if not self.used_core_s or not self.parts.held_total:
            return None
        return self.used_core_s / self.parts.held_total


def account_job(board: Board, story: JobHistory) -> Account:
    """Account a job up to its end; up to the newest message while it is running."""
    to_s = ended_s(board, story)
    first_s = story.generation_spans[0].resumed_s if story.generation_spans else None
    ours, everyone = cluster_shares(board.cluster, story.asked_s, to_s)
    repeated = [_repeated_core_s(*pair) for pair in pairwise(story.generation_spans)]
    return Account(
        from_s=story.asked_s,
        to_s=to_s,
        over=story.finished is not None,
        waited_s=None if first_s is None else max(first_s - story.asked_s, 0.0),
        paused_s=story.paused_s,
        pauses=sum(stretch.pause_s is not None for stretch in story.generation_spans),
        off_s=story.off_s,
        parts=parts(board, story),
        used_core_s=story.used_core_s,
        lost=story.lost,
        done_again_core_s=sum(repeated),
        examples_per_second=_mean_speed(story, first_s, to_s),
        cluster_ours=ours,
        cluster_all=everyone,
    )


def ended_s(board: Board, story: JobHistory) -> float:
    """Return the end by the stored facts: the end of the job's last generation, if it is known."""
    if story.finished is None:
        return max(board.at_s, story.asked_s)
    last = story.last_generation.ended_s if story.last_generation else None
    return max(last or story.finished.finished_s or board.at_s, story.asked_s)


def _mean_speed(story: JobHistory, first_s: float | None, to_s: float) -> float | None:
    """Return the examples a second from the first update to the end, pauses included.

    Examples that were lost and done again count once.
    """
    if first_s is None or to_s <= first_s:
        return None
    return story.applied / (to_s - first_s)


def _repeated_core_s(before: GenerationSpan, after: GenerationSpan) -> float:
    """Return the core-seconds of the examples that were lost and done again."""
    speed = generation_speed(before)
    if not speed or not before.gives or not after.lost:
        return 0.0
    return after.lost / speed * before.gives.cpu


# ---------------------------------------------------------------- the parts of what was held


def parts(board: Board, story: JobHistory) -> Parts:
    """Divide the held core-seconds by purpose. Between two changes everything stays the same."""
    end_s = ended_s(board, story)
    edges = {story.asked_s, end_s, max(board.at_s, end_s)}
    edges.update(point.at_s for point in story.held)
    for stretch in story.generation_spans:
        edges.add(stretch.resumed_s)
        if stretch.ended_s is not None:
            edges.add(stretch.ended_s)
    sums: dict[str, float] = {}
    for since_s, until_s in pairwise(sorted(edges)):
        held = _held_at(story, since_s)
        for name, cores in _cores_by_part(story, held, since_s, end_s).items():
            sums[name] = sums.get(name, 0.0) + cores * (until_s - since_s)
    return Parts(**sums)


def _held_at(story: JobHistory, at_s: float) -> float:
    point = cluster.point_at(story.held, at_s)
    return point.cpu if point else 0.0


def _cores_by_part(story: JobHistory, held: float, at_s: float, end_s: float) -> dict[str, float]:
    """Divide the cores held at a time by purpose."""
    if at_s >= end_s and story.finished is not None:
        return {"ending": held}
    if not story.generation_spans or at_s < story.generation_spans[0].resumed_s:
        return {"starting": held}
    for stretch in story.generation_spans:
        if stretch.resumed_s <= at_s and (stretch.ended_s is None or at_s < stretch.ended_s):
            own = min(held, _generation_cores(story, stretch, at_s, held))
            return {"training": own, "beside": held - own}
    return {"paused": held}


def _generation_cores(
    story: JobHistory, stretch: GenerationSpan, at_s: float, unknown: float
) -> float:
    """Return the cores of a generation's tasks at a time. A later decision may change them in
    place.
    """
    for decision in reversed(story.decisions):
        if decision.generation == stretch.generation and decision.at_s <= at_s:
            return decision.gives.cpu
    return stretch.gives.cpu if stretch.gives else unknown


def cluster_shares(
    totals: Sequence[Totals], from_s: float, to_s: float
) -> tuple[float | None, float | None]:
    """Return the shares of the allocatable core-seconds that our jobs requested, and that all pods
    requested; None if no node is known.
    """
    whole = ours = everyone = 0.0
    for total, seconds in _lasting_totals(totals, from_s, to_s):
        whole += total.allocatable * seconds
        ours += total.ours * seconds
        everyone += (total.ours + total.others) * seconds
    return (ours / whole, everyone / whole) if whole else (None, None)


def _lasting_totals(
    totals: Sequence[Totals], from_s: float, to_s: float
) -> Iterable[tuple[Totals, float]]:
    """Yield each sum with the seconds for which it was valid between the two times."""
    for number, total in enumerate(totals, start=1):
        end_s = min(totals[number].at_s, to_s) if number < len(totals) else to_s
        lasted_s = end_s - max(total.at_s, from_s)
        if lasted_s > 0:
            yield total, lasted_s


class Passes(msgspec.Struct, frozen=True):
    """The epochs of the job `uid`.

    `size`: examples of an epoch, 0 before the first report. `ends`: the time at which each complete
    epoch ended, by its number from 1. `last_s`, `last`: time and examples of the newest report or
    of the start of the newest generation.
    """

    uid: int = -1
    epochs: int = 0
    began_s: float | None = None
    ends: dict[int, float] = {}
    last_s: float = 0.0
    last: int = 0
    size: float = 0.0

    @property
    def seconds(self) -> list[float]:
        """Seconds of each complete epoch in order, pauses included."""
        if self.began_s is None:
            return []
        seconds = []
        start_s = self.began_s
        for _, end_s in sorted(self.ends.items()):
            seconds.append(end_s - start_s)
            start_s = end_s
        return seconds


def fold_epochs(passes: Passes, entry: LogEntry) -> Passes:
    """Fold one more message of this job, or of a later job of the same name."""
    m = entry.message
    if isinstance(m, JobAccepted) and m.uid > passes.uid:
        return Passes(m.uid, m.request.epochs)
    if not isinstance(m, TrainingResumed | ProgressReported) or m.uid != passes.uid:
        return passes
    if isinstance(m, TrainingResumed):
        return _fold_resumed(passes, m, entry.at_s)
    passes = replace(passes, size=m.total_samples / passes.epochs)
    ends = passes.ends | _completed_epochs(passes, m.samples, entry.at_s)
    return replace(passes, ends=ends, last_s=entry.at_s, last=m.samples)


def _fold_resumed(passes: Passes, resumed: TrainingResumed, at_s: float) -> Passes:
    """Fold the start of a generation.

    Examples beyond the last report were applied before the pause. Epochs with lost examples become
    incomplete.
    """
    began_s = at_s if passes.began_s is None else passes.began_s
    stopped_s = at_s - resumed.off_s - (resumed.pause_s or 0.0)
    ends = {}
    completed = passes.ends | _completed_epochs(passes, resumed.samples, stopped_s)
    for number, end_s in completed.items():
        if number * passes.size <= resumed.samples:
            ends[number] = end_s
    return replace(passes, began_s=began_s, ends=ends, last_s=at_s, last=resumed.samples)


def _completed_epochs(passes: Passes, samples: int, at_s: float) -> dict[int, float]:
    """Return the ends of the epochs that were completed since the last report, interpolated."""
    more = samples - passes.last
    if more <= 0 or not passes.size:
        return {}
    ends = {}
    for number in range(1, int(samples / passes.size) + 1):
        share = (number * passes.size - passes.last) / more
        if share > 0:
            ends[number] = passes.last_s + share * (at_s - passes.last_s)
    return ends


class DecisionResult(msgspec.Struct, frozen=True, kw_only=True):
    """A decision and its result. `number` counts from 1. `remaining`, `left`: examples to apply in
    the last report before the decision and before the hand-over. None: unknown, or no forecast.
    """

    number: int
    outcome: Outcome
    remaining: int | None = None
    left: int | None = None

    @property
    def forecast_speed(self) -> float | None:
        before, gain_s = self.outcome.before, self.outcome.decision.gain_s
        if not (before and gain_s and self.remaining):
            return None
        left_s = self.remaining / before - gain_s
        return self.remaining / left_s if left_s > 0 else None

    @property
    def saved_s(self) -> float | None:
        """Seconds saved by the speed alone, without the cost of the change; below 0: slower."""
        before, after = self.outcome.before, self.outcome.after
        if not before or not after or self.left is None:
            return None
        return self.left / before - self.left / after

    @property
    def total_saved_s(self) -> float | None:
        """Seconds by which the job ends sooner because of the decision; below 0: later."""
        if self.saved_s is None:
            return None
        return self.saved_s - (self.outcome.slowed_s or 0.0) - (self.outcome.pause_s or 0.0)


def decision_results(story: JobHistory) -> Iterator[DecisionResult]:
    """Yield every known decision with its result, oldest first."""
    total = story.view.total_samples
    for number, outcome in enumerate(decision_outcomes(story), start=1):
        applied = None
        for report in story.reports:
            if report.at_s <= outcome.decision.at_s:
                applied = report.samples
        yield DecisionResult(
            number=number,
            outcome=outcome,
            remaining=_remaining(total, applied),
            left=_remaining(total, outcome.applied),
        )


def _remaining(total: int, applied: int | None) -> int | None:
    """Return the examples to apply; None if one of the numbers is unknown."""
    return max(total - applied, 0) if total and applied is not None else None
