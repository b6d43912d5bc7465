"""A task that starves moves to a node that keeps its promise: make before break, while it still works.

    worst    = the least share that any of them gets of its CPU (`strain.py`)
    limits   = 1 for ps and chief: every update waits for each of them; 1 / workers for a worker: the others go on
    saved_s  = remaining / v * (1 - worst) * limits      [s], v in examples a second
    it pays  <=>  saved_s > payback_factor * cost_s, the mean pause of the job's last hand-overs

A node on which somebody starves takes nothing new meanwhile. What has starved for less than `starved_s` may pass; where
a task has fled from a node, none of its job flees there within `shun_s`, so that nothing goes round in circles. Our
reconstruction of DLRover-RM's answer to hot ps and stragglers; a worker that is only slow gets less work at once in any
case, because each takes a batch when it is free.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.allocator import strain
from services.allocator.job import Job
from services.allocator.payback import cost_s
from services.allocator.placing.placement import Room, place
from services.allocator.placing.resizing import wanted_sizes
from services.allocator.rules import Rules
from services.allocator.seen import seen, size_of
from services.allocator.timing import retry_s
from services.allocator.verdict import Verdict, decision
from shared.messages import AllocationDecided, TaskPlan


def shunned(jobs: Iterable[Job], now: float, rules: Rules) -> set[str]:
    """The nodes that starve somebody: they take nothing new meanwhile."""
    return {task.node for job in jobs for task in _starving(job, now, rules)}


def relieved(job: Job, room: Room, now: float, rules: Rules) -> Verdict | None:
    """None where nobody starves, nothing is gained, or there is no room elsewhere."""
    runs, starving = job.runs, _starving(job, now, rules)
    if runs is None or not starving or now < retry_s(job, rules):
        return None
    saved_s, cost = _saved_s(job, runs, starving), cost_s(seen(job, rules), rules)
    if saved_s <= rules.payback_factor * cost:
        return None
    keep = [task for task in runs.tasks if task not in starving]
    with room.avoiding([node for node, fled_s in job.starved.items() if now < fled_s + rules.shun_s]):
        tasks = place(room, job.key, keep, size_of(runs), wanted_sizes(job, None, rules), job.serials)
    if tasks is None:
        return None
    reason = f"{', '.join(_told(job, task) for task in starving)}; moved"
    cause = job.pod(starving[0])
    action = decision(job, tasks, runs.batch, now, reason=reason, cause=cause, gain_s=saved_s, cost_s=cost)
    return Verdict(why=reason, action=action)


def _starving(job: Job, now: float, rules: Rules) -> list[TaskPlan]:
    """For long enough, of a job that runs and is not changing."""
    if not job.starving or job.runs is None or job.coming is not None:
        return []
    return [t for t in job.runs.tasks if job.starving.get(t.name(), now) <= now - rules.starved_s]


def _saved_s(job: Job, runs: AllocationDecided, starving: list[TaskPlan]) -> float:
    progress = job.progress
    if progress is None or progress.samples_per_second <= 0:
        return 0.0
    remaining_s = (progress.total_samples - progress.samples) / progress.samples_per_second
    return max(remaining_s * (1 - _share(job, task)) * _limits(runs, task) for task in starving)


def _share(job: Job, task: TaskPlan) -> float:
    uses = job.progress.usage if job.progress else ()
    found = next((strain.got(use, task.resources.cpu) for use in uses if use.task == task.name()), None)
    return 1.0 if found is None else found


def _limits(runs: AllocationDecided, task: TaskPlan) -> float:
    return 1 / size_of(runs).workers if task.role == "worker" else 1.0


def _told(job: Job, task: TaskPlan) -> str:
    return f"{job.pod(task)} gets {_share(job, task):.0%} of the CPU that {task.node} has promised it"
