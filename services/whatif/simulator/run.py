"""The loop: fold the facts, decide, carry out the decisions; as the live service, without waiting.

    1  go to the next event, or to the wake time of the last decision
    2  fold its facts
    3  answer requests
    4  decide
    5  fold and carry out the decisions, and decide again until nothing more is decided

Decisions are timed with the given `clock` (seconds); nothing else depends on it.

`World` has the events of a run, their effects, and the facts of each: the launcher's part. The new
pods of a decision exist at once, beside the running ones. Training pauses for `restart_s` from the
decision on; then the new generation trains, and the pods that it does not use are removed. (So one
number stands for make-before-break or for a restart.) A decision that replaces a pending one starts
its own `restart_s`. A change of resources only is made in place, without a pause. A decision
without tasks removes the job's pods at once; the progress of the job is saved, and when it starts
again, that is a start and no hand-over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import floor, inf

from msgspec.structs import replace

from services.allocator.admission import requests
from services.allocator.decide import Decisions, decide, prepare_tables
from services.allocator.failures import Failure
from services.allocator.settings import Rules
from services.allocator.state.state import State, apply
from services.whatif.simulator.fake_cluster import Held, SimulatedCluster, own_pods
from services.whatif.simulator.outcome import JobRecord, Run
from services.whatif.simulator.scenario import Scenario, Tenant, Work
from services.whatif.simulator.training import Training
from shared.messages import AllocationDecided, JobAccepted, JobFinished, Message, OwnPod, TaskExited

STREAM = "simulated"
PASSES = 16
"""The most decisions at one moment. A policy that still changes its decision is called again at the
next event.
"""
PATIENCE = 20.0
"""A run is given up after this multiple of the time that all jobs would need at their minimum size,
one after the other.
"""
Clock = Callable[[], float]
"""Returns seconds since any fixed time."""
Watch = Callable[[int, float], None]
"""Called after each event with the number of jobs that have ended, and the time."""


def simulate(
    scenario: Scenario,
    rules: Rules,
    seed: int,
    clock: Clock,
    watch: Watch | None = None,
) -> Run:
    """Run one policy (that of `rules`, for jobs that name none) in one world."""
    loop = SimulationLoop(scenario, rules, seed, clock)
    world = loop.world
    last_s = patience_s(scenario)
    while (now := loop.next_s()) < last_s:
        loop.step(now)
        if watch:
            over = len(world.records) - world.left
            watch(over, now)

    return Run(
        policy=rules.policy,
        records=tuple(world.records.values()),
        held=tuple(world.held),
        decision_ms=tuple(loop.decision_ms),
        ended_s=loop.now,
        failures=tuple(loop.failures.values()),
    )


def patience_s(scenario: Scenario) -> float:
    """Return the time at which a run is given up.

    Otherwise a policy that always resizes would never end.
    """
    alone_s = 0.0
    last_s = 0.0
    for work in scenario.jobs:
        alone_s += scenario.restart_s + _longest_training_s(scenario, work)
        last_s = max(last_s, work.submitted_s)

    for tenant in scenario.cluster.tenants:
        last_s = max(last_s, tenant.to_s or tenant.from_s)
    return last_s + PATIENCE * alone_s + 1.0


def _longest_training_s(scenario: Scenario, work: Work) -> float:
    """Return the time in s that a job trains at its minimum size; 0 if it cannot train at that
    size.
    """
    surface = scenario.surfaces[work.model]
    slowest = surface.speed(work.ps.min, work.workers.min, work.batch.min)
    if not slowest:
        return 0.0
    return work.samples / slowest


class SimulationLoop:
    """The state of one run: the world, and the allocator's state."""

    def __init__(self, scenario: Scenario, rules: Rules, seed: int, clock: Clock) -> None:
        self.world = World(scenario, seed)
        self.clock = clock

        quotas = rules.quotas | scenario.cluster.quotas
        self.rules = replace(rules, quotas=quotas, repeat_max=0)

        self.state = State()
        self.decisions = Decisions()
        self.now = 0.0
        self.sequence = 0
        self.decision_ms: list[float] = []
        self.failures: dict[tuple[str, str], Failure] = {}

    def next_s(self) -> float:
        """Return the time of the next event, or of the last decision's wake; infinite if there is
        none.
        """
        due_s = inf
        wake_s = self.decisions.wake_s
        if self.world.left and wake_s is not None and wake_s > self.now:
            due_s = wake_s
        event_s = self.world.next_s()
        return max(self.now, min(event_s, due_s))

    def step(self, now: float) -> None:
        """Fold the facts of a moment, and decide until nothing more is decided."""
        self.now = now
        self._hear(self.world.run_events(now))
        self._answer()
        for _ in range(PASSES):
            if not self._decide():
                break

    def _decide(self) -> bool:
        """Decide once; return True if anything was decided."""
        self.decisions = self._next_decisions()
        actions = self.decisions.actions
        for action in actions:
            self._hear([action])
            self._enact(action)

        self._hear(self.world.changed_nodes(self.now))
        return bool(actions)

    def _next_decisions(self) -> Decisions:
        """Call the allocator; record the time that it takes, and its failures."""
        last = self.decisions
        before_s = self.clock()
        self.state = prepare_tables(self.state, self.rules)
        decisions = decide(
            self.state, self.now, self.rules, last.pending_changes, last.failures, last.untried
        )
        for failure in decisions.failures:
            self.failures[failure.job, failure.error] = failure

        took_s = self.clock() - before_s
        self.decision_ms.append(took_s * 1000.0)
        return decisions

    def _enact(self, action: AllocationDecided | JobFinished) -> None:
        """Carry out a decision in the world."""
        if isinstance(action, JobFinished):
            self.world.close_job(action, self.now)
        else:
            self.world.enact(action, self.now)

    def _answer(self) -> None:
        """Accept every request that has no answer."""
        unanswered = requests.oldest_requests(self.state)
        for uid, asked in unanswered.items():
            request = requests.with_defaults(asked.request, self.rules)
            accepted = JobAccepted(
                job=request.job,
                namespace=request.namespace,
                uid=uid,
                request=request,
                accepted_s=self.now,
            )
            self._hear([accepted])
            self.world.prepare_training(accepted)

    def _hear(self, messages: Iterable[Message]) -> None:
        """Fold messages into the allocator's state."""
        for message in messages:
            self.sequence += 1
            self.state = apply(self.state, message, STREAM, self.sequence, self.now)


