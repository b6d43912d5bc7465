"""End a job that its trainer cannot end, and suspend a job for its user.

A job is over if it was cancelled; if too many generations within `failure_window_s` had a task that
failed by itself; if too many had a task that was killed, without progress in between; or if it
could not be started, or started again, in too many tries.

A suspended job drains, saves and gives back all its capacity, as a job that gives way
(`preemption.py`). It waits for nothing, so no capacity is reserved for it. After the user resumes
it, it waits as of that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from services.allocator.settings import Rules
from services.allocator.state.job import Exit, Job, describe_exit, is_own_fault, is_unexplained
from services.allocator.steps.preemption import decide_tasks
from services.allocator.steps.verdict import Situation, Verdict
from shared.messages import JobFinished, Outcome, TaskPlan
from shared.text import format_count, format_duration

SUSPENDED = "suspended by its user; `weir resume` continues it"
SUSPENDS = "suspended by its user: saves, and continues after `weir resume`"


def finish(job: Job, now: float, rules: Rules) -> Verdict | None:
    """End a job that is over; None: it goes on."""
    if job.cancelled:
        return _finish_job(job, "cancelled", "cancelled on request", now)
    cause = _failure_cause(job, now, rules)
    if cause is None:
        return None
    return _finish_job(job, "failed", cause, now)


def suspend(situation: Situation) -> Verdict | None:
    """Take the tasks of a job that its user suspended; None: there is nothing to take now, or it
    was not suspended.
    """
    job = situation.job
    if not job.suspended_by_user:
        return None
    if situation.newest is None:
        return Verdict(why=SUSPENDED)
    if job.pending_generation is not None or job.is_trained:
        return None
    return decide_tasks(situation, (), SUSPENDS)


def describe_budget(job: Job, lost: Iterable[TaskPlan], now: float, rules: Rules) -> str:
    """Return the budget that the loss of these tasks counts against, and its use."""
    own_fault = False
    unexplained = False
    for task in lost:
        ended = job.exit_of(task)
        if ended is not None:
            own_fault |= is_own_fault(ended)
            unexplained |= is_unexplained(ended)

    most = max(1, rules.max_failures)
    if own_fault:
        failed = job.recent_failures(now, rules.failure_window_s)
        return (
            f"failed generation {failed} of {most} within {format_duration(rules.failure_window_s)}"
        )
    base = job.active_decision or job.pending_decision
    if unexplained and base and base.generation in job.killed_generations:
        killed = len(job.killed_generations)
        return f"killed generation {killed} of {most} without progress of the job"
    return "not the job's fault, so it counts against no budget"


def _failure_cause(job: Job, now: float, rules: Rules) -> str | None:
    """Return why a job has failed; None: it has not."""
    most_failures = max(1, rules.max_failures)
    failed = job.recent_failures(now, rules.failure_window_s)
    if failed >= most_failures:
        generations = format_count(failed, "generation")
        within = format_duration(rules.failure_window_s)
        return f"{generations} failed within {within}; {_describe_last_exit(job, is_own_fault)}"
    if len(job.killed_generations) >= most_failures:
        return _describe_killed(job)
    return _failure_to_start(job, max(1, rules.max_start_failures))


def _describe_killed(job: Job) -> str:
    """Return why a job fails after too many killed generations without progress: their number, the
    largest number of examples, and the last exit.
    """
    killed = len(job.killed_generations)
    were = "was" if killed == 1 else "were"
    examples = format_count(job.furthest, "example")
    generations = f"{format_count(killed, 'generation')} {were} killed"
    last = _describe_last_exit(job, is_unexplained)
    return f"{generations} without progress beyond {examples}; {last}"


def _failure_to_start(job: Job, tries: int) -> str | None:
    """Return why a job is not started, or started again, any more; None: it may be tried again."""
    is_new = job.running is None and not job.suspended_s
    if is_new and job.abandonments >= tries:
        return f"not started in {job.abandonments} tries; {job.abandoned_why}"
    if job.unprepared >= tries and job.stands_still:
        return f"not started again in {job.unprepared} tries; {job.abandoned_why}"
    return None


def _describe_last_exit(job: Job, kind: Callable[[Exit], bool]) -> str:
    """Return the last exit of a kind: a line that can be read alone, and the end of its log."""
    ends = []
    for pod, ended in job.exits.items():
        if kind(ended):
            ends.append((ended.at_s, pod))
    if not ends:
        return "the cause is no longer known"
    _, pod = max(ends)
    ended = job.exits[pod]
    last = f"the last: {pod}: {describe_exit(ended)}"
    if "\n" in ended.message.strip():
        return f"{last}\n{ended.message}"
    return last


def _finish_job(job: Job, outcome: Outcome, cause: str, now: float) -> Verdict:
    """Return the verdict that finishes a job, with the steps and samples of its last report."""
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
