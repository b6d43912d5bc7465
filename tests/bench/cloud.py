"""A shared cloud in which recommendation models train, in steps of 30 s; whoever decides, the world is the same.

Cluster. 20 nodes of 32 cores and 192 GiB (recalled of the paper's test cluster). A request is a reservation.

Jobs. Eight families (models) of jobs. An iteration takes T = a1 m/lw + a2 w/(p lp) + a3 w/p + a4 m/p + b, the
coefficients drawn by family and 10 % by job; speed is w m / T, read with 3 % noise. Work is lognormal, 40 minutes in
the median at the need (sigma 0.8, 10 minutes to 4 hours). A worker uses a1 m / T cores, all ps together
w (a2 + a4 m) / T, while training. A worker's memory is constant; that of all ps grows with the examples seen, from 4 to
30 GiB at first by another 0.2 to 1.5 times until the end; a use is read with 2 % noise, and the fullest ps has 5 %
more than the mean.

The need. The plan that somebody who knows all that would ask for: largest Psi^2 / cost (a core is worth eight GiB) of
those up to 128 cores; and the most memory that a task will use.

What happens to everybody, by the same rules. Out of memory: a task of the role uses more than its limit; all tasks of
the role get 1.5 times as much from then on; the job resumes from its last checkpoint (every 10 minutes) after 60 s; its
own fault. Crash: 0.01 a job-hour; resumes likewise; its own fault. At the third own fault a job has failed. Eviction:
0.005 a pod-hour; a worker is replaced in 30 s, a ps in 60 s from the last checkpoint; nobody's fault. Slow: one in 30
workers works at half speed, and one in 50 ps, which slows everybody's updates and look-ups by two. A change of numbers
pauses training for 30 s; cores and memory change in place at once. Jobs start in the order of submission, whoever fits.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from services.allocator.history import Past, Plan
from services.allocator.iteration import Model, grid, iteration_s, throughput
from services.allocator.job import TRIED_KEPT, Observed, Reading
from services.allocator.placement import Node, Room, Size, fits, less, place, place_most
from services.allocator.policies.contract import JobSeen, Want
from services.allocator.policies.dlrover import PRICE_CPU, PRICE_GIB, timed_of
from shared.messages import (
    JobRequested,
    ProgressReported,
    Resources,
    Role,
    RoleResources,
    TaskPlan,
    TaskUsage,
)

NODES, NODE = 20, Resources(cpu=32, memory_gib=192)
TICK_S = 30.0
SPEED_NOISE, MEMORY_NOISE, FULLEST = 0.03, 0.02, 1.05
CHECKPOINT_S, RESTART_S, REPLACE_S, PAUSE_S = 600.0, 60.0, 30.0, 30.0
OOM_FACTOR, MAX_FAILURES = 1.5, 3
CRASHES_H, EVICTIONS_H = 0.01, 0.005
SLOW_WORKERS, SLOW_PS, SLOW = 1 / 30, 1 / 50, 0.5
HOUR = 3600.0
COMPUTING: tuple[Role, Role] = ("ps", "worker")


# ---------------------------------------------------------------- what is true of a job


def model(coefficients: Sequence[float] | np.ndarray, useful: tuple[float, float]) -> Model:
    return Model(np.array(coefficients), np.array([math.inf, math.inf, *useful]))


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """What no policy sees. `coefficients`: a1..a4, b; `useful`: cores that a ps, and a worker, can use at once."""

    family: str
    coefficients: tuple[float, ...]
    useful: tuple[float, float]
    batch: int
    samples: float
    ps_gib: tuple[float, float]
    """Of all ps together, at the start and at the end."""
    worker_gib: float
    need: Plan

    def gib(self, done: float) -> float:
        start, end = self.ps_gib
        return start + (end - start) * min(1.0, done / self.samples)

    def step_s(self, plan: Plan, slow_ps: bool = False) -> float:
        a = np.array(self.coefficients) * (np.array([1, 2, 1, 2, 1]) if slow_ps else 1)
        return float(iteration_s(grid([plan]), self.batch, model(a, self.useful))[0])

    def cores(self, plan: Plan, step_s: float) -> dict[Role, float]:
        """Cores used by all ps, and by all workers."""
        a1, a2, _, a4, _ = self.coefficients
        on_ps = plan.workers * (a2 + a4 * self.batch) / step_s
        on_worker = min(plan.worker_cpu, a1 * self.batch / step_s)
        return {"ps": min(plan.ps * plan.ps_cpu, on_ps), "worker": plan.workers * on_worker}


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A model: what its jobs have in common. `gib`: of all ps at first and at the end, of a worker."""

    name: str
    coefficients: tuple[float, ...]
    batch: int
    gib: tuple[float, float, float]
    useful: tuple[float, float]
    budget: float


