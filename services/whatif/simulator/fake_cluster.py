"""Clusters without Kubernetes: the monitor's and the trainers' facts, for the what-if code.

The simulator, explain and decide_json share `own_pods` (a node's list of our pods) and
`with_resumed_generation` (a decision is carried out). They know different parts of their clusters:
the simulator knows the true tenants over time, explain the free room of one recorded state, and
decide_json gets both the nodes and their free room from its documents.

`SimulatedCluster` holds tenants, our pods, and the free room of each node.

Law: no node ever holds more than it has; otherwise a decision was wrong, and `capacity_facts`
raises `Overcommitted`. Tenants have precedence: our newest pods on their node are evicted.

`RecordedCluster` derives from a log the machines, and the part of them that others held:

    others' cpu  =  allocatable - free - our own pods    [cores]

While a node takes no tasks, others hold all of it except our pods. Before a node exists, and after
it is gone, others hold all of it. A node has the most memory and devices that were ever free for
us, because tenants take only cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from math import inf

import msgspec

from services.allocator.placement.amounts import ROUNDING
from services.allocator.state.job import Job
from services.allocator.state.job_folds import JOB_FOLDS
from services.whatif.simulator.scenario import Cluster, Machine, Tenant
from shared.messages import CapacityChanged, OwnPod, Resources, Taint, TaskPlan, TrainingResumed

SLACK = 1e-6
"""The rounding error of sums of many tasks that each fit, in cores and GiB."""


class Overcommitted(AssertionError):
    """A node holds more than it has."""


class Amount(msgspec.Struct, frozen=True):
    """Cores and devices of many nodes or pods together."""

    cpu: float = 0.0
    gpu: int = 0


Pods = dict[tuple[str, str], OwnPod]
"""Pods by namespace and name."""
Held = tuple[float, Amount, Amount]
"""A time; from then on, the amount of our pods, and the amount that tenants leave to us."""


def own_pods(namespace: str, job: str, tasks: Iterable[TaskPlan]) -> dict[str, list[OwnPod]]:
    """Return the pods of a job's tasks by node, as the monitor lists them, in the order of the
    tasks.
    """
    pods_by_node: dict[str, list[OwnPod]] = {}
    for task in tasks:
        pod = OwnPod(
            namespace=namespace,
            job=job,
            pod=task.pod(job),
            resources=task.resources,
        )
        pods_by_node.setdefault(task.node, []).append(pod)
    return pods_by_node


def with_resumed_generation(job: Job, generation: int, resumed_s: float) -> Job:
    """Return the job as if its trainers had reported at this time that the generation trains."""
    progress = job.progress
    fact = TrainingResumed(
        job=job.request.job,
        namespace=job.request.namespace,
        uid=job.uid,
        generation=generation,
        step=progress.step if progress else 0,
        samples=progress.samples if progress else 0,
    )
    return JOB_FOLDS[TrainingResumed](job, fact, resumed_s)


class SimulatedCluster:
    """The nodes, and the pods and tenants on them."""

    def __init__(
        self, nodes: Mapping[str, Resources], machines: Mapping[str, Machine] | None = None
    ) -> None:
        """`machines`: the machines that give the nodes their labels and taints."""
        self.nodes = dict(nodes)
        self.machines = dict(machines or {})
        self.tenants = dict.fromkeys(nodes, 0.0)
        """The cores of each node that its tenants want."""
        self.pods: dict[str, Pods] = {name: {} for name in nodes}
        """The pods of each node, in the order of arrival."""
        self.touched = set(nodes)
        """The nodes that changed since the last capacity facts."""
        self.looks = 0
        self._held = dict.fromkeys(nodes, Resources())
        """The sum of the resources of each node's pods."""

    # ------------------------------------------------------------ events

    def put_pod(self, node: str, pod: OwnPod) -> None:
        """Put a pod on a node, or change the resources of a pod that is there."""
        pods = self.pods[node]
        name = (pod.namespace, pod.pod)
        if pods.get(name) != pod:
            pods[name] = pod
            self._note_change(node)

    def remove_pod(self, node: str, namespace: str, pod: str) -> None:
        """Remove a pod from a node, if it is there."""
        if self.pods[node].pop((namespace, pod), None) is not None:
            self._note_change(node)

    def change_tenant(self, node: str, cpu: float) -> list[OwnPod]:
        """Give tenants more cores (fewer if `cpu` is negative); return the evicted pods."""
        self.tenants[node] += cpu
        gone = []
        self._note_change(node)
        pods = self.pods[node]
        while pods and self._is_overcommitted(node):
            _, newest = pods.popitem()
            gone.append(newest)
            self._note_change(node)
        return gone

    def _is_overcommitted(self, node: str) -> bool:
        return self.free_resources(node).cpu < -ROUNDING

    def _note_change(self, node: str) -> None:
        """Note that a node changed."""
        self.touched.add(node)
        pods = self.pods[node].values()
        self._held[node] = _sum(pod.resources for pod in pods)

    # ------------------------------------------------------------ the monitor's view

    def free_resources(self, node: str) -> Resources:
        """Return the free resources of a node. They may be below zero while pods move."""
        has = self.nodes[node]
        held = self._held[node]
        return Resources(
            cpu=has.cpu - self._tenant_cores(node) - held.cpu,
            memory_gib=has.memory_gib - held.memory_gib,
            gpu=has.gpu - held.gpu,
        )

    def _tenant_cores(self, node: str) -> float:
        """Return the cores that tenants hold: what they want, at most all of the node."""
        wanted = max(0.0, self.tenants[node])
        return min(self.nodes[node].cpu, wanted)

    def capacity_facts(self, now: float) -> Iterator[CapacityChanged]:
        """Yield each node that changed since the last call; raise `Overcommitted`."""
        touched = sorted(self.touched)
        self.touched = set()
        for name in touched:
            self.looks += 1
            machine = self.machines.get(name, Machine())
            yield CapacityChanged(
                node=name,
                node_uid=name,
                seen=str(self.looks),
                allocatable=self.nodes[name],
                free=_without_float_errors(name, self.free_resources(name)),
                own=tuple(self.pods[name].values()),
                labels=machine.labels,
                taints=machine.taints,
                observed_s=now,
            )

    def held_amount(self) -> Amount:
        """Return the cores and devices that our pods hold."""
        held = _sum(self._held.values())
        return Amount(held.cpu, held.gpu)

    def offered_amount(self) -> Amount:
        """Return the cores and devices that tenants leave to us."""
        everything = _sum(self.nodes.values())
        taken = sum(map(self._tenant_cores, self.nodes))
        return Amount(everything.cpu - taken, everything.gpu)


