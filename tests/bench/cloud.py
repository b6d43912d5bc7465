"""Simulate a shared cloud in steps of 30 s, in which recommendation models train.

The cloud is the same for all policies.

Cluster. 20 nodes of 32 cores and 192 GiB (the paper's test cluster, from memory). A request is a
reservation. The jobs are described in `dlrover_truth.py` and `dlrover_job.py`.

Events, with the same rules for all policies. Out of memory: all tasks of the role get 1.5 times as
much from then on; the job resumes from its last checkpoint (every 10 minutes) after 60 s; a failure
of its own. Crash: it resumes in the same way; a failure of its own. At the third failure of its own
a job has failed. Eviction: a worker is replaced in 30 s, a ps in 60 s from the last checkpoint; not
a failure of the job. One in 30 workers is slow, and one in 50 ps. A change of the number of tasks
pauses training for 30 s; cores and memory change in place at once. Jobs start in the order of
submission; one that does not fit is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from services.allocator.placement.amounts import fits, subtract
from services.allocator.placement.placers import place, place_most
from services.allocator.placement.room import Room
from services.allocator.policies.contract import JobSnapshot, Node, Size, Target
from shared.messages import Resources, Role, RoleResources, TaskPlan
from tests.bench.dlrover_job import COMPUTING, PAUSE_S, TICK_S, Running

NODES, NODE = 20, Resources(cpu=32, memory_gib=192)
RESTART_S, REPLACE_S = 60.0, 30.0
OOM_FACTOR, MAX_FAILURES = 1.5, 3
SLOW_WORKERS, SLOW_PS = 1 / 30, 1 / 50


class Cloud:
    """The nodes and their free capacity."""

    def __init__(self) -> None:
        self.free = {f"n{i}": NODE for i in range(NODES)}

    def nodes(self) -> list[Node]:
        return [Node(name, free, NODE) for name, free in self.free.items()]

    def release(self, tasks: Sequence[TaskPlan]) -> None:
        for task in tasks:
            self.free[task.node] = _more(self.free[task.node], task.resources)

    def take(self, tasks: Sequence[TaskPlan]) -> None:
        for task in tasks:
            self.free[task.node] = subtract(self.free[task.node], task.resources)

    def started(self, job: Running, want: Target, now: float) -> None:
        """Start a job as large as capacity allows; if its minimum does not fit, it waits."""
        job.sizes = want.sizes or job.sizes
        least = Size(min(want.ps, job.request.ps.min), min(want.workers, job.request.workers.min))
        tasks = place_most(
            Room(self.nodes()), job.name, (), want.size, least, job.sizes, job.serials
        )
        if tasks:
            self._given(job, tasks)
            job.first_s = now if job.first_s is None else job.first_s
            job.interrupted(now, REPLACE_S, back=False, fault=False)

    def changed(self, job: Running, want: Target, now: float) -> None:
        """Resize a job to the target, if it fits; otherwise change only its memory, in place."""
        before = job.tasks
        self.release(before)
        sizes = want.sizes or RoleResources(
            ps=job.of("ps")[0].resources, worker=job.of("worker")[0].resources
        )
        tasks = self._placed(job, want.size, sizes)
        if tasks is None:
            now_size = Size(len(job.of("ps")), len(job.of("worker")))
            tasks = self._placed(job, now_size, _memory_only(job, sizes))
        self._given(job, tasks or before)
        if {t.serial for t in job.tasks} != {t.serial for t in before}:
            job.changes += 1
            job.interrupted(now, PAUSE_S, back=False, fault=False)

    def _placed(
        self, job: Running, size: Size, sizes: RoleResources
    ) -> tuple[TaskPlan, ...] | None:
        """Place the tasks of a job at a new size; return None if they do not all fit.

        Tasks stay on their nodes if they can grow there; otherwise they move.
        """
        free, stay = dict(self.free), []
        for task in (t for role in ("chief", *COMPUTING) for t in job.of(role)[: size.of(role)]):
            wants = task.resources if task.role == "chief" else getattr(sizes, task.role)
            if fits(wants, free[task.node]):
                free[task.node] = subtract(free[task.node], wants)
                stay.append(replace(task, resources=wants))
        homes = {task.node for task in stay}
        room = Room(
            Node(n, f, NODE, hosts=frozenset({job.name} if n in homes else ()))
            for n, f in free.items()
        )
        return place(room, job.name, stay, size, sizes, job.serials)

    def _given(self, job: Running, tasks: Sequence[TaskPlan]) -> None:
        for task in tasks:
            if task.serial not in job.slow:
                chance = SLOW_PS if task.role == "ps" else SLOW_WORKERS
                job.slow[task.serial] = task.role != "chief" and job.rng.random() < chance
        job.tasks = tuple(tasks)
        job.serials = max(job.serials, *(t.serial + 1 for t in tasks))
        self.take(tasks)

    def troubled(self, job: Running, now: float, what: str, role: Role | None) -> None:
        """Apply one accident to a job."""
        if what == "evicted" and role:
            ps = role == "ps"
            job.slow[job.rng.choice(job.of(role)).serial] = job.rng.random() < (
                SLOW_PS if ps else SLOW_WORKERS
            )
            job.interrupted(now, RESTART_S if ps else REPLACE_S, back=ps, fault=False)
            return
        job.interrupted(now, RESTART_S, back=True, fault=True)
        hopeless = (
            what == "oom"
            and role
            and OOM_FACTOR * job.of(role)[0].resources.memory_gib > NODE.memory_gib
        )
        if hopeless or job.failures >= MAX_FAILURES:
            self.release(job.tasks)
            job.failed, job.end_s = True, now
        elif what == "oom" and role:
            self._enlarged(job, role)

    def _enlarged(self, job: Running, role: Role) -> None:
        """Enlarge the memory of a role. If the tasks do not fit, the job waits for capacity."""
        size = job.of(role)[0].resources
        larger = replace(size, memory_gib=size.memory_gib * OOM_FACTOR)
        had = {r: job.of(r)[0].resources for r in COMPUTING} | {role: larger}
        sizes, count = (
            RoleResources(ps=had["ps"], worker=had["worker"]),
            Size(len(job.of("ps")), len(job.of("worker"))),
        )
        self.release(job.tasks)
        tasks = self._placed(job, count, sizes)
        job.sizes = replace(sizes, chief=Resources())
        if tasks is None:
            job.tasks = ()
        else:
            self._given(job, tasks)


def _more(free: Resources, given: Resources) -> Resources:
    return Resources(cpu=free.cpu + given.cpu, memory_gib=free.memory_gib + given.memory_gib)


def _memory_only(job: Running, sizes: RoleResources) -> RoleResources:
    ps, worker = job.of("ps")[0].resources, job.of("worker")[0].resources
    return RoleResources(
        ps=replace(ps, memory_gib=max(ps.memory_gib, sizes.ps.memory_gib)),
        worker=replace(worker, memory_gib=max(worker.memory_gib, sizes.worker.memory_gib)),
    )


# ---------------------------------------------------------------- the run


Decide = Callable[[list[Node], list[JobSnapshot], float], list[Target]]
DECIDE_TICKS = 4


def play(
    jobs: Sequence[Running], decide: Decide, on_end: Callable[[Running], None] = lambda job: None
) -> None:
    """Run until every job has finished or failed. `decide` is called every two minutes."""
    cloud, now, tick = Cloud(), 0.0, 0
    while any(job.end_s is None for job in jobs):
        live = [job for job in jobs if job.submitted_s <= now and job.end_s is None]
        if tick % DECIDE_TICKS == 0:
            _decided(cloud, live, decide, now)
        for job in live:
            if job.tasks:
                _lived(cloud, job, now, on_end)
        now, tick = now + TICK_S, tick + 1


def _decided(cloud: Cloud, live: Sequence[Running], decide: Decide, now: float) -> None:
    """Apply the targets: shrink running jobs, then start waiting jobs, then grow running jobs."""
    by_name = {job.name: job for job in live}
    wants = decide(cloud.nodes(), [job.seen() for job in live], now)
    more = {want.job: _extra(by_name[want.job], want) for want in wants}
    for want in sorted(wants, key=lambda w: (more[w.job] > 0, by_name[w.job].tasks != ())):
        job = by_name[want.job]
        if job.tasks:
            cloud.changed(job, want, now)
        else:
            cloud.started(job, want, now)


def _extra(job: Running, want: Target) -> float:
    if not job.tasks:
        return 1.0
    sizes = want.sizes or RoleResources(
        ps=job.of("ps")[0].resources, worker=job.of("worker")[0].resources
    )
    return want.ps * sizes.ps.cpu + want.workers * sizes.worker.cpu - job.request_now().cpu


def _lived(cloud: Cloud, job: Running, now: float, on_end: Callable[[Running], None]) -> None:
    if now >= job.resumes_s and (accident := job.accident(now)):
        cloud.troubled(job, now, *accident)
    if job.tasks and not job.failed:
        job.step(now)
    if job.end_s is not None and not job.failed:
        on_end(job)
        cloud.release(job.tasks)
