"""Tasks that still work and will have to go: each is given another place before it is lost.

A task that was told to end, whose pod is evicted or deleted, or whose node is being taken away, is doomed: it moves at
once, without window, cooldown or payback, because nobody wishes for it. It never goes where it stands now, nor does
anything else while it is there. Where not all of the job fits elsewhere it moves smaller, down to its minimum, if its
node takes nothing any more; where it does, the room of the task itself is about to come free, and one pause is enough.
Where there is no room it waits, and `repair` does what is left to do once the task has ended. With a deadline nothing
else is decided meanwhile; without one that could be for ever, so the job then changes as any other.

A cordon is an operator's order without a deadline: the node's tasks move as soon as all of them fit elsewhere, one
generation at a time, and the job never shrinks for it. What is said of a node is said of all tasks on it, and counts
for as long as the node takes no tasks; so who takes a cordon back, takes this back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from services.allocator.job import Job
from services.allocator.placing.placement import Room, place, place_most
from services.allocator.placing.resizing import wanted_sizes
from services.allocator.rules import Rules
from services.allocator.seen import least_of, size_of
from services.allocator.timing import retry_s
from services.allocator.verdict import Verdict, decision
from shared.messages import CORDONED, OF_NODE, AllocationDecided, TaskPlan

Whys = dict[TaskPlan, str]
"""Why each of the tasks that have to leave has to."""


def going(job: Job, tasks: Sequence[TaskPlan]) -> Whys:
    """Of these tasks, those that work and will have to leave, doomed or not."""
    counts = {t: job.leaving[job.pod(t)].counts for t in tasks if job.pod(t) in job.leaving}
    closed = {t.node: why for hard in reversed(OF_NODE) for t, why in counts.items() if why == hard}
    whys = {t: counts[t] if counts.get(t, CORDONED) not in ("", *OF_NODE) else closed.get(t.node, "") for t in tasks}
    return {t: why for t, why in whys.items() if why and not job.exit_of(t)}


def shunned(jobs: Iterable[Job]) -> set[str]:
    """The nodes from which a pod is being sent away: they take nothing new meanwhile."""
    return {task.node for job in jobs if job.leaving for task in _sent_away(job)}


def moved(job: Job, room: Room, now: float, rules: Rules) -> Verdict | None:
    """None where nothing has to leave, or where a cordon has to wait."""
    wanted = job.wanted
    if wanted is None or not job.leaving:
        return None
    whys = going(job, wanted.tasks)
    doomed = [task for task, why in whys.items() if why != CORDONED]
    if not whys or (not doomed and (job.coming is not None or now < retry_s(job, rules))):
        return None
    names = ", ".join(f"{job.pod(task)} has to leave {task.node} ({why})" for task, why in whys.items())
    if now < retry_s(job, rules):
        return Verdict(why=f"{names}; tries again after a pause", wake_s=retry_s(job, rules))
    tasks = _elsewhere(job, wanted, list(whys), doomed, room, rules)
    if tasks is None:
        return Verdict(why=f"{names}; there is no room for it elsewhere") if _ends_soon(job, doomed) else None
    reason = f"{names}; moved" + ("" if len(tasks) == len(wanted.tasks) else ", as far as there is room")
    action = decision(job, tasks, wanted.batch, now, reason=reason, cause=job.pod(next(iter(whys))))
    return Verdict(why=reason, action=action)


def stays(job: Job) -> str:
    """Why tasks of a job are still where nobody says until when they may be; empty where there are none."""
    whys = going(job, job.wanted.tasks) if job.wanted and job.leaving else {}
    doomed = [task for task, why in whys.items() if why != CORDONED]
    names = ", ".join(job.pod(task) for task, why in whys.items() if why == CORDONED)
    notes = [f"{names} will move from a cordoned node when all of that fits elsewhere"] if names else []
    if not _ends_soon(job, doomed):
        notes += [f"{job.pod(task)} has to leave {task.node} ({whys[task]}) when there is room" for task in doomed]
    return "; ".join(notes)


def _elsewhere(
    job: Job, wanted: AllocationDecided, leaves: list[TaskPlan], doomed: list[TaskPlan], room: Room, rules: Rules
) -> tuple[TaskPlan, ...] | None:
    """All that leave in new places; else the doomed alone; where their own room is lost, as many of them as fit."""
    most, sizes = size_of(wanted), wanted_sizes(job, None, rules)
    tasks = place(room, job.key, _without(wanted, leaves), most, sizes, job.serials)
    if tasks is not None or not doomed:
        return tasks
    least = least_of(job, most) if all(_is_closed(job, task) for task in doomed) else most
    return place_most(room, job.key, _without(wanted, doomed), most, least, sizes, job.serials)


def _without(wanted: AllocationDecided, gone: list[TaskPlan]) -> list[TaskPlan]:
    return [task for task in wanted.tasks if task not in gone]


def _ends_soon(job: Job, doomed: list[TaskPlan]) -> bool:
    return any(job.leaving[job.pod(task)].leaves_s for task in doomed if job.pod(task) in job.leaving)


def _is_closed(job: Job, task: TaskPlan) -> bool:
    """Whether its node takes no tasks; who goes without a word of his own goes for his node."""
    notice = job.leaving.get(job.pod(task))
    return notice is None or bool(notice.closed)


def _sent_away(job: Job) -> list[TaskPlan]:
    decided = [d for d in (job.runs, job.flies) if d]
    mine = [task for d in decided for task in d.tasks if not job.exit_of(task)]
    return [t for t in mine if (notice := job.leaving.get(job.pod(t))) and notice.why not in OF_NODE]
