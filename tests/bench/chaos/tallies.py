"""The result of a run, from its messages, the counts of the ps and the times at which batches were
read.

applied_twice   of all examples, how often one was applied beyond its epochs; the bound: one batch for each worker lost
redone          updates applied after the checkpoint that training went on from, in seconds of training, over the
                interval between checkpoints, as the job had it (`every_s` and what a save takes):
                at most 1; in seconds: at most what the trainer's `redo_s` allows by default
commit_waits    of each server lost in a commit: the longest that a checkpoint then waited for its entry in the ledger
drained_redone  the most seconds of training that were repeated because of a drain with nowhere to go
own_failures    pods that ended by their own fault, as the allocator sees it: nothing that is struck here is one
messages_lost   requests without an answer, gaps in a job's revisions, generations without an end, jobs that the
                allocator remembers otherwise than the streams have it, dead letters
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from services.allocator.state.exits import Exit, is_own_fault
from shared.bus.consumer import StoredMessage
from shared.messages import (
    AllocationDecided,
    CheckpointSaved,
    GenerationAbandoned,
    JobAccepted,
    JobRejected,
    JobRequested,
    ProgressReported,
    TaskExited,
    TrainingResumed,
)
from tests.bench.chaos.schedule import Fault
from tests.bench.chaos.standing import of


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One fault. `recovered_s`: None where it did not recover within the limit, and `trouble` says
    what.
    """

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


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """Examples of one job that were applied too seldom and too often, and how often they may have
    been.
    """

    lost: int
    twice: int
    bound: int


def counted(counts: Sequence[int], epochs: int, batch: int, workers_lost: int) -> Counted:
    lost = sum(max(0, epochs - times) for times in counts)
    return Counted(
        lost=lost, twice=sum(max(0, times - epochs) for times in counts), bound=batch * workers_lost
    )


def workers_lost(heard: Iterable[StoredMessage]) -> int:
    return len({m.pod_uid for m in of(heard, TaskExited) if m.role == "worker"})


# ---------------------------------------------------------------- work done again


Stretch = tuple[float, float]
"""From one moment to another."""


def redone_s(
    heard: Sequence[StoredMessage], beats: Sequence[float], unsaved: Sequence[Stretch] = ()
) -> list[float]:
    """Of each generation that took over: for how long had updates been applied that it does not
    have?

    `unsaved`: when nothing could be saved, wherever training stood; who resumed then is left out.
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
    """From when the checkpoint was begun, to the last batch that was read before the last report of
    what it lacks.
    """
    before = [h for h in heard if h.stored_s < until_s]
    saved = [(h.stored_s, h.message) for h in before if isinstance(h.message, CheckpointSaved)]
    kept = max((m.samples for _, m in saved if m.samples <= samples), default=0)
    cut_s = min((stored_s - m.seconds for stored_s, m in saved if m.samples == kept), default=old_s)
    from_s = max(cut_s, old_s)  # what was done before was done again, and counted, already
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
    """From one checkpoint to the next, as this job had it: the median; `every_s` where there are no
    two in a row.
    """
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
    """The most that was done again by a generation that resumed between two moments."""
    until = [each for each in heard if each.stored_s <= to_s]
    return max(redone_s(until, beats, [(float("-inf"), from_s)]), default=0.0)


def commit_wait_s(heard: Sequence[StoredMessage], from_s: float, to_s: float) -> float:
    """The longest that a checkpoint announced between two moments had waited for its entry in the
    ledger.
    """
    between = [each for each in heard if from_s <= each.stored_s <= to_s]
    return max((m.waited_s for m in of(between, CheckpointSaved)), default=0.0)


# ---------------------------------------------------------------- gaps


def longest_gap_s(beats: Sequence[float], from_s: float, to_s: float) -> float:
    """Between two moments, the longest without an update."""
    inside = [at for at in beats if from_s <= at <= to_s]
    return max((b - a for a, b in pairwise([from_s, *inside, to_s])), default=0.0)


# ---------------------------------------------------------------- messages


def own_failures(heard: Iterable[StoredMessage]) -> list[str]:
    """The pods of one job whose end counts as a failure of the job."""
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
    """Of one job."""
    said = {m.revision for m in of(heard, AllocationDecided)}
    return len(set(range(1, max(said, default=0) + 1)) - said)


def endless(heard: Sequence[StoredMessage]) -> list[int]:
    """Generations of one finished job that neither trained nor were given up, but for the last."""
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
