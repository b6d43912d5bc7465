"""Replace lost tasks.

Each lost task gets a replacement at once, with a new serial, on any node that fits. If not all fit,
the job waits for the lost pod's own room to become free; after that time it shrinks, down to its
minimum. If not even that fits, it waits for room. If nodes were shut down, or all tasks are lost,
the time begins again with each node that comes back. The decision replaces a pending generation,
unless that generation lost a new task that could not be scheduled, or that failed by itself while
the old generation trains on: the launcher abandons such a generation.

A chief that ends well first reports that the job is over. If this report is missing, the chief is
replaced after `finish_s`.
"""

from __future__ import annotations

import math

from services.allocator.placement.trial import Placed, Shortage
from services.allocator.settings import Rules
from services.allocator.state.job import (
    SHUT_DOWN,
    UNSCHEDULABLE,
    Job,
    describe_exit,
    is_completed,
    is_own_fault,
)
from services.allocator.state.policy_view import shrink_floor, size_of
from services.allocator.steps.evacuation import departure_reasons
from services.allocator.steps.finish import describe_budget
from services.allocator.steps.resize_conditions import retry_s
from services.allocator.steps.verdict import Rationale, Situation, Verdict, grant_tasks
from shared.messages import AllocationDecided, TaskPlan
from shared.text import format_some_names

Tasks = list[TaskPlan]


def replace_lost_tasks(situation: Situation) -> Verdict | None:
    """Replace lost tasks. None: nothing is lost."""
    job, newest = situation.job, situation.newest
    if newest is None or not job.exits:
        return None
    report_until_s = _report_deadline_s(job, newest, situation.settings)
    if situation.now < report_until_s:
        return Verdict(
            why="the chief has completed; the job is about to finish", wake_s=report_until_s
        )
    lost = _lost_tasks(job, newest)
    if not lost:
        return None
    names = _describe_loss(job, lost)
    retry_at_s = retry_s(job, situation.settings)
    if situation.now < retry_at_s:
        return Verdict(why=f"{names}; tries again after a pause", wake_s=retry_at_s)
    return _replace_tasks(situation, newest, lost, names)


def _replace_tasks(
    situation: Situation, newest: AllocationDecided, lost: Tasks, names: str
) -> Verdict:
    """Replace the lost tasks, or wait for room."""
    job, now = situation.job, situation.now
    settled_s = _lost_s(situation, newest, lost) + situation.settings.settle_s
    is_settled = now >= settled_s

    trial = _trial(situation, newest, lost, may_shrink=is_settled)
    if isinstance(trial, Shortage):
        if not is_settled:
            return Verdict(
                why=f"{names}; waits until the capacity of lost pods is free", wake_s=settled_s
            )
        roles = [task.role for task in lost]
        return Verdict(why=f"{names}; {trial.describe_for(roles, 'to replace it')}")

    part = "" if len(trial.tasks) == len(newest.tasks) else " as far as there is room"
    reason = f"{names}; replaced{part}"
    if not _were_shut_down(job, lost):
        reason = f"{reason} ({describe_budget(job, lost, now, situation.settings)})"
    rationale = Rationale(reason=reason, cause=job.pod(lost[0]))
    return grant_tasks(situation, trial.tasks, newest.batch, rationale)


def _trial(
    situation: Situation, newest: AllocationDecided, lost: Tasks, *, may_shrink: bool
) -> Placed | Shortage:
    """Place new tasks for the lost ones. Tasks that have to leave move in the same hand-over, if
    there is room.
    """
    job, most = situation.job, size_of(newest)
    least = shrink_floor(job, most) if may_shrink else most
    keep = [task for task in newest.tasks if task not in lost]
    leave = departure_reasons(job, keep)
    attempts = [(keep, most, least)]
    if leave:
        staying = [task for task in keep if task not in leave]
        attempts.insert(0, (staying, most, most))
    return situation.first_trial(attempts)


def _lost_s(situation: Situation, newest: AllocationDecided, lost: Tasks) -> float:
    """Return when (s) the last of the lost tasks ended. Nodes that were shut down come back one
    after another, so then the time begins again with each.
    """
    job = situation.job
    ended_s = max([job.exits[job.pod(task)].at_s for task in lost])
    if _were_shut_down(job, lost) or len(lost) == len(newest.tasks):
        return max(ended_s, situation.opened_s)
    return ended_s


def _report_deadline_s(job: Job, newest: AllocationDecided, rules: Rules) -> float:
    """Return until when (s) a chief that ended well may still report that the job is over."""
    until_s = -math.inf
    for task in newest.tasks:
        if task.role != "chief":
            continue
        end = job.exit_of(task)
        if end and is_completed(end):
            until_s = max(until_s, end.at_s + rules.finish_s)
    return until_s


def _lost_tasks(job: Job, newest: AllocationDecided) -> Tasks:
    """Return the tasks that have ended and are to be replaced."""
    lost = []
    for task in newest.tasks:
        if job.exit_of(task) and not _is_left_to_launcher(job, task):
            lost.append(task)
    return lost


def _is_left_to_launcher(job: Job, task: TaskPlan) -> bool:
    """Return True if the launcher abandons the generation in flight because of this new task."""
    ended, current = job.exit_of(task), job.active_decision
    if ended is None:
        return False
    if current is None:
        return ended.reason == UNSCHEDULABLE
    for running in current.tasks:
        if running.serial == task.serial:
            return False
    return ended.reason == UNSCHEDULABLE or is_own_fault(ended)


def _describe_loss(job: Job, lost: Tasks) -> str:
    """Return the lost pods for the decision's reason: as one shutdown if all of them were shut down
    in order, else each with its exit.
    """
    if _were_shut_down(job, lost):
        pods = [job.pod(task) for task in lost]
        return f"was stopped with its cluster or its nodes ({format_some_names(pods, 'pod')})"
    ends = [_describe_end(job, task) for task in lost]
    return f"lost {format_some_names(ends, 'pod')}"


def _were_shut_down(job: Job, tasks: Tasks) -> bool:
    """Return True if all of these tasks were shut down in order, so that no fault is looked for."""
    for task in tasks:
        ended = job.exit_of(task)
        if ended is None or ended.reason not in SHUT_DOWN:
            return False
    return True


def _describe_end(job: Job, task: TaskPlan) -> str:
    """Return the name of a task's pod, with its exit if that is known."""
    pod = job.pod(task)
    ended = job.exit_of(task)
    if ended is None:
        return pod
    return f"{pod} ({describe_exit(ended)})"