def needed(of: Family, coefficients: Sequence[float], gib: tuple[float, float]) -> Plan:
    """Tasks of the cores that they can use; the knee, largest Psi^2 / cost, of the numbers within the budget."""
    counts = np.array([(p, w) for p in range(1, 16) for w in range(1, 61)], float)
    plans = np.hstack([counts, np.broadcast_to(of.useful, counts.shape)])
    cpu = plans[:, 0] * plans[:, 2] + plans[:, 1] * plans[:, 3]
    cost = PRICE_CPU * cpu + PRICE_GIB * (gib[0] + plans[:, 1] * gib[1])
    value = throughput(plans, of.batch, model(coefficients, of.useful)) ** 2 / cost * (cpu <= of.budget)
    ps, workers, ps_cpu, worker_cpu = plans[int(value.argmax())].tolist()
    return Plan(int(ps), int(workers), ps_cpu, worker_cpu)


def family(number: int, rng: random.Random) -> Family:
    start = between(rng, 10, 60)
    ranges = ((400e-6, 1500e-6), (0.005, 0.04), (0.0005, 0.01), (2e-6, 20e-6), (0.003, 0.02))
    return Family(
        name=f"model-{number}",
        coefficients=tuple(between(rng, *each) for each in ranges),
        batch=rng.choice((512, 1024, 2048)),
        gib=(start, start * rng.uniform(1.5, 4.0), between(rng, 1, 4)),
        useful=(rng.choice((1.0, 2.0, 3.0, 4.0)), rng.choice((2.0, 3.0, 4.0, 6.0))),
        budget=between(rng, 16, 128),
    )


