"""One job as it really trains: between two events it goes on at one speed.

    speed  = v(ps, workers, b) * min(1, least share of its cpu that a task has) * e    [samples/s]
    b      = min(batch, device_batch_max * workers)                                    [samples]
    ln e   ~ N(-noise^2 / 2, noise^2), drawn anew at each report, so that the mean of e is 1

v is the surface's. What does not fit into the devices at once is done in turns, so a larger batch gains nothing. A task
with less cpu than was asked for it slows the whole job (training waits for its slowest part); more gains nothing: the
surface does not say (our reconstruction). A job that lost a task stands still until it is replaced; it loses no work.
"""

from __future__ import annotations

from math import exp, inf

import numpy as np

from services.allocator.readings import counted
from services.allocator.simulator.losses import Curve
from services.allocator.simulator.scenario import Work
from services.allocator.simulator.surfaces import Surface
from shared.messages import AllocationDecided, ProgressReported, Resources, TaskPlan, TaskUsage, TrainingResumed


class Training:
    """`runs` trains, or did before it was stopped at `stopped_s`; `comes` is what it waits for."""

    def __init__(self, work: Work, uid: int, surface: Surface, curve: Curve | None, noise: float, seed: int) -> None:
        self.work, self.uid, self.sizes = work, uid, work.resources()
        self.surface, self.curve, self.noise = surface, curve, noise
        self.chance = np.random.default_rng((seed, uid))
        self.runs: AllocationDecided | None = None
        self.comes: AllocationDecided | None = None
        self.lost: set[int] = set()
        self.usage: tuple[TaskUsage, ...] = ()
        self.samples, self.at_s = 0.0, 0.0
        self.speed, self.mean_speed = 0.0, 0.0
        self.stopped_s, self.told_s, self.told_samples = 0.0, 0.0, 0.0
        self.step, self.turn = 0, 0

    # ------------------------------------------------------------ what happens to it

    def advance(self, now: float) -> None:
        self.samples = min(float(self.work.samples), self.samples + self.speed * (now - self.at_s))
        self.at_s = now

    def stop(self, now: float) -> None:
        """Stand still; a second stop changes nothing."""
        if self.speed > 0:
            self.advance(now)
            self.speed, self.stopped_s = 0.0, now

    def go(self, decision: AllocationDecided, now: float) -> None:
        """Train by a decision from now on."""
        self.advance(now)
        self.runs, self.comes = decision, None
        self.lost.clear()
        self.told_s, self.told_samples = now, self.samples
        self.usage = tuple(self._used(task) for task in decision.tasks)
        self.mean_speed = self._speed_by(decision)
        self._draw()

    def _draw(self) -> None:
        luck = float(self.chance.normal(-self.noise * self.noise / 2, self.noise)) if self.noise else 0.0
        self.speed = self.mean_speed * exp(luck)

    def _speed_by(self, decision: AllocationDecided) -> float:
        ps, workers = counted(decision, "ps"), counted(decision, "worker")
        most = self.work.device_batch_max
        batch = decision.batch if most is None else min(decision.batch, most * workers)
        least = min((self._share(task) for task in decision.tasks), default=0.0)
        return self.surface.speed(ps, workers, batch) * min(1.0, least)

    def _share(self, task: TaskPlan) -> float:
        """Of the cpu that was asked for, what the task has."""
        asked = self._asked(task).cpu
        return task.resources.cpu / asked if asked else 1.0

    def _asked(self, task: TaskPlan) -> Resources:
        return {"chief": self.sizes.chief, "ps": self.sizes.ps, "worker": self.sizes.worker}[task.role]

    def _used(self, task: TaskPlan) -> TaskUsage:
        """A task uses the cpu that was asked for it, where it has so much, and half of the memory."""
        cpu, gib = min(task.resources.cpu, self._asked(task).cpu), self._asked(task).memory_gib / 2
        return TaskUsage(task=task.name(), cpu=cpu, memory_gib=gib)

    def task_of(self, pod: str) -> tuple[TaskPlan, int, bool]:
        """A pod's task, the newest generation that has it, and whether what is wanted now needs it."""
        wanted = self.comes or self.runs
        decided = [decision for decision in (self.comes, self.runs) if decision]
        found = ((t, d.generation, d is wanted) for d in decided for t in d.tasks if t.pod(self.work.job) == pod)
        return next(found)

    # ------------------------------------------------------------ what it says

    def ends_s(self) -> float:
        return self.at_s + (self.work.samples - self.samples) / self.speed if self.speed > 0 else inf

    def resumed(self, decision: AllocationDecided, now: float) -> TrainingResumed:
        """Go, and say so. A pause is told where generation followed generation, not where a task was lost."""
        handed_over = self.runs is not None and not self.lost
        previous = self.runs.generation if self.runs else None
        self.go(decision, now)
        return TrainingResumed(
            job=self.work.job,
            namespace=self.work.namespace,
            uid=self.uid,
            generation=decision.generation,
            step=self.step,
            samples=int(self.samples),
            previous=previous,
            pause_s=now - self.stopped_s if handed_over else None,
        )

    def report(self, runs: AllocationDecided, now: float) -> ProgressReported:
        """How far, and how fast since the last report; from then on the speed is another."""
        self.advance(now)
        speed = (self.samples - self.told_samples) / (now - self.told_s)
        self.step = max(self.step + 1, int(self.samples / max(1, runs.batch)))
        self.told_s, self.told_samples = now, self.samples
        self._draw()
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
            loss=self.curve.at(self.samples) if self.curve else None,
            usage=self.usage,
            reported_s=now,
        )
