"""When is a job over, without its trainer saying so?

Cancelled; too many generations within `failure_window_s` with a task that failed by itself; too many with one that was
killed while the job got no further; or not started, or started again, in too many tries.
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
    if job.cancelled:
        return _over(job, "cancelled", "cancelled on request", now)
    cause = _failure(job, now, rules, max(1, rules.max_failures), max(1, rules.max_start_failures))
    return _over(job, "failed", cause, now) if cause else None


def charged(job: Job, lost: Iterable[TaskPlan], now: float, rules: Rules) -> str:
    """Against which budget the loss of these tasks counts, and how much of that is used."""
    ends = [ended for task in lost if (ended := job.exit_of(task))]
    most = max(1, rules.max_failures)
    if any(map(exits.own_fault, ends)):
        within = lasting(rules.failure_window_s)
        return f"failed generation {job.recent_failures(now, rules.failure_window_s)} of {most} within {within}"
    base = job.runs or job.flies
    if any(map(exits.unexplained, ends)) and base and base.generation in job.killed_generations:
        return f"killed generation {len(job.killed_generations)} of {most} while the job gets no further"
    return "not by its fault, so it counts against no budget"


def _failure(job: Job, now: float, rules: Rules, failures: int, tries: int) -> str | None:
    if (failed := job.recent_failures(now, rules.failure_window_s)) >= failures:
        within = lasting(rules.failure_window_s)
        return f"{counted(failed, 'generation')} failed within {within}; {_last(job, exits.own_fault)}"
    if (killed := len(job.killed_generations)) >= failures:
        at_most = f"none got further than {counted(job.furthest, 'example')}"
        were = "was" if killed == 1 else "were"
        return f"{counted(killed, 'generation')} {were} killed, {at_most}; {_last(job, exits.unexplained)}"
    if job.running is None and not job.suspended_s and job.abandonments >= tries:
        return f"not started in {job.abandonments} tries; {job.abandoned_why}"
    if job.unprepared >= tries and job.stands_still:
        return f"not started again in {job.unprepared} tries; {job.abandoned_why}"
    return None


def _last(job: Job, kind: Callable[[Exit], bool]) -> str:
    """The last exit of a kind: a line that can be read alone, and the end of its log."""
    found = [(e.at_s, pod, e) for pod, e in job.exits.items() if kind(e)]
    if not found:
        return "the cause is no longer known"
    _, pod, ended = max(found, key=lambda f: (f[0], f[1]))
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
