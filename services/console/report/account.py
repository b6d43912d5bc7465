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

with the times and examples of the two reports, and `size` the examples of an epoch: the time between
two reports is shared evenly, a pause is not. An epoch that was rolled back ends when it is complete
again; the first begins with the first update.

A decision's forecast and its outcome, by the formula of the allocator (`steps/resize_conditions.py`):

foreseen   saved = remaining / v - remaining / v',  for a pause of so many seconds
came       saved = left / v - left / v'';  in all: saved - slowed - pause

remaining  examples that were left when it was decided                                      [examples]
left       examples that were left when the next generation took over                       [examples]
v, v''     measured: examples a second before the decision, and of the generation that came [examples/s]
v'         what was foreseen; from `saved`, `remaining` and `v` by the first formula        [examples/s]
slowed     by how much what trained got behind while the next was prepared beside it        [s]
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
    """Core-seconds."""

    starting: float = 0.0
    training: float = 0.0
    beside: float = 0.0
    paused: float = 0.0
    ending: float = 0.0

    @property
    def held_total(self) -> float:
        return self.starting + self.training + self.beside + self.paused + self.ending


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """`from_s` to `to_s`, of which `waited_s` to the first update (None: there was none).
    `done_again_core_s` is a part of training; `cluster_ours` and `cluster_all`: shares of the
    allocatable cores; None: nothing is known of nodes.
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
        stood_s = self.paused_s + self.off_s
        return (
            0.0 if self.waited_s is None else max(self.completion_s - self.waited_s - stood_s, 0.0)
        )

    @property
    def utilisation(self) -> float | None:
        """None where nothing was measured: no task that trains uses nothing."""
        return (
            self.used_core_s / self.parts.held_total
            if self.used_core_s and self.parts.held_total
            else None
        )


def account_job(board: Board, story: JobHistory) -> Account:
    """Up to the job's end, or to the newest message where it has not ended."""
    to_s = ended_s(board, story)
    first_s = story.stretches[0].resumed_s if story.stretches else None
    shares = cluster_shares(board.cluster, story.asked_s, to_s)
    paused = [s for s in story.stretches if s.pause_s is not None]
    return Account(
        from_s=story.asked_s,
        to_s=to_s,
        over=story.finished is not None,
        waited_s=None if first_s is None else max(first_s - story.asked_s, 0.0),
        paused_s=story.paused_s,
        pauses=len(paused),
        off_s=story.off_s,
        parts=parts(board, story),
        used_core_s=story.used_core_s,
        lost=story.lost,
        done_again_core_s=sum(_done_again(*pair) for pair in pairwise(story.stretches)),
        examples_per_second=_mean_speed(story, first_s, to_s),
        cluster_ours=shares and shares[0],
        cluster_all=shares and shares[1],
    )


def ended_s(board: Board, story: JobHistory) -> float:
    """When it was over by the stored facts: the last of its generations ended then."""
    if story.finished is None:
        return max(board.at_s, story.asked_s)
    last = story.last_generation.ended_s if story.last_generation else None
    return max(last or story.finished.finished_s or board.at_s, story.asked_s)


def _mean_speed(story: JobHistory, first_s: float | None, to_s: float) -> float | None:
    """Examples applied from the first update to the end, pauses included; what was lost and done
    again counts once.
    """
    return story.applied / (to_s - first_s) if first_s is not None and to_s > first_s else None


def _done_again(before: GenerationSpan, after: GenerationSpan) -> float:
    at = generation_speed(before)
    return after.lost / at * before.gives.cpu if at and before.gives and after.lost else 0.0


# ---------------------------------------------------------------- the parts of what was held


def parts(board: Board, story: JobHistory) -> Parts:
    """Between any two moments at which something changed all is as it was at the first of them."""
    end_s = ended_s(board, story)
    last_s = max(board.at_s, end_s)
    edges = {story.asked_s, end_s, last_s, *(point.at_s for point in story.held)}
    edges |= {
        edge for s in story.stretches for edge in (s.resumed_s, s.ended_s) if edge is not None
    }
    sums: dict[str, float] = {}
    for since_s, until_s in pairwise(sorted(edges)):
        for name, cores in _split(story, _held_at(story, since_s), since_s, end_s).items():
            sums[name] = sums.get(name, 0.0) + cores * (until_s - since_s)
    return Parts(**sums)


def _held_at(story: JobHistory, at_s: float) -> float:
    point = cluster.point_at(story.held, at_s)
    return point.cpu if point else 0.0


def _split(story: JobHistory, held: float, at_s: float, end_s: float) -> dict[str, float]:
    """The cores held at a time, by part."""
    if at_s >= end_s and story.finished is not None:
        return {"ending": held}
    if not story.stretches or at_s < story.stretches[0].resumed_s:
        return {"starting": held}
    runs = next(
        (
            s
            for s in story.stretches
            if s.resumed_s <= at_s and (s.ended_s is None or at_s < s.ended_s)
        ),
        None,
    )
    if runs is None:
        return {"paused": held}
    own = min(held, _cores(story, runs, at_s, held))
    return {"training": own, "beside": held - own}


