"""The decision of a job that runs, by the newest word about the job.

    word                                    then
    the tasks of the decision in flight     it runs
    those of the one that ran before        that still runs; later decisions are void: decide anew
    other tasks                             somebody else changed it: a generation of its own
    nothing runs                            it waits, or waits again
    no news                                 a decision in flight runs once the job has progressed

Each step is one of the fold's own, as if the launcher and the trainers had said it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from math import isfinite

from msgspec import UnsetType
from msgspec.structs import replace

from services.allocator.job import OF_JOB, Job
from services.allocator.rules import Rules
from services.allocator.seen import task_sizes
from services.allocator.verdict import Rationale, decision
from services.whatif.decide_json.document import Current
from shared.messages import AllocationDecided, Resources, Role, TaskPlan, TrainingResumed

TaskCounts = Counter[tuple[Role, str]]
"""Tasks of each role on each node."""


def standing(
    job: Job, said: Current | UnsetType | None, progressed: bool, now: float, rules: Rules
) -> Job:
    """Return the job as it stands by the newest word (see the table above)."""
    pending = job.flies

    # No news about the tasks.
    if isinstance(said, UnsetType):
        if pending and progressed:
            return _resumed(job, pending, now)
        return job

    # Nothing runs.
    if said is None or not (said.ps or said.workers):
        if job.decided:
            return _with_one_decision(job, None)
        return job

    # The tasks of a known decision, or else tasks that somebody else changed.
    if pending and _has_same_tasks(pending, said):
        since_s = pending.decided_s if said.since_s is None else said.since_s
        return _resumed(job, pending, since_s)
    if job.runs and _has_same_tasks(job.runs, said):
        if pending is None:
            return job
        return _with_one_decision(job, job.running)
    return _changed_by_others(job, said, now, rules)


def _changed_by_others(job: Job, said: Current, now: float, rules: Rules) -> Job:
    """Return the job as if the tasks that run had been decided, and had taken over."""
    found = _decision_as_it_runs(job, said, rules)
    since_s = now if said.since_s is None else said.since_s
    changed = OF_JOB[AllocationDecided](job, found, now)
    return _resumed(changed, found, since_s)


def _resumed(job: Job, decided: AllocationDecided, since_s: float) -> Job:
    """Return the job as if its trainers had said that the decision runs since then."""
    asked = job.request
    resumed = TrainingResumed(
        job=asked.job,
        namespace=asked.namespace,
        uid=job.uid,
        generation=decided.generation,
        step=0,
        samples=0,
    )
    return OF_JOB[TrainingResumed](job, resumed, since_s)


def _with_one_decision(job: Job, running: int | None) -> Job:
    """Return the job with no decision but the running one (None: with none)."""
    decided = {}
    if running is not None and running in job.decided:
        decided[running] = job.decided[running]
    return replace(job, running=running, coming=None, decided=decided)


def _has_same_tasks(decided: AllocationDecided, said: Current) -> bool:
    """Tell if both have as many tasks of each role on each node, and the same batch."""
    batch = _known_batch(said)
    if batch is not None and batch != decided.batch:
        return False
    return _tasks_decided(decided) == _tasks_said(said)


def _tasks_decided(decided: AllocationDecided) -> TaskCounts:
    """Return the number of tasks, without the chief."""
    counts: TaskCounts = Counter()
    for task in decided.tasks:
        if task.role != "chief":
            counts[task.role, task.node] += 1
    return counts


def _tasks_said(said: Current) -> TaskCounts:
    """Return the number of tasks, without the chief."""
    counts: TaskCounts = Counter()
    for node in said.ps:
        counts["ps", node] += 1
    for node in said.workers:
        counts["worker", node] += 1
    return counts


def _known_batch(said: Current) -> int | None:
    """Return the batch, or None if it is unknown, or cannot be one."""
    if said.batch is None or not isfinite(said.batch) or said.batch < 1:
        return None
    return round(said.batch)


# ---------------------------------------------------------------- tasks without a known decision


def _decision_as_it_runs(job: Job, said: Current, rules: Rules) -> AllocationDecided:
    """Return a decision that is as the running tasks. Tasks that were there keep their serial."""
    known = _known_tasks(job)
    chief = said.chief or _chief_node(said, known)
    sizes = task_sizes(job, rules)
    serials = count(job.serials)
    tasks = [
        *_tasks_of_role("chief", [chief], sizes.chief, known, serials),
        *_tasks_of_role("ps", said.ps, sizes.ps, known, serials),
        *_tasks_of_role("worker", said.workers, sizes.worker, known, serials),
    ]

    batch = _running_batch(job, said)
    found = decision(job, tasks, batch, 0.0, Rationale(reason="as it runs", cause="-"))
    generation = max(job.generation + 1, said.generation or 0)
    return replace(found, generation=generation)


def _known_tasks(job: Job) -> list[TaskPlan]:
    """Return the tasks of the running decision, then those of the one in flight."""
    known: list[TaskPlan] = []
    for decided in (job.runs, job.flies):
        if decided:
            known += decided.tasks
    return known


def _running_batch(job: Job, said: Current) -> int:
    """Return the batch as said; unknown, it is that of the newest decision or of the request."""
    batch = _known_batch(said)
    if batch:
        return batch
    if job.wanted:
        return job.wanted.batch
    return job.request.batch.start


def _chief_node(said: Current, known: Iterable[TaskPlan]) -> str:
    """Return the node of the known chief; without one, that of the first worker or ps."""
    for task in known:
        if task.role == "chief":
            return task.node
    return (*said.workers, *said.ps)[0]


def _tasks_of_role(
    role: Role,
    nodes: Sequence[str],
    size: Resources,
    known: Sequence[TaskPlan],
    serials: Iterator[int],
) -> list[TaskPlan]:
    """Return the tasks of one role, one for each of the nodes.

    A task takes the serial of a known task of the role on its node, each of them once; else the
    next of `serials`.
    """
    left = [task for task in known if task.role == role]
    tasks = []
    for index, node in enumerate(nodes):
        serial = _serial_on(node, left)
        if serial is None:
            serial = next(serials)
        else:
            left = [task for task in left if task.serial != serial]
        task = TaskPlan(
            role=role,
            index=index,
            serial=serial,
            node=node,
            resources=size,
        )
        tasks.append(task)
    return tasks


def _serial_on(node: str, tasks: Iterable[TaskPlan]) -> int | None:
    """Return the serial of the first task on the node."""
    for task in tasks:
        if task.node == node:
            return task.serial
    return None
