"""The figures of one simulated run (the same ones for every policy).

jct          finish - submission, of the jobs that were completed                     [s]
makespan     last finish - first submission                                           [s]
utilisation  integral of the resources that our pods hold / integral of those that tenants leave
             to us, over the makespan; of devices if any job wants one, else of cores
resizes      changes of a started job's tasks, nodes or batch, including repairs
wait_max     the longest time that a job had no tasks: before its start, or suspended [s]
paused       the cost of resizes: the total time in which started jobs did not train  [s]

`JobRecord` is the history of one job; it is written during the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

import msgspec
import numpy as np

from services.allocator.failures import Failure
from services.allocator.state.observations import role_count
from services.whatif.simulator.fake_cluster import Amount, Held
from services.whatif.simulator.scenario import Work
from shared.messages import AllocationDecided, Outcome


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The events of one run under one policy."""

    policy: str
    records: tuple[JobRecord, ...]
    held: tuple[Held, ...]
    """An entry for each change."""
    decision_ms: tuple[float, ...]
    ended_s: float
    failures: tuple[Failure, ...] = ()
    """The jobs for which the policy raised an error, each error once (`failures.py`)."""


Figures = dict[str, float | int | None]
Share = tuple[float, float, float, float]
"""From one time to another: the amount that our pods hold, and the amount that tenants leave to us.
"""


def run_figures(run: Run) -> Figures:
    """Return the figures by the names under which they are published.

    Figures of completed jobs are None if there is none.
    """
    times = completion_s(run)
    mean_s = float(np.mean(times)) if times else None
    paused_s = sum(record.paused_s for record in run.records)
    return {
        "jct_mean_s": _rounded_figure(mean_s),
        "jct_median_s": percentile(times, 50),
        "jct_p95_s": percentile(times, 95),
        "jct_p99_s": percentile(times, 99),
        "wait_max_s": _rounded_figure(wait_max_s(run)),
        "makespan_s": _rounded_figure(makespan_s(run)),
        "utilisation": _rounded_figure(utilisation(run)),
        "completed": len(times),
        "submitted": len(run.records),
        "resizes": sum(record.resizes for record in run.records),
        "paused_s": _rounded_figure(paused_s),
        "decisions": len(run.decision_ms),
        "decision_ms_p50": percentile(run.decision_ms, 50),
        "decision_ms_p99": percentile(run.decision_ms, 99),
    }


def completion_s(run: Run) -> list[float]:
    """Return the completion times of the completed jobs, in the order of submission."""
    times = []
    for record in run.records:
        time_s = record.completion_s
        if time_s is not None:
            times.append(time_s)
    return times


def wait_max_s(run: Run) -> float:
    """Return the longest wait in s. A job that never started waits until the end of the run."""
    longest_s = 0.0
    for record in run.records:
        longest_s = max(longest_s, record.longest_wait_s(run.ended_s))
    return longest_s


def makespan_s(run: Run) -> float | None:
    """Return the time from the first submission to the last end; None if no job ended."""
    ends = []
    for record in run.records:
        if record.finished_s is not None:
            ends.append(record.finished_s)
    if not ends:
        return None
    return max(ends) - _first_s(run)


def utilisation(run: Run) -> float | None:
    """Return the share of the offered resources that was held, 0..1; None if none was offered."""
    first_s = _first_s(run)
    last_s = first_s + (makespan_s(run) or 0.0)
    held = 0.0
    offered = 0.0
    for from_s, to_s, used, free in held_and_offered(run):
        seconds = max(0.0, min(to_s, last_s) - max(from_s, first_s))
        held += used * seconds
        offered += free * seconds

    if offered > 0:
        return held / offered
    return None


def held_and_offered(run: Run) -> list[Share]:
    """Return (from, to, held, offered) between changes, in devices if any job wants one, else in
    cores.
    """
    unit = "cpu"
    if any(record.work.worker_gpu for record in run.records):
        unit = "gpu"

    end = (run.ended_s, Amount(), Amount())
    found = []
    for (from_s, used, free), (to_s, _, _) in pairwise([*run.held, end]):
        share = (from_s, to_s, getattr(used, unit), getattr(free, unit))
        found.append(share)
    return found


def timeline(run: Run) -> dict[str, list[list[float]]]:
    """Return each job's allocation over time: `[seconds, ps, workers, batch]` from each change."""
    times = {}
    for record in run.records:
        times[record.work.job] = [list(size) for size in record.sizes]
    return times


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return a percentile (`share` in 0..100), rounded; None without values."""
    if not values:
        return None
    return _rounded_figure(float(np.percentile(values, share)))


def _first_s(run: Run) -> float:
    """Return the time of the first submission; 0 without jobs."""
    return min((record.work.submitted_s for record in run.records), default=0.0)


def _rounded_figure(value: float | None) -> float | None:
    if value is None:
        return None
    return round(value, 6)


SizeChange = tuple[float, int, int, int]
"""A time; from then on, the number of ps and of workers, and the batch."""


@dataclass
class JobRecord:
    """The history of one job."""

    work: Work
    started_s: float | None = None
    finished_s: float | None = None
    outcome: Outcome | None = None
    resizes: int = 0
    paused_s: float = 0.0
    """The time after its first start in which the job did not train."""
    sizes: list[SizeChange] = field(default_factory=list)
    """An entry for each change of the size, and for the end."""

    def add_decision(self, decision: AllocationDecided, now: float) -> None:
        """Record the size of a decision, if it differs from the last one."""
        ps = role_count(decision, "ps")
        workers = role_count(decision, "worker")
        size = (ps, workers, decision.batch)
        if self.sizes and self.sizes[-1][1:] == size:
            return
        self.sizes.append((now, *size))

    def add_resumption(self, now: float, stopped_s: float) -> None:
        """Record that a generation trains: the first starts the job, a later one is a resize."""
        if self.started_s is None:
            self.started_s = now
            return
        self.resizes += 1
        self.paused_s += max(0.0, now - stopped_s)

    def over(self, outcome: Outcome, now: float) -> None:
        """Record the end of the job."""
        self.finished_s = now
        self.outcome = outcome
        self.sizes.append((now, 0, 0, 0))

    @property
    def is_completed(self) -> bool:
        """True if the job succeeded."""
        return self.outcome == "succeeded"

    @property
    def completion_s(self) -> float | None:
        """Seconds from submission to the end, waiting included; None if it was not completed."""
        if not self.is_completed or self.finished_s is None:
            return None
        return self.finished_s - self.work.submitted_s

    def longest_wait_s(self, ended_s: float) -> float:
        """Return the longest time without tasks, up to the end of the job, or of the run."""
        end_s = ended_s if self.finished_s is None else self.finished_s
        longest_s = 0.0
        since_s = self.work.submitted_s  # infinite while the job has tasks
        # The end counts as a change to a size with tasks.
        for at_s, ps, workers, _ in (*self.sizes, (end_s, 0, 1, 0)):
            if ps + workers == 0:
                since_s = min(since_s, at_s)
            elif since_s < inf:
                waited_s = min(at_s, end_s) - since_s
                longest_s = max(longest_s, waited_s)
                since_s = inf
        return longest_s
