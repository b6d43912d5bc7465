"""Move tasks that still work and have to leave their node.

A task is doomed if it was told to end, if its pod is evicted or deleted, or if its node is being
removed. It moves at once, without window, cooldown or payback, and never to its present node. No
other task goes there meanwhile. If not all tasks of the job fit elsewhere and the node takes no
tasks any more, the job moves smaller, down to its minimum. If the node still takes tasks, the
task's own room is about to become free, and one pause is enough. If there is no room, the task
waits, and `repair.py` replaces it after its end. With a deadline nothing else is decided meanwhile.
Without one the job changes as any other.

A cordon is an operator's order without a deadline: the node's tasks move as soon as all of them fit
elsewhere, one generation at a time, and the job never shrinks for it. A notice about a node applies
to all tasks on it, as long as the node takes no tasks. An operator who removes the cordon cancels
the evacuation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from services.allocator.placement.trial import Placed, Shortage
from services.allocator.state.job import Job
from services.allocator.state.policy_view import shrink_floor, size_of
from services.allocator.steps.resize_conditions import retry_s
from services.allocator.steps.verdict import Rationale, Situation, Verdict, grant_tasks
from shared.messages import CORDONED, OF_NODE, AllocationDecided, TaskPlan

Reasons = dict[TaskPlan, str]
"""The reason of each task that has to leave its node."""


def departure_reasons(job: Job, tasks: Sequence[TaskPlan]) -> Reasons:
    """Return the reason of each of these tasks that works and has to leave its node."""
    if not job.leaving:
        return {}
    notices: Reasons = {}
    for task in tasks:
        notice = job.leaving.get(job.pod(task))
        if notice is not None:
            notices[task] = notice.current_reason

    # A task without a notice of its own leaves for the reason that others have on its node.
    closed = _closed_nodes(notices)
    reasons: Reasons = {}
    for task in tasks:
        why = notices.get(task, CORDONED)
        if why in ("", *OF_NODE):
            why = closed.get(task.node, "")
        if why and not job.exit_of(task):
            reasons[task] = why
    return reasons


def _closed_nodes(notices: Reasons) -> dict[str, str]:
    """Return why nodes take no tasks, by node, the harder reason of two. It counts for all tasks
    there.
    """
    closed: dict[str, str] = {}
    for closing_reason in reversed(OF_NODE):
        for task, why in notices.items():
            if why == closing_reason:
                closed[task.node] = why
    return closed


def nodes_losing_tasks(jobs: Iterable[Job]) -> set[str]:
    """Return the nodes that a pod has to leave. They take nothing new meanwhile."""
    nodes = set()
    for job in jobs:
        if not job.leaving:
            continue
        for task in _tasks_with_own_notice(job):
            nodes.add(task.node)
    return nodes


def evacuate(situation: Situation) -> Verdict | None:
    """Move tasks off a node that is going away. None: no task has to leave, or a cordoned node's
    tasks do not fit elsewhere yet.
    """
    job, newest = situation.job, situation.newest
    if newest is None or not job.leaving:
        return None
    reasons = departure_reasons(job, newest.tasks)
    if not reasons:
        return None

    doomed = _doomed_tasks(reasons)
    retry_at_s = retry_s(job, situation.settings)
    is_paused = situation.now < retry_at_s
    if not doomed and (job.pending_generation is not None or is_paused):
        return None

    names = ", ".join(_departures(job, reasons))
    if is_paused:
        return Verdict(why=f"{names}; tries again after a pause", wake_s=retry_at_s)

    trial = _trial(situation, newest, list(reasons), doomed)
    if isinstance(trial, Placed):
        part = "" if len(trial.tasks) == len(newest.tasks) else ", as far as there is room"
        first = next(iter(reasons))
        rationale = Rationale(reason=f"{names}; moved{part}", cause=job.pod(first))
        return grant_tasks(situation, trial.tasks, newest.batch, rationale)
    if _has_deadline(job, doomed):
        return Verdict(why=f"{names}; there is no room for it elsewhere")
    return None


def _doomed_tasks(reasons: Reasons) -> list[TaskPlan]:
    """Return the tasks that leave for more than a cordon."""
    return [task for task, why in reasons.items() if why != CORDONED]


def _departures(job: Job, reasons: Reasons) -> list[str]:
    """Return each of these tasks in words, with its reason."""
    departures = []
    for task, why in reasons.items():
        departures.append(f"{job.pod(task)} has to leave {task.node} ({why})")
    return departures


def describe_staying(job: Job) -> str:
    """Return why tasks without a deadline have not left their nodes yet; empty: there are none."""
    if not job.leaving or job.newest_decision is None:
        return ""
    reasons = departure_reasons(job, job.newest_decision.tasks)
    cordoned = [job.pod(task) for task, why in reasons.items() if why == CORDONED]
    notes = []
    if cordoned:
        pods = ", ".join(cordoned)
        notes.append(f"{pods} will move from a cordoned node when all of that fits elsewhere")

    doomed = _doomed_tasks(reasons)
    if not _has_deadline(job, doomed):
        for departure in _departures(job, {task: reasons[task] for task in doomed}):
            notes.append(f"{departure} when there is room")
    return "; ".join(notes)


def _trial(
    situation: Situation,
    newest: AllocationDecided,
    leaves: list[TaskPlan],
    doomed: list[TaskPlan],
) -> Placed | Shortage:
    """Place all tasks that leave; else only the doomed ones, fewer of them if their own room is
    lost.
    """
    most = size_of(newest)
    attempts = [(_staying_tasks(newest, leaves), most, most)]
    if doomed:
        is_lost = all(_is_closed(situation.job, task) for task in doomed)
        least = shrink_floor(situation.job, most) if is_lost else most
        attempts.append((_staying_tasks(newest, doomed), most, least))
    return situation.first_trial(attempts)


def _staying_tasks(newest: AllocationDecided, leaving: list[TaskPlan]) -> list[TaskPlan]:
    """Return the tasks that stay once these are gone."""
    return [task for task in newest.tasks if task not in leaving]


def _has_deadline(job: Job, doomed: list[TaskPlan]) -> bool:
    """Return True if one of these tasks has a deadline. It is killed at that time."""
    for task in doomed:
        notice = job.leaving.get(job.pod(task))
        if notice is not None and notice.leaves_s:
            return True
    return False


def _is_closed(job: Job, task: TaskPlan) -> bool:
    """Return True if the task's node takes no tasks; a task without a notice of its own leaves
    because of its node.
    """
    notice = job.leaving.get(job.pod(task))
    return notice is None or bool(notice.closed)


def _tasks_with_own_notice(job: Job) -> list[TaskPlan]:
    """Return the tasks that have to go for a reason of their own, not their node's."""
    found = []
    for decided in (job.active_decision, job.pending_decision):
        if decided is None:
            continue
        for task in decided.tasks:
            notice = job.leaving.get(job.pod(task))
            if notice and notice.why not in OF_NODE and not job.exit_of(task):
                found.append(task)
    return found
