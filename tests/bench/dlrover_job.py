"""One job in the cloud of `bench-dlrover`: its training and reports, in steps of 30 s.

Speed is measured with 3 % noise, memory with 2 %, and the fullest ps has 5 % more than the mean. A
slow worker has half the speed; a slow ps doubles the time of all updates and look-ups. Each
accident has the same probability in all arms: out of memory (a task uses more than its limit), a
crash (0.01 per job-hour), an eviction (0.005 per pod-hour).
"""

from __future__ import annotations

import random
from collections import deque

import numpy as np
from msgspec.structs import replace

from services.allocator.policies.contract import (
    BEGINNING_SHARE,
    FinishedJob,
    JobSnapshot,
    Observed,
    Plan,
    Reading,
    Size,
)
from services.allocator.policies.dlrover.model import timed_of
from services.allocator.state.observations import TRIED_KEPT
from shared.messages import (
    JobRequested,
    ProgressReported,
    Resources,
    Role,
    RoleResources,
    TaskPlan,
    TaskUsage,
)
from tests.bench.dlrover_truth import HOUR, Truth

TICK_S = 30.0
SPEED_NOISE, MEMORY_NOISE, FULLEST = 0.03, 0.02, 1.05
CHECKPOINT_S, PAUSE_S = 600.0, 30.0
CRASHES_H, EVICTIONS_H = 0.01, 0.005
SLOW = 0.5
COMPUTING: tuple[Role, Role] = ("ps", "worker")


class Running:
    """One job from submission to end, with the information that a real allocator would have."""

    def __init__(
        self, name: str, truth: Truth, submitted_s: float, request: JobRequested, seed: int
    ) -> None:
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
        self.most, self.early_gib = dict.fromkeys(COMPUTING, 0.0), 0.0
        self.used, self.had = np.zeros(2), np.zeros(2)  # core-seconds and GiB-seconds
        self.speeds: list[
            tuple[float, float]
        ] = []  # time in s and examples per second of every tick in which it trained

    def of(self, role: Role) -> list[TaskPlan]:
        return [task for task in self.tasks if task.role == role]

    @property
    def plan(self) -> Plan:
        ps, workers = self.of("ps"), self.of("worker")
        return Plan(len(ps), len(workers), ps[0].resources.cpu, workers[0].resources.cpu)

    def seen(self) -> JobSnapshot:
        return JobSnapshot(
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

    def past(self) -> FinishedJob:
        """Return the record of the job after it has finished."""
        return FinishedJob(
            request=self.request,
            plan=self.plan,
            ps_gib=self.early_gib,
            worker_gib=self.most["worker"],
            timed=tuple(timed_of(self.seen())[-12:]),
            finished_s=self.end_s or 0.0,
        )

    # ------------------------------------------------------------ a step

    def step(self, now: float) -> None:
        """Train for one tick from `now`; then report."""
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
        if training > 0:
            self.speeds.append((now, speed))
        self._tell(now + TICK_S, plan, speed, self.truth.cores(plan, step_s), training)

    def _tell(
        self, now: float, plan: Plan, speed: float, cores: dict[Role, float], training: float
    ) -> None:
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
        if self.done <= BEGINNING_SHARE * self.truth.samples:
            self.early_gib = max(self.early_gib, read["ps"] * plan.ps)
        if training < TICK_S:
            return
        told = speed * (1 + self.rng.gauss(0, SPEED_NOISE))
        self._remember(now, plan, told, cores, read)

    def _remember(
        self, now: float, plan: Plan, speed: float, cores: dict[Role, float], gib: dict[Role, float]
    ) -> None:
        at = (plan.ps, plan.workers, self.truth.batch)
        self.tried = _seen_again(self.tried, Observed(*at, speed, plan.ps_cpu, plan.worker_cpu))
        use = [
            TaskUsage(
                task=t.name(), cpu=cores[t.role] / len(self.of(t.role)), memory_gib=gib[t.role]
            )
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

    # ------------------------------------------------------------ accidents

    def accident(self, now: float) -> tuple[str, Role | None] | None:
        """Return what happens in this tick, with the same probabilities in all arms; or None."""
        for role in COMPUTING:
            used = (
                self.truth.gib(self.done) / len(self.of("ps")) * FULLEST
                if role == "ps"
                else self.truth.worker_gib
            )
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
    """Add a measured speed as the allocator's fold does: a running mean for each plan.

    Only the last plans are kept.
    """
    before = next(
        (o for o in known if replace(o, samples_per_second=new.samples_per_second) == new), None
    )
    mean = (
        (before.samples_per_second + new.samples_per_second) / 2
        if before
        else new.samples_per_second
    )
    return (*(o for o in known if o is not before), replace(new, samples_per_second=mean))[
        -TRIED_KEPT:
    ]
