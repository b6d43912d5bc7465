"""The result of a run, from messages, the counts on the ps, and the times of batches.

applied_twice   how often examples were counted beyond their epochs; the bound is one batch for each
                worker lost, and one for each gradient dropped: the program counts in the forward
                pass, before a gradient that is too stale is dropped
updates_wrong   jobs with `consistency: global-batch` that made another number of updates than one
                process, ceil(examples / batch) in an epoch; the update in progress when a worker is
                lost is made anew, and counts once
rows_wrong      examples of jobs with a table whose row is not what one update in each epoch adds to
                it; the bound is one batch for each worker lost, or 0 if workers make updates
                together
redone          updates applied after the checkpoint from which training resumed, in seconds of
                training, divided by the job's interval between checkpoints (`every_s` and the time
                of a save): at most 1; in seconds: at most the default of the trainer's `redo_s`
commit_waits    of each server lost in a commit: the longest time for which a checkpoint then waited
                for its entry in the ledger
drained_redone  the most seconds of training that were repeated after a drain with no other capacity
own_failures    pods whose exit counts as a failure of the job, as the allocator judges it: none of
                the faults causes one
messages_lost   requests without an answer, missing revisions of a job, generations without an end,
                jobs of which the allocator's state differs from the streams, dead letters
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from services.allocator.state.job import Exit, is_own_fault
from shared.bus.consumer import StoredMessage
from shared.messages import (
    AllocationDecided,
    CheckpointSaved,
    GenerationAbandoned,
    JobAccepted,
    JobFinished,
    JobRejected,
    JobRequested,
    ProgressReported,
    TaskExited,
    TrainingResumed,
)
from tests.bench.chaos.schedule import Fault
from tests.bench.chaos.standing import of


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One fault. `recovered_s` is None if it did not recover in time; `trouble` has the error."""

    fault: Fault
    hit: str = ""
    struck_s: float = 0.0
    recovered_s: float | None = None
    settled_s: float = 0.0
    workers: int = 0
    trouble: str = ""

    @property
    def took_s(self) -> float:
        return max(0.0, (self.recovered_s or self.struck_s) - self.struck_s)


ROW_TOLERANCE = 1e-3


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """Examples of one job that were applied too seldom and too often, and a bound of the latter."""

    lost: int
    twice: int
    bound: int
    rows_wrong: int | None = None
    """None: the job has no table."""
    rows_bound: int = 0


def compare_counts(counts: Sequence[int], epochs: int, bound: int) -> Counted:
    """Compare how often each example was counted with the number of epochs. `bound`: the number of
    examples that may have been counted twice.
    """
    lost = sum(max(0, epochs - times) for times in counts)
    return Counted(lost=lost, twice=sum(max(0, times - epochs) for times in counts), bound=bound)


def rows_wrong(rows: Sequence[float], epochs: int, examples: int, batch: int) -> int:
    """Return the number of examples whose row differs from one update in each epoch.

    An update adds batch by its number of examples: 1, or more in the last batch of an epoch.
    """
    last = examples % batch
    more = batch / last - 1 if last else 0.0
    wrong = max(examples - len(rows), 0)
    for row in rows[:examples]:
        in_last = round((row - epochs) / more) if more else 0
        is_right = 0 <= in_last <= epochs and abs(epochs + in_last * more - row) < ROW_TOLERANCE
        wrong += not is_right
    return wrong


def updates_of_one_process(epochs: int, examples: int, batch: int) -> int:
    return epochs * math.ceil(examples / batch)


def updates_wrong(heard: Sequence[StoredMessage], epochs: int, examples: int) -> str:
    """Return what is wrong with the updates of a finished job; empty if nothing is, or if its
    workers make updates of their own.
    """
    request, over = of(heard, JobAccepted)[-1].request, of(heard, JobFinished)[-1]
    if not request.makes_updates_together:
        return ""
    due = updates_of_one_process(epochs, examples, request.batch.start)
    return "" if over.step == due else f"{over.job}: {over.step} updates in place of {due}"


def workers_lost(heard: Iterable[StoredMessage]) -> int:
    return len({m.pod_uid for m in of(heard, TaskExited) if m.role == "worker"})


def gradients_dropped(heard: Iterable[StoredMessage]) -> int:
    return sum(m.staleness.dropped for m in of(heard, ProgressReported) if m.staleness is not None)


# ---------------------------------------------------------------- repeated work


Stretch = tuple[float, float]
"""Start and end, in s."""


def redone_s(
    heard: Sequence[StoredMessage], beats: Sequence[float], unsaved: Sequence[Stretch] = ()
) -> list[float]:
    """Return for each generation that took over: the time in s of updates that it does not have.

    `unsaved`: spans in which nothing could be saved. Generations that resumed in one are left out.
    """
    resumed = [(h.stored_s, h.message) for h in heard if isinstance(h.message, TrainingResumed)]
    return [
        _redone(heard, beats, old.generation, old_s, new.samples, new_s)
        for (old_s, old), (new_s, new) in pairwise(resumed)
        if not any(from_s <= new_s <= to_s for from_s, to_s in unsaved)
    ]


