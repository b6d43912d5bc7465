"""What each event does to the world, and which facts it makes: the launcher's part, and the order of events.

A decision's new pods are there at once, beside those that run. Training stands still from the decision on for
`restart_s`; then the new generation trains, and the pods that it has no use for are gone. (So one number stands for
make-before-break or for a restart.) A decision that overtakes another starts its own `restart_s`. What changes no more
than resources is done in place, without a pause. A decision without tasks takes the job's pods away at once; what
it has trained is saved, and when it starts again, that is a start and no hand-over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import floor, inf

from services.allocator.simulator.machines import Amount, Machines
from services.allocator.simulator.record import Record
from services.allocator.simulator.scenario import Scenario, Tenant, Work
from services.allocator.simulator.training import Training
from shared.messages import AllocationDecided, JobAccepted, JobFinished, Message, OwnPod, TaskExited, TaskPlan

Happens = Callable[[float], list[Message]]


class World:
    """`events` wait in the order of their time, tenants that leave before those that come; a job's event counts only
    in the `turn` in which it was planned.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario, self.seed = scenario, seed
        self.machines = Machines(scenario.cluster.named())
        self.records = {work.request().key(): Record(work) for work in scenario.jobs}
        self.trainings: dict[str, Training] = {}
        self.held: list[tuple[float, Amount, Amount]] = []
        """(time, what our pods hold from then on, what tenants leave to us)"""
        self.left = len(self.records)
        self.next_report_s = 0.0
        self.events: list[tuple[float, bool, int, Happens]] = []
        self.ordinals = count()
        for work in scenario.jobs:
            self._at(work.submitted_s, partial(self._arrives, work))
        for tenant in scenario.cluster.tenants:
            self._at(tenant.from_s, partial(self._comes, tenant))

    # ------------------------------------------------------------ time

    def next_s(self) -> float:
        """When something happens next; infinite where nothing will."""
        if not self.left:
            return inf
        trains = any(training.speed > 0 for training in self.trainings.values())
        return min(self.events[0][0] if self.events else inf, self.next_report_s if trains else inf)

    def happen(self, now: float) -> list[Message]:
        """The facts of this moment."""
        facts, reporting = list[Message](), now >= self.next_report_s
        self.next_report_s = _multiple_after(now, self.scenario.report_s)
        while self.events and self.events[0][0] <= now:
            facts += heappop(self.events)[3](now)
        if reporting:
            facts += self._reports(now)
        return [*facts, *self.seen(now)]

    def seen(self, now: float) -> list[Message]:
        """The nodes that changed."""
        facts: list[Message] = [*self.machines.facts(now)]
        if facts:
            self.held.append((now, self.machines.used(), self.machines.offered()))
        return facts

    def _at(self, time_s: float, happens: Happens, first: bool = False) -> None:
        heappush(self.events, (time_s, not first, next(self.ordinals), happens))

    # ------------------------------------------------------------ what comes from outside

    def _arrives(self, work: Work, now: float) -> list[Message]:
        return [work.request()]

    def accepted(self, message: JobAccepted) -> None:
        work = self.records[message.key()].work
        surface, curve = self.scenario.surfaces[work.model], self.scenario.losses.get(work.model)
        self.trainings[message.key()] = Training(work, message.uid, surface, curve, self.scenario.noise, self.seed)

    def _comes(self, tenant: Tenant, now: float) -> list[Message]:
        if tenant.to_s is not None:
            self._at(tenant.to_s, partial(self._leaves, tenant), first=True)
        return [self._loses(tenant.node, pod, now) for pod in self.machines.tenant(tenant.node, tenant.cpu)]

    def _leaves(self, tenant: Tenant, now: float) -> list[Message]:
        self.machines.tenant(tenant.node, -tenant.cpu)
        return []

    def _loses(self, node: str, pod: OwnPod, now: float) -> TaskExited:
        """A task is evicted: who needs it stands still until the allocator has replaced it."""
        training = self.trainings[f"{pod.namespace}.{pod.job}"]
        task, generation, wanted = training.task_of(pod.pod)
        if wanted:
            training.stop(now)
            training.lost.add(task.serial)
            training.turn += 1
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

    # ------------------------------------------------------------ what the allocator decided

    def enact(self, decided: AllocationDecided, now: float) -> None:
        training, record = self.trainings[decided.key()], self.records[decided.key()]
        before, overtaken = training.runs, training.comes
        record.decided(decided, now)
        self._put(decided)
        if before and overtaken is None and decided.generation == before.generation:
            training.go(decided, now)
            self._plan(decided.key())
            return
        training.stop(now)
        if before is None:
            training.stopped_s = now
        training.comes = decided
        training.turn += 1
        self._remove(overtaken, keep=[*(before.tasks if before else ()), *decided.tasks])
        if decided.tasks:
            resumes = partial(self._resumes, decided.key(), training.turn)
            self._at(now + self.scenario.restart_s, resumes)
        else:
            self._remove(before, keep=())
            training.runs = training.comes = None

    def _resumes(self, key: str, turn: int, now: float) -> list[Message]:
        training = self.trainings.get(key)
        if training is None or training.turn != turn or training.comes is None:
            return []
        decided, before = training.comes, training.runs
        self.records[key].resumed(now, training.stopped_s)
        self._remove(before, keep=decided.tasks)
        fact = training.resumed(decided, now)
        self._plan(key)
        return [fact]

    def _put(self, decided: AllocationDecided) -> None:
        for task in decided.tasks:
            pod = OwnPod(
                namespace=decided.namespace,
                job=decided.job,
                pod=task.pod(decided.job),
                resources=task.resources,
            )
            self.machines.put(task.node, pod)

    def _remove(self, decided: AllocationDecided | None, keep: Iterable[TaskPlan]) -> None:
        staying = {task.serial for task in keep}
        for task in decided.tasks if decided else ():
            if decided and task.serial not in staying:
                self.machines.remove(task.node, decided.namespace, task.pod(decided.job))

    # ------------------------------------------------------------ how training goes on

    def _plan(self, key: str) -> None:
        """Expect the job's end, if it comes before the next report changes its speed."""
        training = self.trainings[key]
        training.turn += 1
        if training.ends_s() <= self.next_report_s:
            self._at(training.ends_s(), partial(self._ends, key, training.turn))

    def _reports(self, now: float) -> list[Message]:
        facts: list[Message] = []
        for key, training in self.trainings.items():
            if training.speed > 0 and training.runs and now > training.told_s:
                facts.append(training.report(training.runs, now))
                self._plan(key)
        return facts

    def _ends(self, key: str, turn: int, now: float) -> list[Message]:
        training = self.trainings.get(key)
        if training is None or training.turn != turn:
            return []
        training.samples = float(training.work.samples)
        finished = JobFinished(
            job=training.work.job,
            namespace=training.work.namespace,
            uid=training.uid,
            generation=training.runs.generation if training.runs else 0,
            outcome="succeeded",
            step=training.step,
            samples=training.work.samples,
            finished_s=now,
        )
        self.over(finished, now)
        return [finished]

    def over(self, finished: JobFinished, now: float) -> None:
        """Nothing of the job stays behind."""
        training = self.trainings.pop(finished.key())
        self.records[finished.key()].over(finished.outcome, now)
        self.left -= 1
        for decided in (training.runs, training.comes):
            self._remove(decided, keep=())


def _multiple_after(now: float, step_s: float) -> float:
    """The next multiple of `step_s`. Multiples are rounded, so their quotient may fall short of a whole number."""
    times = floor(now / step_s) + 1
    return times * step_s if times * step_s > now else (times + 1) * step_s
