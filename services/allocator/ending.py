"""When is a job over, without its trainer saying so?

Cancelled; too many generations within `failure_window_s` with a task that failed by itself; too
many with one that was killed while the job got no further; or not started, or started again, in too
many tries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from services.allocator import exits
from services.allocator.exits import Exit
from services.allocator.job import Job
from services.allocator.rules import Rules
from services.allocator.verdict import Verdict
from shared.messages import JobFinished, Outcome, TaskPlan
from shared.words import counted, lasting


def ending(job: Job, now: float, rules: Rules) -> Verdict | None:
    """End a job that is over; None: it goes on."""
    if job.cancelled:
        return _over(job, "cancelled", "cancelled on request", now)
    cause = _failure(job, now, rules)
    return _over(job, "failed", cause, now) if cause else None


def charged(job: Job, lost: Iterable[TaskPlan], now: float, rules: Rules) -> str:
    """Return the budget that the loss of these tasks counts against, and its use."""
    ends = []
    for task in lost:
        ended = job.exit_of(task)
        if ended:
            ends.append(ended)
    most = max(1, rules.max_failures)
    if any(map(exits.own_fault, ends)):
        failed = job.recent_failures(now, rules.failure_window_s)
        return f"failed generation {failed} of {most} within {lasting(rules.failure_window_s)}"
    base = job.runs or job.flies
    if base and base.generation in job.killed_generations and any(map(exits.unexplained, ends)):
        killed = len(job.killed_generations)
        return f"killed generation {killed} of {most} while the job gets no further"
    return "not by its fault, so it counts against no budget"


def _failure(job: Job, now: float, rules: Rules) -> str | None:
    """Return why a job has failed; None: it has not."""
    most_failures = max(1, rules.max_failures)
    failed = job.recent_failures(now, rules.failure_window_s)
    if failed >= most_failures:
        generations = counted(failed, "generation")
        within = lasting(rules.failure_window_s)
        return f"{generations} failed within {within}; {_last(job, exits.own_fault)}"
    killed = len(job.killed_generations)
    if killed >= most_failures:
        generations = f"{counted(killed, 'generation')} {'was' if killed == 1 else 'were'}"
        at_most = f"none got further than {counted(job.furthest, 'example')}"
        return f"{generations} killed, {at_most}; {_last(job, exits.unexplained)}"
    tries = max(1, rules.max_start_failures)
    if job.running is None and not job.suspended_s and job.abandonments >= tries:
        return f"not started in {job.abandonments} tries; {job.abandoned_why}"
    if job.unprepared >= tries and job.stands_still:
        return f"not started again in {job.unprepared} tries; {job.abandoned_why}"
    return None


def _last(job: Job, kind: Callable[[Exit], bool]) -> str:
    """Return the last exit of a kind: a line that can be read alone, and the end of its log."""
    pods = [pod for pod, ended in job.exits.items() if kind(ended)]
    if not pods:
        return "the cause is no longer known"
    pod = max(pods, key=lambda name: (job.exits[name].at_s, name))
    ended = job.exits[pod]
    log = f"\n{ended.message}" if "\n" in ended.message.strip() else ""
    return f"the last: {pod}: {exits.told(ended)}{log}"


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