def _redone(
    heard: Sequence[StoredMessage],
    beats: Sequence[float],
    old: int,
    old_s: float,
    samples: int,
    until_s: float,
) -> float:
    """Return the time in s from the start of the checkpoint to the last batch that it lacks.

    That is the last batch read before the last report of updates that the checkpoint does not
    contain.
    """
    before = [h for h in heard if h.stored_s < until_s]
    saved = [(h.stored_s, h.message) for h in before if isinstance(h.message, CheckpointSaved)]
    kept = max((m.samples for _, m in saved if m.samples <= samples), default=0)
    cut_s = min((stored_s - m.seconds for stored_s, m in saved if m.samples == kept), default=old_s)
    from_s = max(cut_s, old_s)  # earlier updates were repeated, and counted, already
    told_s = [
        h.stored_s
        for h in heard
        if isinstance(h.message, ProgressReported)
        and h.message.generation == old
        and h.message.samples > kept
        if from_s < h.stored_s < until_s
    ]
    if not told_s:
        return 0.0
    last = bisect_right(beats, max(told_s))
    return max(0.0, (beats[last - 1] if last else max(told_s)) - from_s)


def interval_s(heard: Sequence[StoredMessage], every_s: float) -> float:
    """Return the median interval in s between two checkpoints of a generation, or `every_s`."""
    saved = [(h.stored_s, h.message) for h in heard if isinstance(h.message, CheckpointSaved)]
    found = [
        b_s - a_s
        for (a_s, a), (b_s, b) in pairwise(saved)
        if a.generation == b.generation and not b.final
    ]
    return statistics.median(found) if found else every_s


def redone_between_s(
    heard: Sequence[StoredMessage], beats: Sequence[float], from_s: float, to_s: float
) -> float:
    """Return the most training in s repeated by a generation that resumed between two times."""
    until = [each for each in heard if each.stored_s <= to_s]
    return max(redone_s(until, beats, [(float("-inf"), from_s)]), default=0.0)


def commit_wait_s(heard: Sequence[StoredMessage], from_s: float, to_s: float) -> float:
    """Return the longest wait in s for the ledger of a checkpoint announced between two times."""
    between = [each for each in heard if from_s <= each.stored_s <= to_s]
    return max((m.waited_s for m in of(between, CheckpointSaved)), default=0.0)


# ---------------------------------------------------------------- gaps


def longest_gap_s(beats: Sequence[float], from_s: float, to_s: float) -> float:
    """Return the longest time in s without an update, between two times."""
    inside = [at for at in beats if from_s <= at <= to_s]
    return max((b - a for a, b in pairwise([from_s, *inside, to_s])), default=0.0)


# ---------------------------------------------------------------- messages


def own_failures(heard: Iterable[StoredMessage]) -> list[str]:
    """Return the pods of one job whose exit counts as a failure of the job."""
    ends = {m.pod: Exit(m.role, m.exit_code, m.reason, m.message) for m in of(heard, TaskExited)}
    return sorted(pod for pod, ended in ends.items() if is_own_fault(ended))


def unanswered(heard: Iterable[StoredMessage]) -> list[str]:
    heard = list(heard)
    answered = {m.uid for m in of(heard, JobAccepted)} | {m.uid for m in of(heard, JobRejected)}
    return [
        h.message.job
        for h in heard
        if isinstance(h.message, JobRequested) and h.sequence not in answered
    ]


def revisions_missing(heard: Iterable[StoredMessage]) -> int:
    """Return the number of missing revisions of one job."""
    said = {m.revision for m in of(heard, AllocationDecided)}
    return len(set(range(1, max(said, default=0) + 1)) - said)


def endless(heard: Sequence[StoredMessage]) -> list[int]:
    """Return the generations of a finished job that neither trained nor were abandoned.

    The last generation is left out.
    """
    decided = {m.generation for m in of(heard, AllocationDecided)}
    over = {m.generation for m in (*of(heard, TrainingResumed), *of(heard, GenerationAbandoned))}
    return sorted(decided - over - {max(decided, default=0)})


# ---------------------------------------------------------------- recovery


def recovery(records: Iterable[Record]) -> dict[str, dict[str, float]]:
    by_kind = defaultdict(list)
    for record in records:
        if record.recovered_s is not None:
            by_kind[record.fault.kind].append(record.took_s)
    return {
        kind: {"median": round(statistics.median(took), 2), "max": round(max(took), 2)}
        for kind, took in sorted(by_kind.items())
    }
