"""The figures of one simulated run (the same ones for every policy).

jct          finish - submission, of the jobs that were completed                              [s]
makespan     last finish - first submission                                                    [s]
utilisation  integral of what our pods hold / integral of what tenants leave to us, over the makespan;
             of devices where any job wants one, else of cores
resizes      changes of a started job's tasks, nodes or batch, repairs among them
wait_max     the longest time that a job had no tasks: before its start, or while it was suspended     [s]
paused       what they cost: seconds in which started jobs stood still, summed over the jobs   [s]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

from services.allocator.failures import Failure
from services.allocator.simulator.machines import Amount
from services.allocator.simulator.record import Record


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What happened under one policy. `held`: (time, our pods', what tenants leave) from each change on."""

    policy: str
    records: tuple[Record, ...]
    held: tuple[tuple[float, Amount, Amount], ...]
    decision_ms: tuple[float, ...]
    ended_s: float
    failures: tuple[Failure, ...] = ()
    """The jobs that the policy failed with, each error once (`failures.py`)."""


Figures = dict[str, float | int | None]


def figures(run: Run) -> Figures:
    """By the names under which they are handed out; None where no job was completed."""
    times = completion_s(run)
    return {
        "jct_mean_s": _rounded(float(np.mean(times)) if times else None),
        "jct_median_s": percentile(times, 50),
        "jct_p95_s": percentile(times, 95),
        "jct_p99_s": percentile(times, 99),
        "wait_max_s": _rounded(wait_max_s(run)),
        "makespan_s": _rounded(makespan_s(run)),
        "utilisation": _rounded(utilisation(run)),
        "completed": len(times),
        "submitted": len(run.records),
        "resizes": sum(record.resizes for record in run.records),
        "paused_s": _rounded(sum(record.paused_s for record in run.records)),
        "decisions": len(run.decision_ms),
        "decision_ms_p50": percentile(run.decision_ms, 50),
        "decision_ms_p99": percentile(run.decision_ms, 99),
    }


def completion_s(run: Run) -> list[float]:
    """Of the completed jobs, in the order of submission."""
    return [seconds for record in run.records if (seconds := record.completion_s) is not None]


def wait_max_s(run: Run) -> float:
    """Jobs that never started count to the end of the run."""
    return max((record.longest_wait_s(run.ended_s) for record in run.records), default=0.0)


def makespan_s(run: Run) -> float | None:
    ends = [record.finished_s for record in run.records if record.finished_s is not None]
    return max(ends) - _first_s(run) if ends else None


def utilisation(run: Run) -> float | None:
    """0..1; None where nothing was to be had."""
    first, last = _first_s(run), _first_s(run) + (makespan_s(run) or 0.0)
    held = offered = 0.0
    for from_s, to_s, used, free in shares(run):
        seconds = max(0.0, min(to_s, last) - max(from_s, first))
        held, offered = held + used * seconds, offered + free * seconds
    return held / offered if offered > 0 else None


def shares(run: Run) -> list[tuple[float, float, float, float]]:
    """(from, to, held, offered) between changes: devices where any job wants one, else cores."""
    unit = "gpu" if any(record.work.worker_gpu for record in run.records) else "cpu"
    ends = [*run.held, (run.ended_s, Amount(), Amount())]
    return [(t, until, getattr(used, unit), getattr(free, unit)) for (t, used, free), (until, *_) in pairwise(ends)]


def timeline(run: Run) -> dict[str, list[list[float]]]:
    """Each job's allocation over time: `[seconds, ps, workers, batch]` from each change on."""
    return {record.work.job: [list(size) for size in record.sizes] for record in run.records}


def percentile(values: Sequence[float], share: float) -> float | None:
    return _rounded(float(np.percentile(values, share)) if values else None)


def _first_s(run: Run) -> float:
    return min((record.work.submitted_s for record in run.records), default=0.0)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
