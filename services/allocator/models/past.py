"""What is remembered of a job that succeeded, for those like it: its last plan, the memory it used, and what was timed.

Memory that was never measured counts as what its tasks had. The last reports of a job are kept, not all: where none is
left of its beginning, the memory of all its ps is that of the earliest that are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from services.allocator.job import Job
from services.allocator.models.evidence import believable
from services.allocator.models.history import EARLY
from services.allocator.policies.contract import Observed, Past, Plan, Reading, Timed
from services.allocator.state import Closed
from shared.messages import AllocationDecided, Resources, Role

TIMED_KEPT = 12


def past_of(end: Closed) -> Iterator[Past]:
    """Nothing of a job that did not succeed, or that had no ps."""
    job, runs = end.job, end.job.runs
    if end.finished.outcome != "succeeded" or runs is None:
        return
    ps, worker = _largest(runs, "ps"), _largest(runs, "worker")
    if ps is None or worker is None or min(ps.cpu, worker.cpu) <= 0:
        return
    count = {role: sum(task.role == role for task in runs.tasks) for role in ("ps", "worker")}
    yield Past(
        request=job.request,
        plan=Plan(count["ps"], count["worker"], ps.cpu, worker.cpu),
        ps_gib=_early_gib(job) or ps.memory_gib * count["ps"],
        worker_gib=max((r.worker_gib or 0.0 for r in job.recent if _told(r.worker_gib)), default=worker.memory_gib),
        timed=tuple(timed(o) for o in job.tried if _timeable(o))[-TIMED_KEPT:],
        finished_s=end.finished.finished_s,
    )


def _largest(runs: AllocationDecided, role: Role) -> Resources | None:
    tasks = [task.resources for task in runs.tasks if task.role == role]
    return max(tasks, key=lambda held: (held.cpu, held.memory_gib), default=None)


def _early_gib(job: Job) -> float:
    """Of all ps together, GiB; 0 where it was not measured."""
    total = job.progress.total_samples if job.progress else 0
    known = [r for r in job.recent if _told(r.ps_gib)]
    early = [r for r in known if r.samples <= EARLY * total] or known[:1]
    return max((_all_ps(r) for r in early), default=0.0)


def _all_ps(reading: Reading) -> float:
    return (reading.ps_gib or 0.0) * reading.ps


def _told(gib: float | None) -> bool:
    return gib is not None and math.isfinite(gib) and gib > 0


def _timeable(seen: Observed) -> bool:
    return bool(seen.ps_cpu and seen.worker_cpu and believable(seen))


def timed(seen: Observed) -> Timed:
    """A speed as seconds an iteration."""
    plan = Plan(seen.ps, seen.workers, seen.ps_cpu or 0.0, seen.worker_cpu or 0.0)
    return Timed(plan, seen.batch, seen.workers * seen.batch / seen.samples_per_second)
