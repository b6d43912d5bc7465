"""Move a task that gets too little CPU to another node, while it still works.

    worst    = the least share of its CPU that a task gets (`state/observations.py`)
    limits   = 1 for ps and chief: every update waits for each of them
               1 / workers for a worker: the others continue
    saved_s  = remaining / v * (1 - worst) * limits      [s], v in examples a second
    it pays  <=>  saved_s > payback_factor * cost_s, the mean pause of the job's last hand-overs

A node with a starving task takes no new tasks meanwhile. Only a task that has starved for
`starved_s` moves. A job does not use a node again within `shun_s` after a task left it for this
reason, so tasks do not move in circles. This is our reconstruction of DLRover-RM's answer to hot ps
and stragglers. A slow worker gets less work at once in any case, because each worker takes a batch
when it is free.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.allocator.placement.trial import Shortage
from services.allocator.settings import Rules
from services.allocator.state import observations
from services.allocator.state.job import Job
from services.allocator.state.policy_view import size_of, view_of_job
from services.allocator.steps.resize_conditions import cost_s, retry_s
from services.allocator.steps.verdict import Rationale, Situation, Verdict, grant_tasks
from shared.messages import AllocationDecided, TaskPlan


def slow_nodes(jobs: Iterable[Job], now: float, rules: Rules) -> set[str]:
    """Return the nodes with a starving task. They take nothing new meanwhile."""
    nodes = set()
    for job in jobs:
        for task in _starving_tasks(job, now, rules):
            nodes.add(task.node)
    return nodes


def migrate_slow_tasks(situation: Situation) -> Verdict | None:
    """Move starving tasks to other nodes. None: no task starves, the move does not pay, or there is
    no room.
    """
    job = situation.job
    now = situation.now
    settings = situation.settings
    current = situation.current
    starving = _starving_tasks(job, now, settings)
    if current is None or not starving or now < retry_s(job, settings):
        return None

    saved_s = _saved_s(job, current, starving)
    pause_s = cost_s(view_of_job(job, settings), settings)
    if saved_s <= settings.payback_factor * pause_s:
        return None

    keep = [task for task in current.tasks if task not in starving]
    avoided = _avoided_nodes(job, now, settings)
    trial = situation.trial(keep, size_of(current), avoid=avoided)
    if isinstance(trial, Shortage):
        return None

    shares = ", ".join([_describe_cpu_share(job, task) for task in starving])
    rationale = Rationale(
        reason=f"{shares}; moved",
        cause=job.pod(starving[0]),
        gain_s=saved_s,
        cost_s=pause_s,
    )
    return grant_tasks(situation, trial.tasks, current.batch, rationale)


def _avoided_nodes(job: Job, now: float, rules: Rules) -> frozenset[str]:
    """Return the nodes from which a starving task of the job was moved a short time ago."""
    nodes = set()
    for node, fled_s in job.starved.items():
        if now < fled_s + rules.shun_s:
            nodes.add(node)
    return frozenset(nodes)


def _starving_tasks(job: Job, now: float, rules: Rules) -> list[TaskPlan]:
    """Return the tasks that have starved for long enough, of a job that runs unchanged."""
    if not job.starving or job.active_decision is None or job.pending_generation is not None:
        return []
    since_s = now - rules.starved_s
    return [
        task for task in job.active_decision.tasks if job.starving.get(task.name(), now) <= since_s
    ]


def _saved_s(job: Job, current: AllocationDecided, starving: list[TaskPlan]) -> float:
    """Return the training time (s) that is saved if the worst of these tasks starves no longer."""
    progress = job.progress
    if progress is None or progress.samples_per_second <= 0:
        return 0.0
    remaining_s = (progress.total_samples - progress.samples) / progress.samples_per_second
    saved = []
    for task in starving:
        lacking = 1 - _cpu_share(job, task)
        saved.append(remaining_s * lacking * _speed_share(current, task))
    return max(saved)


def _cpu_share(job: Job, task: TaskPlan) -> float:
    """Return the share of its CPU that a task gets; 1: not known."""
    if job.progress is None:
        return 1.0
    name = task.name()
    for use in job.progress.usage:
        if use.task == name:
            share = observations.cpu_share(use, task.resources.cpu)
            return 1.0 if share is None else share
    return 1.0


def _speed_share(current: AllocationDecided, task: TaskPlan) -> float:
    """Return the share of the job's speed that depends on a task."""
    if task.role != "worker":
        return 1.0
    return 1 / size_of(current).workers


def _describe_cpu_share(job: Job, task: TaskPlan) -> str:
    """Return the share of its promised CPU that a task gets, as a part of the reason."""
    share = _cpu_share(job, task)
    return f"{job.pod(task)} gets {share:.0%} of the CPU that it requested on {task.node}"
