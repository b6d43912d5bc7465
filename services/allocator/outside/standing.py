"""Which of a job's decisions runs, by what is said of it.

    what is said                               then
    the tasks of the decision in flight        it runs
    those of the one that ran before           that still runs, and what was decided since will not be: decide anew
    other tasks                                somebody else changed it: a generation of its own
    nothing runs                               it waits, or waits again
    no news                                    a decision in flight runs once the job has progressed

Each step is one of the fold's own, as if the launcher and the trainers had said it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import isfinite

from msgspec import UnsetType
from msgspec.structs import replace

from services.allocator.job import OF_JOB, Job
from services.allocator.outside.document import Current
from services.allocator.rules import Rules
from services.allocator.seen import task_sizes
from services.allocator.verdict import decision
from shared.messages import AllocationDecided, Resources, Role, TaskPlan, TrainingResumed


def standing(job: Job, said: Current | UnsetType | None, progressed: bool, now: float, rules: Rules) -> Job:
    if isinstance(said, UnsetType):
        return _resumed(job, job.flies, now) if job.flies and progressed else job
    if said is None or not (said.ps or said.workers):
        return _only(job, None) if job.decided else job
    if job.flies and _same(job.flies, said):
        return _resumed(job, job.flies, job.flies.decided_s if said.since_s is None else said.since_s)
    if job.runs and _same(job.runs, said):
        return job if job.flies is None else _only(job, job.running)
    found = _found(job, said, rules)
    return _resumed(OF_JOB[AllocationDecided](job, found, now), found, now if said.since_s is None else said.since_s)


def _resumed(job: Job, decided: AllocationDecided, since_s: float) -> Job:
    asked = job.request
    resumed = TrainingResumed(
        job=asked.job, namespace=asked.namespace, uid=job.uid, generation=decided.generation, step=0, samples=0
    )
    return OF_JOB[TrainingResumed](job, resumed, since_s)


def _only(job: Job, running: int | None) -> Job:
    return replace(job, running=running, coming=None, decided={g: d for g, d in job.decided.items() if g == running})


def _same(decided: AllocationDecided, said: Current) -> bool:
    """The same number of each role on each node, and the same batch."""
    ours = Counter((task.role, task.node) for task in decided.tasks if task.role != "chief")
    theirs = Counter([*(("ps", node) for node in said.ps), *(("worker", node) for node in said.workers)])
    return ours == theirs and _batch(said) in (None, decided.batch)


def _batch(said: Current) -> int | None:
    return round(said.batch) if said.batch is not None and isfinite(said.batch) else None


# ---------------------------------------------------------------- tasks of which we know no decision


def _found(job: Job, said: Current, rules: Rules) -> AllocationDecided:
    """A decision that is as what runs. Tasks that were there keep their serial."""
    known = [task for decided in (job.runs, job.flies) if decided for task in decided.tasks]
    sizes, batch = task_sizes(job, rules), job.wanted.batch if job.wanted else job.request.batch.start
    chief = said.chief or next((task.node for task in known if task.role == "chief"), (*said.workers, *said.ps)[0])
    serials = iter(range(job.serials, job.serials + 1 + len(said.ps) + len(said.workers)))
    tasks = [
        *_tasks("chief", [chief], sizes.chief, known, serials),
        *_tasks("ps", said.ps, sizes.ps, known, serials),
        *_tasks("worker", said.workers, sizes.worker, known, serials),
    ]
    found = decision(job, tasks, _batch(said) or batch, 0.0, reason="as it runs", cause="-")
    return replace(found, generation=max(job.generation + 1, said.generation or 0))


def _tasks(
    role: Role, nodes: Sequence[str], size: Resources, known: Sequence[TaskPlan], serials: Iterable[int]
) -> list[TaskPlan]:
    left = [task for task in known if task.role == role]
    tasks = []
    for index, node in enumerate(nodes):
        before = next((task for task in left if task.node == node), None)
        left = [task for task in left if before is None or task.serial != before.serial]
        serial = before.serial if before else next(iter(serials))
        tasks.append(TaskPlan(role=role, index=index, serial=serial, node=node, resources=size))
    return tasks
