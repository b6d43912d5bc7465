"""The true training of one job: between two events it runs at one speed.

    speed  = v(ps, workers, b) * min(1, least share of its cpu that a task has) * e    [samples/s]
    b      = min(batch, device_batch_max * workers)                                    [samples]
    ln e   ~ N(-noise^2 / 2, noise^2), drawn anew at each report, so that the mean of e is 1

v is the speed of the surface. A batch that does not fit into the devices at once is computed in
several passes, so a larger one gains nothing. A task with less cpu than requested slows the whole
job, because training waits for its slowest part. More cpu gains nothing: the surface has no data
about it (our reconstruction). A job that lost a task does not train until the task is replaced; it
loses no work.
"""

from __future__ import annotations

from math import exp, inf

import numpy as np

from services.allocator.policies.contract import shares_batch
from services.allocator.state.observations import role_count
from services.whatif.simulator.scenario import Scenario, Work
from shared.messages import (
    AllocationDecided,
    JobFinished,
    ProgressReported,
    Resources,
    Role,
    Staleness,
    TaskPlan,
    TaskUsage,
    TrainingResumed,
)


class Training:
    """The training of one job."""

    def __init__(self, work: Work, uid: int, scenario: Scenario, seed: int) -> None:
        self.work = work
        self.uid = uid
        self.surface = scenario.surfaces[work.model]
        self.curve = scenario.losses.get(work.model)
        self.noise = scenario.noise
        sizes = work.resources()
        self.asked: dict[Role, Resources] = {
            "chief": sizes.chief,
            "ps": sizes.ps,
            "worker": sizes.worker,
        }

        self.chance = np.random.default_rng((seed, uid))
        self.runs: AllocationDecided | None = None
        """The decision that trains, or that trained before the job was stopped."""
        self.comes: AllocationDecided | None = None
        """The decision for whose tasks the job waits."""
        self.lost: set[int] = set()
        """Serials of the tasks that were lost and are not replaced yet."""
        self.usage: tuple[TaskUsage, ...] = ()

        self.samples = 0.0
        self.at_s = 0.0
        self.speed = 0.0
        """Samples a second since the last report; 0: it does not train."""
        self.mean_speed = 0.0
        """The speed without noise."""

        self.stopped_s = 0.0
        self.told_s = 0.0
        self.told_samples = 0.0
        self.step = 0
        self.turn = 0

    # ------------------------------------------------------------ events

    def advance(self, now: float) -> None:
        """Add the samples that were applied up to now."""
        samples = self.samples + self.speed * (now - self.at_s)
        self.samples = min(float(self.work.samples), samples)
        self.at_s = now

    def stop_training(self, now: float) -> None:
        """Stop training; repeating it changes nothing."""
        if self.speed > 0:
            self.advance(now)
            self.speed = 0.0
            self.stopped_s = now

    def lose_task(self, task: TaskPlan, now: float) -> None:
        """Stop training until a task is replaced."""
        self.stop_training(now)
        self.lost.add(task.serial)
        self.turn += 1

    def expect_tasks(self, decision: AllocationDecided, now: float) -> None:
        """Stop training until the tasks of a decision exist."""
        self.stop_training(now)
        if self.runs is None:
            self.stopped_s = now
        self.comes = decision
        self.turn += 1

    def keeps_tasks(self, decision: AllocationDecided) -> bool:
        """Return True if a decision changes only resources, which needs no pause."""
        if self.runs is None or self.comes is not None:
            return False
        return decision.generation == self.runs.generation

    def start_training(self, decision: AllocationDecided, now: float) -> None:
        """Train with the tasks of a decision from now on."""
        self.advance(now)
        self.runs = decision
        self.comes = None
        self.lost.clear()
        self.told_s = now
        self.told_samples = self.samples

        self.usage = tuple(map(self._cores_used, decision.tasks))
        self.mean_speed = self._speed_by(decision)
        self._draw_noise()

    def _draw_noise(self) -> None:
        """Draw the speed up to the next report."""
        luck = 0.0
        if self.noise:
            mean = -self.noise * self.noise / 2
            luck = float(self.chance.normal(mean, self.noise))
        self.speed = self.mean_speed * exp(luck)

    def _speed_by(self, decision: AllocationDecided) -> float:
        """Return the mean speed with the tasks of a decision in samples a second."""
        workers = role_count(decision, "worker")
        batch = decision.batch
        most = self.work.device_batch_max
        if most is not None:
            batch = min(batch, most * workers)
        speed = self.surface.speed(role_count(decision, "ps"), workers, batch)
        share = min(map(self._speed_share, decision.tasks), default=0.0)
        return speed * min(1.0, share)

    def _speed_share(self, task: TaskPlan) -> float:
        """Return the share of its requested cpu that a task has."""
        asked = self.asked[task.role].cpu
        if not asked:
            return 1.0
        return task.resources.cpu / asked

    def _cores_used(self, task: TaskPlan) -> TaskUsage:
        """Return the usage of a task: its requested cpu, at most what it has, and half its
        requested memory.
        """
        asked = self.asked[task.role]
        cpu = min(task.resources.cpu, asked.cpu)
        return TaskUsage(task=task.name(), cpu=cpu, memory_gib=asked.memory_gib / 2)

    def task_of(self, pod: str) -> tuple[TaskPlan, int, bool]:
        """Return a pod's task, the newest generation that has it, and True if the newest decision
        needs it.

        Raise `KeyError` if the job has no such pod.
        """
        wanted = self.comes or self.runs
        for decision in (self.comes, self.runs):
            if decision is None:
                continue
            for task in decision.tasks:
                if task.pod(self.work.job) == pod:
                    return task, decision.generation, decision is wanted
        raise KeyError(pod)

    # ------------------------------------------------------------ messages

    def ends_s(self) -> float:
        """Return the time at which all work is done at this speed; infinite if the job does not
        train.
        """
        if self.speed <= 0:
            return inf
        left = self.work.samples - self.samples
        return self.at_s + left / self.speed

    def resume_generation(self, decision: AllocationDecided, now: float) -> TrainingResumed:
        """Train with the tasks of a decision; return the fact.

        The fact has the pause if another generation trained before and no task was lost.
        """
        previous = None
        pause_s = None
        if self.runs is not None:
            previous = self.runs.generation
            if not self.lost:
                pause_s = now - self.stopped_s

        self.start_training(decision, now)
        return TrainingResumed(
            job=self.work.job,
            namespace=self.work.namespace,
            uid=self.uid,
            generation=decision.generation,
            step=self.step,
            samples=int(self.samples),
            previous=previous,
            pause_s=pause_s,
        )

    def report(self, runs: AllocationDecided, now: float) -> ProgressReported:
        """Return the report of the progress and of the speed since the last report; draw the next
        speed.
        """
        self.advance(now)
        loss = self.curve.at(self.samples) if self.curve else None
        speed = (self.samples - self.told_samples) / (now - self.told_s)
        steps = int(self.samples / max(1, runs.batch))
        self.step = max(self.step + 1, steps)

        self.told_s = now
        self.told_samples = self.samples
        self._draw_noise()

        return ProgressReported(
            job=self.work.job,
            namespace=self.work.namespace,
            uid=self.uid,
            generation=runs.generation,
            step=self.step,
            epoch=0,
            samples=int(self.samples),
            total_samples=self.work.samples,
            samples_per_second=speed,
            loss=loss,
            gradient_noise=self.work.gradient_noise,
            staleness=self._staleness(runs),
            usage=self.usage,
            reported_s=now,
        )

    def _staleness(self, runs: AllocationDecided) -> Staleness | None:
        """Return the staleness of gradients of workers that are always busy; None: no noise is
        known, or no gradient is stale.
        """
        if self.work.gradient_noise is None or shares_batch(self.work.request()):
            return None
        others = max(0, role_count(runs, "worker") - 1)
        return Staleness(mean=others, p99=others, largest=others)

    def finish_work(self, now: float) -> JobFinished:
        """Complete the remaining work; return the end of the job."""
        self.samples = float(self.work.samples)
        generation = 0
        if self.runs is not None:
            generation = self.runs.generation

        return JobFinished(
            job=self.work.job,
            namespace=self.work.namespace,
            uid=self.uid,
            generation=generation,
            outcome="succeeded",
            step=self.step,
            samples=self.work.samples,
            finished_s=now,
        )
