"""When is a job over, without its trainer saying so?

Cancelled; too many generations with a task that failed by itself; or never started in too many tries.
"""

from __future__ import annotations

from services.allocator import exits
from services.allocator.job import Job
from services.allocator.rules import Rules
from services.allocator.verdict import Verdict
from shared.messages import JobFinished, Outcome


def ending(job: Job, now: float, rules: Rules) -> Verdict | None:
    if job.cancelled:
        return _over(job, "cancelled", "cancelled on request", now)
    if len(job.failed_generations) >= max(1, rules.max_failures):
        return _over(job, "failed", f"{len(job.failed_generations)} generations failed; {_last_fault(job)}", now)
    if job.running is None and job.abandonments >= max(1, rules.max_start_failures):
        return _over(job, "failed", f"not started in {job.abandonments} tries; {job.abandoned_why}", now)
    return None


def _last_fault(job: Job) -> str:
    faults = [(e.at_s, pod, e) for pod, e in job.exits.items() if exits.own_fault(e)]
    if not faults:
        return "the cause is no longer known"
    _, pod, ended = max(faults, key=lambda f: (f[0], f[1]))
    return f"the last: {pod}: {exits.told(ended)}"


def _over(job: Job, outcome: Outcome, cause: str, now: float) -> Verdict:
    progress = job.progress
    finished = JobFinished(
        job=job.request.job,
        namespace=job.request.namespace,
        uid=job.uid,
        generation=job.generation,
        outcome=outcome,
        cause=cause,
        step=progress.step if progress else 0,
        samples=progress.samples if progress else 0,
        finished_s=now,
    )
    return Verdict(why=cause, action=finished)