def between(rng: random.Random, low: float, high: float) -> float:
    """Log-uniform."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def drawn(of: Family, rng: random.Random) -> Truth:
    a = tuple(each * rng.lognormvariate(0, 0.1) for each in of.coefficients)
    start, end, worker_gib = (each * factor for each, factor in zip(of.gib, _memory_factors(rng), strict=True))
    need = needed(of, a, (end, worker_gib))
    seconds = min(max(rng.lognormvariate(math.log(2400), 0.8), 600), 4 * HOUR)
    speed = float(throughput(grid([need]), of.batch, model(a, of.useful))[0])
    return Truth(
        family=of.name,
        coefficients=a,
        useful=of.useful,
        batch=of.batch,
        samples=speed * seconds,
        ps_gib=(start, end),
        worker_gib=worker_gib,
        need=need,
    )


def _memory_factors(rng: random.Random) -> tuple[float, float, float]:
    ps, worker = rng.lognormvariate(0, 0.1), rng.lognormvariate(0, 0.1)
    return ps, ps, worker


# ---------------------------------------------------------------- a job in the cloud


class Running:
    """One job from submission to end, with what a live allocator would know of it."""

    def __init__(self, name: str, truth: Truth, submitted_s: float, request: JobRequested, seed: int) -> None:
        self.name, self.truth, self.submitted_s, self.request = name, truth, submitted_s, request
        self.rng = random.Random(seed)
        self.sizes = request.resources or RoleResources()
        self.tasks: tuple[TaskPlan, ...] = ()
        self.slow: dict[int, bool] = {}
        self.serials, self.failures, self.changes = 0, 0, 0
        self.done = self.saved = 0.0
        self.saved_s = self.since_s = self.resumes_s = 0.0
        self.first_s: float | None = None
        self.end_s: float | None = None
        self.failed = False
        self.tried: tuple[Observed, ...] = ()
        self.recent: deque[Reading] = deque(maxlen=64)
        self.progress: ProgressReported | None = None
        self.most = dict.fromkeys(COMPUTING, 0.0)
        self.used, self.had = np.zeros(2), np.zeros(2)  # core-seconds and GiB-seconds

    def of(self, role: Role) -> list[TaskPlan]:
        return [task for task in self.tasks if task.role == role]

    @property
    def plan(self) -> Plan:
        ps, workers = self.of("ps"), self.of("worker")
        return Plan(len(ps), len(workers), ps[0].resources.cpu, workers[0].resources.cpu)

    def seen(self) -> JobSeen:
        return JobSeen(
            key=self.name,
            request=self.request,
            sizes=self.sizes,
            submitted_s=self.submitted_s,
            size=Size(len(self.of("ps")), len(self.of("worker"))) if self.tasks else None,
            batch=self.truth.batch,
            tasks=self.tasks,
            since_s=self.since_s,
            progress=self.progress,
            tried=self.tried,
            recent=tuple(self.recent),
            pause_s=PAUSE_S,
        )

    def past(self) -> Past:
        """What is remembered of it when it has finished."""
        return Past(
            request=self.request,
            plan=self.plan,
            ps_gib=self.most["ps"] * len(self.of("ps")),
            worker_gib=self.most["worker"],
            timed=tuple(timed_of(self.seen())[-12:]),
            finished_s=self.end_s or 0.0,
        )

    # ------------------------------------------------------------ a step

    def step(self, now: float) -> None:
        """Train from now for a tick; then tell."""
        training = min(TICK_S, max(0.0, now + TICK_S - self.resumes_s))
        plan = self.plan
        step_s = self.truth.step_s(plan, any(self.slow[t.serial] for t in self.of("ps")))
        effective = sum(SLOW if self.slow[t.serial] else 1.0 for t in self.of("worker"))
        speed = effective * self.truth.batch / step_s
        left = self.truth.samples - self.done
        if training > 0 and speed * training >= left:
            self.end_s = now + TICK_S - training + left / speed
        self.done = min(self.truth.samples, self.done + speed * training)
        if now >= self.saved_s + CHECKPOINT_S:
            self.saved, self.saved_s = self.done, now
        self._tell(now + TICK_S, plan, speed, self.truth.cores(plan, step_s), training)

    def _tell(self, now: float, plan: Plan, speed: float, cores: dict[Role, float], training: float) -> None:
        fullest: dict[Role, float] = {
            "ps": self.truth.gib(self.done) / plan.ps * FULLEST,
            "worker": self.truth.worker_gib,
        }
        had = self.request_now()
        gib = self.truth.gib(self.done) + self.truth.worker_gib * plan.workers
        self.used += np.array([sum(cores.values()) * training, gib * TICK_S])
        self.had += np.array([had.cpu, had.memory_gib]) * TICK_S
        read = {role: fullest[role] * (1 + self.rng.gauss(0, MEMORY_NOISE)) for role in COMPUTING}
        self.most = {role: max(self.most[role], read[role]) for role in COMPUTING}
        if training < TICK_S:
            return
        told = speed * (1 + self.rng.gauss(0, SPEED_NOISE))
        self._remember(now, plan, told, cores, read)

    def _remember(self, now: float, plan: Plan, speed: float, cores: dict[Role, float], gib: dict[Role, float]) -> None:
        at = (plan.ps, plan.workers, self.truth.batch)
        self.tried = _seen_again(self.tried, Observed(*at, speed, plan.ps_cpu, plan.worker_cpu))
        use = [
            TaskUsage(task=f"{t.role}-{t.serial}", cpu=cores[t.role] / len(self.of(t.role)), memory_gib=gib[t.role])
            for t in self.tasks
            if t.role != "chief"
        ]
        self.recent.append(
            Reading(
                at_s=now,
                samples=int(self.done),
                loss=None,
                samples_per_second=speed,
                ps=plan.ps,
                workers=plan.workers,
                batch=self.truth.batch,
                ps_cpu=cores["ps"],
                worker_cpu=cores["worker"],
                ps_gib=gib["ps"],
                worker_gib=gib["worker"],
                ps_had=plan.ps_cpu,
                worker_had=plan.worker_cpu,
            )
        )
        self.progress = ProgressReported(
            job=self.name,
            uid=1,
            generation=1,
            step=int(self.done / self.truth.batch),
            epoch=0,
            samples=int(self.done),
            total_samples=int(self.truth.samples),
            samples_per_second=speed,
            usage=tuple(use),
        )

    def request_now(self) -> Resources:
        held = [task.resources for task in self.tasks]
        return Resources(cpu=sum(r.cpu for r in held), memory_gib=sum(r.memory_gib for r in held))

    # ------------------------------------------------------------ what goes wrong

    def accident(self, now: float) -> tuple[str, Role | None] | None:
        """What happens in this tick, if anything: the same chances for everybody."""
        for role in COMPUTING:
            used = self.truth.gib(self.done) / len(self.of("ps")) * FULLEST if role == "ps" else self.truth.worker_gib
            if used > self.of(role)[0].resources.memory_gib:
                return "oom", role
        if self.rng.random() < CRASHES_H * TICK_S / HOUR:
            return "crash", None
        for role in COMPUTING:
            if self.rng.random() < EVICTIONS_H * len(self.of(role)) * TICK_S / HOUR:
                return "evicted", role
        return None

    def interrupted(self, now: float, seconds: float, *, back: bool, fault: bool) -> None:
        self.resumes_s = self.since_s = now + seconds
        self.done = self.saved if back else self.done
        self.failures += fault


def _seen_again(known: tuple[Observed, ...], new: Observed) -> tuple[Observed, ...]:
    """As the allocator's fold does it: a running mean of each plan's speed, the last ones."""
    before = next((o for o in known if replace(o, samples_per_second=new.samples_per_second) == new), None)
    mean = (before.samples_per_second + new.samples_per_second) / 2 if before else new.samples_per_second
    return (*(o for o in known if o is not before), replace(new, samples_per_second=mean))[-TRIED_KEPT:]


# ---------------------------------------------------------------- the cloud


class Cloud:
    """The nodes, and who holds what of them."""

    def __init__(self) -> None:
        self.free = {f"n{i}": NODE for i in range(NODES)}

    def nodes(self) -> list[Node]:
        return [Node(name, free, NODE) for name, free in self.free.items()]

    def release(self, tasks: Sequence[TaskPlan]) -> None:
        for task in tasks:
            self.free[task.node] = _more(self.free[task.node], task.resources)

    def take(self, tasks: Sequence[TaskPlan]) -> None:
        for task in tasks:
            self.free[task.node] = less(self.free[task.node], task.resources)

    def started(self, job: Running, want: Want, now: float) -> None:
        """As large as there is room for, down to the job's minimum; else it goes on waiting."""
        job.sizes = want.sizes or job.sizes
        least = Size(min(want.ps, job.request.ps.min), min(want.workers, job.request.workers.min))
        tasks = place_most(Room(self.nodes()), job.name, (), want.size, least, job.sizes, job.serials)
        if tasks:
            self._given(job, tasks)
            job.first_s = now if job.first_s is None else job.first_s
            job.interrupted(now, REPLACE_S, back=False, fault=False)

    def changed(self, job: Running, want: Want, now: float) -> None:
        """The whole of what is wanted, if it fits; else memory alone, in place."""
        before = job.tasks
        self.release(before)
        sizes = want.sizes or RoleResources(ps=job.of("ps")[0].resources, worker=job.of("worker")[0].resources)
        tasks = self._placed(job, want.size, sizes)
        if tasks is None:
            now_size = Size(len(job.of("ps")), len(job.of("worker")))
            tasks = self._placed(job, now_size, _memory_only(job, sizes))
        self._given(job, tasks or before)
        if {t.serial for t in job.tasks} != {t.serial for t in before}:
            job.changes += 1
            job.interrupted(now, PAUSE_S, back=False, fault=False)

    def _placed(self, job: Running, size: Size, sizes: RoleResources) -> tuple[TaskPlan, ...] | None:
        """Who stays, at the new size where it is; who cannot grow there, moves; None where not all fit."""
        room, stay = Room(self.nodes()), []
        for task in (t for role in ("chief", *COMPUTING) for t in job.of(role)[: size.of(role)]):
            wants = task.resources if task.role == "chief" else getattr(sizes, task.role)
            if fits(wants, room.nodes[task.node].free):
                room.take(job.name, task.node, wants)
                stay.append(replace(task, resources=wants))
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
        """One accident, by the rules that hold for everybody."""
        if what == "evicted" and role:
            ps = role == "ps"
            job.slow[job.rng.choice(job.of(role)).serial] = job.rng.random() < (SLOW_PS if ps else SLOW_WORKERS)
            job.interrupted(now, RESTART_S if ps else REPLACE_S, back=ps, fault=False)
            return
        job.interrupted(now, RESTART_S, back=True, fault=True)
        if job.failures >= MAX_FAILURES:
            self.release(job.tasks)
            job.failed, job.end_s = True, now
        elif what == "oom" and role:
            self._enlarged(job, role)

    def _enlarged(self, job: Running, role: Role) -> None:
        """So much more memory for a role; where it does not fit in place, the job waits for room again."""
        size = job.of(role)[0].resources
        larger = replace(size, memory_gib=size.memory_gib * OOM_FACTOR)
        had = {r: job.of(r)[0].resources for r in COMPUTING} | {role: larger}
        sizes, count = RoleResources(ps=had["ps"], worker=had["worker"]), Size(len(job.of("ps")), len(job.of("worker")))
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


