"""What becomes of a job that lost tasks.

Each lost task is replaced at once by one with a new serial, wherever it fits; where not all fit, and no room came free
in the time that the lost pod's own needs to be seen, the job shrinks, down to its minimum; where not even that fits, it
waits for room. Where nodes were shut down, or all tasks are lost, that time begins again with each node that comes
back. A generation in flight is overtaken, unless what it lost is a new task that could not be scheduled, or failed by
itself while the old generation trains on: that generation the launcher abandons.

A chief that ends well says first that the job is over. Where that is not heard, it has ended all the same.
"""

from __future__ import annotations

import math

from services.allocator import exits
from services.allocator.allowance import new_tasks
from services.allocator.ending import charged
from services.allocator.job import Job
from services.allocator.leaving import going
from services.allocator.placing.lacking import lacking
from services.allocator.placing.misfit import misfit
from services.allocator.placing.placement import Room, place, place_most
from services.allocator.placing.quota import growth, shortage, too_large
from services.allocator.placing.resizing import wanted_sizes
from services.allocator.policies.contract import Size
from services.allocator.rules import Rules
from services.allocator.seen import counted_size, least_of, size_of
from services.allocator.timing import retry_s
from services.allocator.verdict import Verdict, decision
from shared.messages import AllocationDecided, Role, RoleResources, TaskPlan
from shared.words import some


def repaired(job: Job, room: Room, now: float, rules: Rules, opened_s: float = 0.0) -> Verdict | None:
    """None where nothing is to be repaired. `opened_s`: when the newest node came, or came back."""
    wanted = job.wanted
    if wanted is None or not job.exits:
        return None
    over_s = _over_s(job, wanted, rules)
    if now < over_s:
        return Verdict(why="the chief has ended well; the job is about to finish", wake_s=over_s)
    lost = [t for t in wanted.tasks if job.exit_of(t) and not _left_to_launcher(job, t)]
    if not lost:
        return None
    names = _lost(job, lost)
    if now < retry_s(job, rules):
        return Verdict(why=f"{names}; tries again after a pause", wake_s=retry_s(job, rules))
    settled_s = _settled_s(job, wanted, lost, opened_s) + rules.settle_s
    return _replaced(job, wanted, lost, names, room, now, rules, settled_s)


def _replaced(
    job: Job,
    wanted: AllocationDecided,
    lost: list[TaskPlan],
    names: str,
    room: Room,
    now: float,
    rules: Rules,
    settled_s: float,
) -> Verdict:
    keep = [t for t in wanted.tasks if t not in lost]
    most, sizes = size_of(wanted), wanted_sizes(job, None, rules)
    least = least_of(job, most)
    staying = [t for t in keep if t not in going(job, keep)]  # who has to leave goes in the same hand-over
    tasks = place(room, job.key, staying, most, sizes, job.serials)
    tasks = tasks or place(room, job.key, keep, most, sizes, job.serials)
    if tasks is None and now < settled_s:
        return Verdict(why=f"{names}; looks whether its room comes free", wake_s=settled_s)
    tasks = tasks or place_most(room, job.key, keep, most, least, sizes, job.serials)
    if tasks is None:
        roles = [t.role for t in lost]
        never = misfit(room, roles, sizes) or _beyond_quota(job, keep, least, roles, sizes, room, rules)
        waits = f"waits for room{lacking(room, job.key, keep, least, sizes)} to replace it"
        return Verdict(why=f"{names}; {never or waits}")
    whole = len(tasks) == len(wanted.tasks)
    against = "" if _shut_down(job, lost) else f" ({charged(job, lost, now, rules)})"
    reason = f"{names}; replaced{'' if whole else ' as far as there is room'}{against}"
    action = decision(job, tasks, wanted.batch, now, reason=reason, cause=job.pod(lost[0]))
    return Verdict(why=reason, action=action)


def _beyond_quota(
    job: Job,
    keep: list[TaskPlan],
    least: Size,
    roles: list[Role],
    sizes: RoleResources,
    room: Room,
    rules: Rules,
) -> str:
    """Why the quota of the namespace has no room for what is to be replaced; empty where it has."""
    namespace = job.request.namespace
    if refused := too_large(rules.quotas.get(namespace), namespace, roles, sizes):
        return refused
    tasks = new_tasks(counted_size(keep), least) + all(task.role != "chief" for task in keep)
    return shortage(room, job.key, growth(keep, least, sizes, stretched=False), tasks)


def _settled_s(job: Job, wanted: AllocationDecided, lost: list[TaskPlan], opened_s: float) -> float:
    """When its newest task ended. Nodes that were shut down, or were killed with all that it had, come back one after
    another, and it is for all of them.
    """
    ended_s = max(job.exits[job.pod(task)].at_s for task in lost)
    return max(ended_s, opened_s) if _shut_down(job, lost) or len(lost) == len(wanted.tasks) else ended_s


def _over_s(job: Job, wanted: AllocationDecided, rules: Rules) -> float:
    """Until then a chief that has ended well may still be heard to say so."""
    ends = [job.exit_of(task) for task in wanted.tasks if task.role == "chief"]
    return max((end.at_s + rules.finish_s for end in ends if end and exits.completed(end)), default=-math.inf)


def _left_to_launcher(job: Job, task: TaskPlan) -> bool:
    ended, runs = job.exit_of(task), job.runs
    if ended is None or (runs and task.serial in {t.serial for t in runs.tasks}):
        return False
    return ended.reason == exits.UNSCHEDULABLE or (runs is not None and exits.own_fault(ended))


def _lost(job: Job, tasks: list[TaskPlan]) -> str:
    if _shut_down(job, tasks):
        return f"was stopped with its cluster or its nodes ({some([job.pod(task) for task in tasks], 'pod')})"
    return f"lost {some([_told(job, task) for task in tasks], 'pod')}"


def _shut_down(job: Job, tasks: list[TaskPlan]) -> bool:
    """In order, so that nobody asks whose fault it was."""
    return all((end := job.exit_of(task)) and end.reason in exits.SHUT_DOWN for task in tasks)


def _told(job: Job, task: TaskPlan) -> str:
    ended = job.exit_of(task)
    return f"{job.pod(task)} ({exits.told(ended)})" if ended else job.pod(task)