Facts = list[Message]
Happens = Callable[[float], Facts]
"""An event: it is called with its time and returns its facts."""


Event = tuple[float, bool, int, Happens]
"""Its time; False if it comes before other events of that time; its number; and the event itself.
"""


class World:
    """The true state of a run. An event of a job has no effect if the job's `turn` has changed
    since.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.seed = seed
        self.machines = SimulatedCluster(
            scenario.cluster.resources_by_node(), scenario.cluster.machines_by_node()
        )
        self.records: dict[str, JobRecord] = {}
        self.trainings: dict[str, Training] = {}
        self.held: list[Held] = []
        """An entry for each change."""
        self.next_report_s = 0.0

        self.events: list[Event] = []
        """A heap by time; at one time, tenants that leave come before all other events."""
        self.ordinals = count()

        for work in scenario.jobs:
            request = work.request()
            self.records[request.key()] = JobRecord(work)
            self._plan_event(work.submitted_s, partial(self._submit_job, work))
        self.left = len(self.records)
        """The number of jobs that have not ended."""
        for tenant in scenario.cluster.tenants:
            self._plan_event(tenant.from_s, partial(self._add_tenant, tenant))

    # ------------------------------------------------------------ time

    def next_s(self) -> float:
        """Return the time of the next event; infinite if there is none."""
        if not self.left:
            return inf
        next_s = self.events[0][0] if self.events else inf
        if any(training.speed > 0 for training in self.trainings.values()):
            next_s = min(next_s, self.next_report_s)
        return next_s

    def run_events(self, now: float) -> Facts:
        """Run the events of this moment; return their facts."""
        reporting = now >= self.next_report_s
        self.next_report_s = _multiple_after(now, self.scenario.report_s)

        facts: Facts = []
        while self.events and self.events[0][0] <= now:
            _, _, _, happens = heappop(self.events)
            facts += happens(now)

        if reporting:
            facts += self._progress_reports(now)
        facts += self.changed_nodes(now)
        return facts

    def changed_nodes(self, now: float) -> Facts:
        """Return the facts of the nodes that changed."""
        machines = self.machines
        facts: Facts = list(machines.capacity_facts(now))
        if facts:
            self.held.append((now, machines.held_amount(), machines.offered_amount()))
        return facts

    def _plan_event(self, time_s: float, happens: Happens, first: bool = False) -> None:
        """Schedule an event. `first`: before the other events of its time."""
        heappush(self.events, (time_s, not first, next(self.ordinals), happens))

    # ------------------------------------------------------------ events from outside

    def _submit_job(self, work: Work, now: float) -> Facts:
        """Submit a job."""
        return [work.request()]

    def prepare_training(self, message: JobAccepted) -> None:
        """Prepare the training of an accepted job."""
        key = message.key()
        work = self.records[key].work
        self.trainings[key] = Training(work, message.uid, self.scenario, self.seed)

    def _add_tenant(self, tenant: Tenant, now: float) -> Facts:
        """Add a tenant; this may evict pods of ours."""
        if tenant.to_s is not None:
            self._plan_event(tenant.to_s, partial(self._remove_tenant, tenant), first=True)
        evicted = self.machines.change_tenant(tenant.node, tenant.cpu)
        return [self._evict_task(tenant.node, pod, now) for pod in evicted]

    def _remove_tenant(self, tenant: Tenant, now: float) -> Facts:
        """Remove a tenant."""
        self.machines.change_tenant(tenant.node, -tenant.cpu)
        return []

    def _evict_task(self, node: str, pod: OwnPod, now: float) -> TaskExited:
        """Evict a task. A job that needs the task does not train until the allocator has replaced
        it.
        """
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
        """Carry out a decision, as the launcher would."""
        key = decided.key()
        training = self.trainings[key]
        self.records[key].add_decision(decided, now)
        self._put_pods(decided)
        if training.keeps_tasks(decided):
            training.start_training(decided, now)
            self._plan_end(key)
            return

        overtaken = training.comes
        training.expect_tasks(decided, now)

        # Of the replaced decision, keep the pods that run or are wanted now.
        keep = _serials(decided) | _serials(training.runs)
        self._remove_pods(overtaken, keep)
        if not decided.tasks:
            self._remove_pods(training.runs, set())
            training.runs = None
            training.comes = None
            return

        resumes = partial(self._resume_job, key, training.turn)
        self._plan_event(now + self.scenario.restart_s, resumes)

    def _resume_job(self, key: str, turn: int, now: float) -> Facts:
        """Let the decision in flight take over, unless the job's turn has changed since."""
        training = self.trainings.get(key)
        if training is None or training.turn != turn or training.comes is None:
            return []

        decided = training.comes
        self.records[key].add_resumption(now, training.stopped_s)
        self._remove_pods(training.runs, _serials(decided))
        fact = training.resume_generation(decided, now)
        self._plan_end(key)
        return [fact]

    def _put_pods(self, decided: AllocationDecided) -> None:
        """Create the pods of a decision on their nodes."""
        pods_by_node = own_pods(decided.namespace, decided.job, decided.tasks)
        for node, pods in pods_by_node.items():
            for pod in pods:
                self.machines.put_pod(node, pod)

    def _remove_pods(self, decided: AllocationDecided | None, keep: AbstractSet[int]) -> None:
        """Remove the pods of a decision, except those with a serial in `keep`."""
        if decided is None:
            return
        for task in decided.tasks:
            if task.serial not in keep:
                pod = task.pod(decided.job)
                self.machines.remove_pod(task.node, decided.namespace, pod)

    # ------------------------------------------------------------ the course of training

    def _plan_end(self, key: str) -> None:
        """Schedule the job's end, if it comes before the next report changes its speed."""
        training = self.trainings[key]
        training.turn += 1
        ends_s = training.ends_s()
        if ends_s <= self.next_report_s:
            self._plan_event(ends_s, partial(self._finish_job, key, training.turn))

    def _progress_reports(self, now: float) -> Facts:
        """Return the reports of the jobs that train."""
        facts: Facts = []
        for key, training in self.trainings.items():
            if training.speed > 0 and training.runs and now > training.told_s:
                facts.append(training.report(training.runs, now))
                self._plan_end(key)
        return facts

    def _finish_job(self, key: str, turn: int, now: float) -> Facts:
        """Finish a job successfully, unless its turn has changed since."""
        training = self.trainings.get(key)
        if training is None or training.turn != turn:
            return []

        finished = training.finish_work(now)
        self.close_job(finished, now)
        return [finished]

    def close_job(self, finished: JobFinished, now: float) -> None:
        """Remove everything of a job that has ended."""
        key = finished.key()
        training = self.trainings.pop(key)
        self.records[key].over(finished.outcome, now)
        self.left -= 1
        self._remove_pods(training.runs, set())
        self._remove_pods(training.comes, set())


def _serials(decided: AllocationDecided | None) -> set[int]:
    """Return the serials of a decision's tasks."""
    if decided is None:
        return set()
    return {task.serial for task in decided.tasks}


def _multiple_after(now: float, step_s: float) -> float:
    """Return the next multiple of `step_s`.

    The quotient of a rounded multiple may be slightly below a whole number.
    """
    times = floor(now / step_s) + 1
    if times * step_s <= now:
        times += 1
    return times * step_s
