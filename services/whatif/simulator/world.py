"""The events of a run, their effects on the world, and the facts of each: the launcher's part.

A decision's new pods are there at once, beside those that run. Training stands still from the
decision on for `restart_s`; then the new generation trains, and the pods that it has no use for are
gone. (So one number stands for make-before-break or for a restart.) A decision that overtakes
another starts its own `restart_s`. A change of nothing but resources is made in place, without a
pause. A decision without tasks takes the job's pods away at once; what it has trained is saved, and
when it starts again, that is a start and no hand-over.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import floor, inf

from services.whatif.simulator.machines import Held, Machines
from services.whatif.simulator.record import Record
from services.whatif.simulator.scenario import Scenario, Tenant, Work
from services.whatif.simulator.training import Training
from shared.messages import (
    AllocationDecided,
    JobAccepted,
    JobFinished,
    Message,
    OwnPod,
    TaskExited,
)

Facts = list[Message]
Happens = Callable[[float], Facts]
"""An event, called with its time; it returns its facts."""


Event = tuple[float, bool, int, Happens]
"""Its time, whether it is behind the others of that time, its ordinal, and its effect."""


class World:
    """The true state of a run. A job's event counts only in the `turn` in which it was planned."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.seed = seed
        self.machines = Machines(scenario.cluster.named())
        self.records: dict[str, Record] = {}
        self.trainings: dict[str, Training] = {}
        self.held: list[Held] = []
        """An entry for each change."""
        self.next_report_s = 0.0

        self.events: list[Event] = []
        """In the order of their time, tenants that leave before those that come."""
        self.ordinals = count()

        for work in scenario.jobs:
            request = work.request()
            self.records[request.key()] = Record(work)
            self._at(work.submitted_s, partial(self._arrives, work))
        self.left = len(self.records)
        """Jobs that are not over."""
        for tenant in scenario.cluster.tenants:
            self._at(tenant.from_s, partial(self._comes, tenant))

    # ------------------------------------------------------------ time

    def next_s(self) -> float:
        """Return the time of the next event; infinite: there is none."""
        if not self.left:
            return inf
        next_s = self.events[0][0] if self.events else inf
        if any(training.speed > 0 for training in self.trainings.values()):
            next_s = min(next_s, self.next_report_s)
        return next_s

    def happen(self, now: float) -> Facts:
        """Let the events of this moment happen; return their facts."""
        reporting = now >= self.next_report_s
        self.next_report_s = _multiple_after(now, self.scenario.report_s)

        facts: Facts = []
        while self.events and self.events[0][0] <= now:
            _, _, _, happens = heappop(self.events)
            facts += happens(now)

        if reporting:
            facts += self._reports(now)
        facts += self.seen(now)
        return facts

    def seen(self, now: float) -> Facts:
        """Return the nodes that changed."""
        machines = self.machines
        facts: Facts = list(machines.facts(now))
        if facts:
            self.held.append((now, machines.used(), machines.offered()))
        return facts

    def _at(self, time_s: float, happens: Happens, first: bool = False) -> None:
        """Plan an event. `first`: before the others of its time."""
        heappush(self.events, (time_s, not first, next(self.ordinals), happens))

    # ------------------------------------------------------------ events from outside

    def _arrives(self, work: Work, now: float) -> Facts:
        """Let a job be submitted."""
        return [work.request()]

    def accepted(self, message: JobAccepted) -> None:
        """Prepare the training of an accepted job."""
        key = message.key()
        work = self.records[key].work
        self.trainings[key] = Training(work, message.uid, self.scenario, self.seed)

    def _comes(self, tenant: Tenant, now: float) -> Facts:
        """Let a tenant come; pods of ours may have to go."""
        if tenant.to_s is not None:
            self._at(tenant.to_s, partial(self._leaves, tenant), first=True)
        evicted = self.machines.tenant(tenant.node, tenant.cpu)
        return [self._loses(tenant.node, pod, now) for pod in evicted]

    def _leaves(self, tenant: Tenant, now: float) -> Facts:
        """Let a tenant leave."""
        self.machines.tenant(tenant.node, -tenant.cpu)
        return []

    def _loses(self, node: str, pod: OwnPod, now: float) -> TaskExited:
        """Evict a task. A job that needs it stands still until the allocator has replaced it."""
        training = self.trainings[f"{pod.namespace}.{pod.job}"]
        task, generation, wanted = training.task_of(pod.pod)
        if wanted:
            training.lose_task(task, now)

        return TaskExited(
            job=pod.job,
            namespace=pod.namespace,
            uid=training.uid,
            generation=generation,
            pod=pod.pod,
            pod_uid=pod.pod,
            role=task.role,
            serial=task.serial,
            node=node,
            reason="Evicted",
        )

    # ------------------------------------------------------------ decisions

    def enact(self, decided: AllocationDecided, now: float) -> None:
        """Do the launcher's part for a decision."""
        key = decided.key()
        training = self.trainings[key]
        self.records[key].decided(decided, now)
        self._put(decided)
        if training.keeps_tasks(decided):
            training.go(decided, now)
            self._plan(key)
            return

        overtaken = training.comes
        training.expect_tasks(decided, now)

        # Of a decision that was overtaken remain the pods that run, or are wanted now.
        keep = _serials(decided) | _serials(training.runs)
        self._remove(overtaken, keep)
        if not decided.tasks:
            self._remove(training.runs, set())
            training.runs = None
            training.comes = None
            return

        resumes = partial(self._resumes, key, training.turn)
        self._at(now + self.scenario.restart_s, resumes)

    def _resumes(self, key: str, turn: int, now: float) -> Facts:
        """Let the decision in flight take over, if it is still the one of that turn."""
        training = self.trainings.get(key)
        if training is None or training.turn != turn or training.comes is None:
            return []

        decided = training.comes
        self.records[key].resumed(now, training.stopped_s)
        self._remove(training.runs, _serials(decided))
        fact = training.resumed(decided, now)
        self._plan(key)
        return [fact]

    def _put(self, decided: AllocationDecided) -> None:
        """Put the pods of a decision on their nodes."""
        for task in decided.tasks:
            pod = OwnPod(
                namespace=decided.namespace,
                job=decided.job,
                pod=task.pod(decided.job),
                resources=task.resources,
            )
            self.machines.put(task.node, pod)

    def _remove(self, decided: AllocationDecided | None, keep: AbstractSet[int]) -> None:
        """Remove the pods of a decision, but those whose serials are to be kept."""
        if decided is None:
            return
        for task in decided.tasks:
            if task.serial not in keep:
                pod = task.pod(decided.job)
                self.machines.remove(task.node, decided.namespace, pod)

    # ------------------------------------------------------------ the course of training

    def _plan(self, key: str) -> None:
        """Expect the job's end, if it comes before the next report changes its speed."""
        training = self.trainings[key]
        training.turn += 1
        ends_s = training.ends_s()
        if ends_s <= self.next_report_s:
            self._at(ends_s, partial(self._ends, key, training.turn))

    def _reports(self, now: float) -> Facts:
        """Return the reports of the jobs that train."""
        facts: Facts = []
        for key, training in self.trainings.items():
            if training.speed > 0 and training.runs and now > training.told_s:
                facts.append(training.report(training.runs, now))
                self._plan(key)
        return facts

    def _ends(self, key: str, turn: int, now: float) -> Facts:
        """Let a job succeed, if this is still its turn."""
        training = self.trainings.get(key)
        if training is None or training.turn != turn:
            return []

        finished = training.finish_work(now)
        self.over(finished, now)
        return [finished]

    def over(self, finished: JobFinished, now: float) -> None:
        """Remove everything of a job that is over."""
        key = finished.key()
        training = self.trainings.pop(key)
        self.records[key].over(finished.outcome, now)
        self.left -= 1
        self._remove(training.runs, set())
        self._remove(training.comes, set())


def _serials(decided: AllocationDecided | None) -> set[int]:
    """Return the serials of a decision's tasks."""
    if decided is None:
        return set()
    return {task.serial for task in decided.tasks}


def _multiple_after(now: float, step_s: float) -> float:
    """Return the next multiple of `step_s`.

    Multiples are rounded, so their quotient may fall short of a whole number.
    """
    times = floor(now / step_s) + 1
    if times * step_s <= now:
        times += 1
    return times * step_s