Decide = Callable[[list[Node], list[JobSeen], float], list[Want]]
DECIDE_TICKS = 4


def play(jobs: Sequence[Running], decide: Decide, on_end: Callable[[Running], None] = lambda job: None) -> None:
    """Until every job has finished or failed. Every two minutes somebody decides."""
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
    """Those that give first, then those that wait, then those that take."""
    by_name = {job.name: job for job in live}
    wants = decide(cloud.nodes(), [job.seen() for job in live], now)
    more = {want.job: _extra(by_name[want.job], want) for want in wants}
    for want in sorted(wants, key=lambda w: (more[w.job] > 0, by_name[w.job].tasks != ())):
        job = by_name[want.job]
        if job.tasks:
            cloud.changed(job, want, now)
        else:
            cloud.started(job, want, now)


def _extra(job: Running, want: Want) -> float:
    if not job.tasks:
        return 1.0
    sizes = want.sizes or RoleResources(ps=job.of("ps")[0].resources, worker=job.of("worker")[0].resources)
    return want.ps * sizes.ps.cpu + want.workers * sizes.worker.cpu - job.request_now().cpu


def _lived(cloud: Cloud, job: Running, now: float, on_end: Callable[[Running], None]) -> None:
    if now >= job.resumes_s and (accident := job.accident(now)):
        cloud.troubled(job, now, *accident)
    if job.tasks and not job.failed:
        job.step(now)
    if job.end_s is not None and not job.failed:
        on_end(job)
        cloud.release(job.tasks)