def _sum(resources: Iterable[Resources]) -> Resources:
    """Return the sum of resources, added in their order."""
    cpu = 0.0
    memory_gib = 0.0
    gpu = 0
    for one in resources:
        cpu += one.cpu
        memory_gib += one.memory_gib
        gpu += one.gpu
    return Resources(cpu=cpu, memory_gib=memory_gib, gpu=gpu)


def _without_float_errors(name: str, free: Resources) -> Resources:
    """Return the amount without rounding errors below 0."""
    if min(free.cpu, free.memory_gib, free.gpu) < -SLACK:
        raise Overcommitted(f"{name} is overcommitted: {free} is left")
    return Resources(
        cpu=max(0.0, free.cpu),
        memory_gib=max(0.0, free.memory_gib),
        gpu=max(0, free.gpu),
    )


LEAST = 1e-6  # cores; a smaller amount is a rounding error
Level = tuple[float, float]
"""A time; from then on, the cores of a node that others hold."""


class RecordedCluster:
    """The nodes of a log, and the amounts over time."""

    def __init__(self) -> None:
        self.has: dict[str, Resources] = {}
        """The resources of each node."""
        self.best: dict[str, Resources] = {}
        """The most memory and devices of each node that were ever left to us."""
        self.levels: dict[str, list[Level]] = {}
        """The cores of each node that others hold, over time."""
        self.ours: dict[str, Resources] = {}
        """The amounts that our pods hold on each node now."""
        self.labels: dict[str, dict[str, str]] = {}
        """The newest labels of each node."""
        self.taints: dict[str, tuple[Taint, ...]] = {}
        """The taints that each node has always had."""
        self.held: list[Held] = []
        """An entry for each change, as in a run."""

    def observe(self, seen: CapacityChanged, now: float) -> None:
        """Record a capacity fact of the monitor."""
        node = seen.node
        if node not in self.has and now > 0:
            # Before a node existed, others held all of it.
            self.levels[node] = [(0.0, seen.allocatable.cpu)]

        ours = _sum(own.resources for own in seen.own)
        if seen.gone:
            self.has.setdefault(node, Resources())
            self.ours[node] = Resources()
        else:
            self.has[node] = seen.allocatable
            self.ours[node] = ours
            self.labels[node] = seen.labels
            always = self.taints.get(node, seen.taints)
            self.taints[node] = tuple([taint for taint in always if taint in seen.taints])

        self._note_best(seen, ours)
        self._note_level(seen, now)
        self.held.append((now, self._held_amount(), self._offered_amount()))

    def _note_level(self, seen: CapacityChanged, now: float) -> None:
        """Record the cores of a node that others hold from now on."""
        levels = self.levels.setdefault(seen.node, [])
        levels.append((now, self._foreign_cores(seen)))

    def _note_best(self, seen: CapacityChanged, ours: Resources) -> None:
        """Record the most memory and devices of a node that were ever left to us."""
        best = self.best.get(seen.node, Resources())
        memory_gib = seen.free.memory_gib + ours.memory_gib
        gpu = seen.free.gpu + ours.gpu
        self.best[seen.node] = Resources(
            memory_gib=max(best.memory_gib, memory_gib),
            gpu=max(best.gpu, gpu),
        )

    def _foreign_cores(self, seen: CapacityChanged) -> float:
        """Return the cores of a node that others hold."""
        if seen.gone:
            return self.has[seen.node].cpu
        left = 0.0
        if seen.ready and seen.schedulable:
            left = seen.free.cpu
        ours = self.ours[seen.node].cpu
        return max(0.0, seen.allocatable.cpu - left - ours)

    def _held_amount(self) -> Amount:
        """Return the cores and devices of our pods."""
        held = _sum(self.ours.values())
        return Amount(held.cpu, held.gpu)

    def _offered_amount(self) -> Amount:
        """Return the amounts that others do not hold."""
        others = sum(levels[-1][1] for levels in self.levels.values())
        everything = _sum(self.has.values())
        return Amount(everything.cpu - others, everything.gpu)

    def cluster(self) -> Cluster:
        """Return the machines and the tenants of the log."""
        nodes = []
        for name, has in self.has.items():
            best = self.best[name]
            machine = Machine(
                name=name,
                cpu=has.cpu,
                memory_gib=best.memory_gib,
                gpu=best.gpu,
                labels=self.labels.get(name, {}),
                taints=self.taints.get(name, ()),
            )
            nodes.append(machine)
        return Cluster(nodes=tuple(nodes), tenants=tuple(self._tenants()))

    def _tenants(self) -> Iterator[Tenant]:
        """Yield a tenant for each period in which others hold the same number of cores."""
        for node, levels in self.levels.items():
            changes = [*_level_changes(levels), (inf, 0.0)]
            for (from_s, cpu), (until_s, _) in pairwise(changes):
                if cpu <= LEAST or from_s >= until_s:
                    continue
                to_s = None if until_s == inf else until_s
                yield Tenant(node=node, cpu=cpu, from_s=from_s, to_s=to_s)


def _level_changes(levels: Iterable[Level]) -> Iterator[Level]:
    """Yield the levels that differ from the one before."""
    before = None
    for at_s, cpu in levels:
        if cpu != before:
            yield at_s, cpu
        before = cpu