def _cores(story: JobHistory, runs: GenerationSpan, at_s: float, unknown: float) -> float:
    """Of a generation's tasks; they may change in place."""
    made = [d for d in story.decisions if d.generation == runs.generation and d.at_s <= at_s]
    if made:
        return made[-1].gives.cpu
    return runs.gives.cpu if runs.gives else unknown


def cluster_shares(
    totals: Sequence[Totals], from_s: float, to_s: float
) -> tuple[float, float] | None:
    """Of the allocatable core-seconds: requested by our jobs, requested by anybody."""
    spans = list(_spans(totals, from_s, to_s))
    whole = sum(t.allocatable * s for t, s in spans)
    if not whole:
        return None
    return sum(t.ours * s for t, s in spans) / whole, sum(
        (t.ours + t.others) * s for t, s in spans
    ) / whole


def _spans(totals: Sequence[Totals], from_s: float, to_s: float) -> Iterable[tuple[Totals, float]]:
    """Each sum, and for how long it was so between the two times."""
    ends = [*(t.at_s for t in totals[1:]), to_s]
    for total, end_s in zip(totals, ends, strict=False):
        lasted = min(end_s, to_s) - max(total.at_s, from_s)
        if lasted > 0:
            yield total, lasted


class Passes(msgspec.Struct, frozen=True):
    """Of one job, by its uid. `size`: examples of an epoch, 0 before the first report. `ends`: when
    each complete epoch was over, by its number from 1; `last_s`, `last`: time and examples of the
    newest report or a generation's begin.
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
        """Of each complete epoch, in their order; pauses in it included."""
        if self.began_s is None:
            return []
        ends = [at for _, at in sorted(self.ends.items())]
        return [later - earlier for earlier, later in pairwise([self.began_s, *ends])]


def fold_epochs(passes: Passes, told: LogEntry) -> Passes:
    """With one more message of this job, or of a later one with its name."""
    said = told.message
    if isinstance(said, JobAccepted) and said.uid > passes.uid:
        return Passes(said.uid, said.request.epochs)
    if not isinstance(said, TrainingResumed | ProgressReported) or said.uid != passes.uid:
        return passes
    if isinstance(said, TrainingResumed):
        return _fold_resumed(passes, said, told.at_s)
    passes = replace(passes, size=said.total_samples / passes.epochs)
    ends = passes.ends | _over(passes, said.samples, told.at_s)
    return replace(passes, ends=ends, last_s=told.at_s, last=said.samples)


def _fold_resumed(passes: Passes, said: TrainingResumed, at_s: float) -> Passes:
    """What was applied behind the last report was so before the pause; what was lost was not."""
    began_s = at_s if passes.began_s is None else passes.began_s
    ends = passes.ends | _over(passes, said.samples, at_s - said.off_s - (said.pause_s or 0.0))
    kept = {number: at for number, at in ends.items() if number * passes.size <= said.samples}
    return replace(passes, began_s=began_s, ends=kept, last_s=at_s, last=said.samples)


def _over(passes: Passes, samples: int, at_s: float) -> dict[int, float]:
    """The epochs that were complete since the last word, and when."""
    more = samples - passes.last
    if more <= 0 or not passes.size:
        return {}
    shares = {
        number: (number * passes.size - passes.last) / more
        for number in range(1, int(samples / passes.size) + 1)
    }
    return {
        number: passes.last_s + part * (at_s - passes.last_s)
        for number, part in shares.items()
        if part > 0
    }


class DecisionResult(msgspec.Struct, frozen=True, kw_only=True):
    """A decision beside what came of it. `number` counts from 1; `remaining`, `left`: examples, as
    last reported before it and before the hand-over.

    None: not known, or nothing was foreseen.
    """

    number: int
    outcome: Outcome
    remaining: int | None = None
    left: int | None = None

    @property
    def foreseen_speed(self) -> float | None:
        before, gain_s = self.outcome.before, self.outcome.decision.gain_s
        if not (before and gain_s and self.remaining):
            return None
        left_s = self.remaining / before - gain_s
        return self.remaining / left_s if left_s > 0 else None

    @property
    def saved_s(self) -> float | None:
        """Seconds by the speed alone, without what it cost to come there; below 0: it is slower."""
        before, after = self.outcome.before, self.outcome.after
        return (
            self.left / before - self.left / after
            if before and after and self.left is not None
            else None
        )

    @property
    def in_all_s(self) -> float | None:
        """Seconds by which the job is over sooner for it; below 0: later."""
        if self.saved_s is None:
            return None
        return self.saved_s - (self.outcome.slowed_s or 0.0) - (self.outcome.pause_s or 0.0)


def foresights(story: JobHistory) -> Iterator[DecisionResult]:
    whole = story.view.total_samples
    for number, outcome in enumerate(decision_outcomes(story), start=1):
        told = [report for report in story.reports if report.at_s <= outcome.decision.at_s]
        by_then = (told[-1].samples if told else None, outcome.applied)
        remaining, left = (max(whole - n, 0) if n is not None and whole else None for n in by_then)
        yield DecisionResult(number=number, outcome=outcome, remaining=remaining, left=left)
