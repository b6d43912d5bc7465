"""Tasks that still work and will have to go: each is given another place before it is lost.

A task that was told to end, whose pod is evicted or deleted, or whose node is being taken away, is
doomed: it moves at once, without window, cooldown or payback, because nobody wishes for it. It
never goes where it stands now, nor does anything else while it is there. Where not all of the job
fits elsewhere it moves smaller, down to its minimum, if its node takes nothing any more; where it
does, the room of the task itself is about to come free, and one pause is enough. Where there is no
room it waits, and `repair` does what is left to do once the task has ended. With a deadline nothing
else is decided meanwhile; without one that could be for ever, so the job then changes as any other.

A cordon is an operator's order without a deadline: the node's tasks move as soon as all of them fit
elsewhere, one generation at a time, and the job never shrinks for it. What is said of a node is
said of all tasks on it, and counts for as long as the node takes no tasks; so who takes a cordon
back, takes this back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from services.allocator.job import Job
from services.allocator.placing.trial import Placed, Shortage
from services.allocator.seen import least_of, size_of
from services.allocator.situation import Situation
from services.allocator.timing import retry_s
from services.allocator.verdict import Verdict, decision
from shared.messages import CORDONED, OF_NODE, AllocationDecided, TaskPlan

Whys = dict[TaskPlan, str]
"""Why each of the tasks that have to leave has to."""


def going(job: Job, tasks: Sequence[TaskPlan]) -> Whys:
    """Return the reason of each of these tasks that works and has to leave its node."""
    if not job.leaving:
        return {}
    notices: Whys = {}
    for task in tasks:
        notice = job.leaving.get(job.pod(task))
        if notice is not None:
            notices[task] = notice.counts
    # What is said of a node counts for all tasks on it; the hardest word last.
    closed: dict[str, str] = {}
    for word in reversed(OF_NODE):
        for task, why in notices.items():
            if why == word:
                closed[task.node] = why
    whys: Whys = {}
    for task in tasks:
        why = notices.get(task, CORDONED)
        if why in ("", *OF_NODE):
            why = closed.get(task.node, "")
        if why and not job.exit_of(task):
            whys[task] = why
    return whys


def shunned(jobs: Iterable[Job]) -> set[str]:
    """Return the nodes that a pod is being sent away from: they take nothing new meanwhile."""
    nodes = set()
    for job in jobs:
        if job.leaving:
            nodes.update([task.node for task in _sent_away(job)])
    return nodes


def moved(situation: Situation) -> Verdict | None:
    """Move tasks off a node that is going away. None: no task has to leave, or a cordoned node's
    tasks do not fit elsewhere yet.
    """
    job, now = situation.job, situation.now
    newest = situation.newest
    if newest is None or not job.leaving:
        return None
    whys = going(job, newest.tasks)
    if not whys:
        return None
    doomed = [task for task, why in whys.items() if why != CORDONED]
    again_s = retry_s(job, situation.settings)
    if not doomed and (job.coming is not None or now < again_s):
        return None
    names = ", ".join(
        [f"{job.pod(task)} has to leave {task.node} ({why})" for task, why in whys.items()]
    )
    if now < again_s:
        return Verdict(why=f"{names}; tries again after a pause", wake_s=again_s)
    trial = _trial(situation, newest, list(whys), doomed)
    if isinstance(trial, Shortage):
        if not _ends_soon(job, doomed):
            return None
        return Verdict(why=f"{names}; there is no room for it elsewhere")
    part = "" if len(trial.tasks) == len(newest.tasks) else ", as far as there is room"
    reason = f"{names}; moved{part}"
    cause = job.pod(next(iter(whys)))
    action = decision(job, trial.tasks, newest.batch, now, reason=reason, cause=cause)
    return Verdict(why=reason, action=action)


def stays(job: Job) -> str:
    """Return why tasks without a deadline have not left their nodes yet; empty: there are none."""
    if not job.leaving or job.wanted is None:
        return ""
    whys = going(job, job.wanted.tasks)
    cordoned = [job.pod(task) for task, why in whys.items() if why == CORDONED]
    notes = []
    if cordoned:
        pods = ", ".join(cordoned)
        notes.append(f"{pods} will move from a cordoned node when all of that fits elsewhere")
    doomed = [task for task, why in whys.items() if why != CORDONED]
    if not _ends_soon(job, doomed):
        for task in doomed:
            notes.append(
                f"{job.pod(task)} has to leave {task.node} ({whys[task]}) when there is room"
            )
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
    job, most = situation.job, size_of(newest)
    attempts = [(leaves, most)]
    if doomed:
        is_lost = all(_is_closed(job, task) for task in doomed)
        attempts.append((doomed, least_of(job, most) if is_lost else most))
    for gone, least in attempts:
        trial = situation.trial(_without(newest, gone), most, least)
        if isinstance(trial, Placed):
            break
    return trial


def _without(newest: AllocationDecided, gone: list[TaskPlan]) -> list[TaskPlan]:
    return [task for task in newest.tasks if task not in gone]


def _ends_soon(job: Job, doomed: list[TaskPlan]) -> bool:
    for task in doomed:
        notice = job.leaving.get(job.pod(task))
        if notice is not None and notice.leaves_s:
            return True
    return False


def _is_closed(job: Job, task: TaskPlan) -> bool:
    """Return whether the task's node takes no tasks; a task without a notice of its own leaves
    because of its node.
    """
    notice = job.leaving.get(job.pod(task))
    return notice is None or bool(notice.closed)


def _sent_away(job: Job) -> list[TaskPlan]:
    """Return the tasks that have to go for a reason of their own, not their node's."""
    found = []
    for decided in (job.runs, job.flies):
        for task in decided.tasks if decided else ():
            notice = job.leaving.get(job.pod(task))
            if notice and notice.why not in OF_NODE and not job.exit_of(task):
                found.append(task)
    return found
