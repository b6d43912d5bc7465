"""What is free to be given.

Law: each decided task is counted exactly once. Until its pod is listed among a node's `own` it is reserved here; from
then on the node's own `free` is less by it. Where it is listed with less than was decided, the rest is reserved; where
with more, that is free only when it is seen free. A task whose revision was abandoned or superseded, or whose pod has
ended, is reserved no longer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from services.allocator.job import Job
from services.allocator.kept import Kept, KeptTogether
from services.allocator.placing.amounts import larger, less, plus, smaller, together
from services.allocator.policies.contract import Node, Quota
from services.allocator.resource_quotas import unused
from services.allocator.state import State
from shared.messages import AllocationDecided, CapacityChanged, OwnPod, Resources, TaskPlan

HARD = ("NoSchedule", "NoExecute")
NOBODY: frozenset[str] = frozenset()
Pods = dict[str, Resources]
"""What each has, by name."""
Listed = dict[str, Pods]
"""By namespace."""


def free_nodes(state: State) -> list[Node]:
    """Every node with what is neither used nor promised."""
    nodes = dict(zip(state.nodes, _node.each(state.nodes.values()), strict=True))
    for job, tasks in _promised(_listed(state))(state.jobs):
        for task in tasks:
            if task.node in nodes:
                has = _has(state.nodes[task.node], job, task)
                nodes[task.node] = _give(nodes[task.node], job.key, task.resources, has)
    return list(nodes.values())


def purses(state: State, quotas: Mapping[str, Quota]) -> dict[str, Resources]:
    """What each namespace that has a quota may still take: the quota less what its pods have, wherever they are listed,
    and less what its decided tasks are to have beyond that. Of what ResourceQuotas leave, such tasks have taken nothing
    until their pods are listed: so nothing is promised twice, whenever a pod begins to count in the quota.
    """
    found = {}
    for space, use in uses(state, quotas).items():
        found[space] = less(quotas[space].most(), use.total())
        if space in state.quotas:
            found[space] = smaller(found[space], less(unused(state.quotas[space]), use.promised()))
    return found


class Use(NamedTuple):
    """What the jobs of one namespace use: what their pods are listed with, wherever that is, and what decided tasks are
    to have beyond that. `new`: how many of these have no pod yet that is listed.
    """

    listed: list[Resources]
    beyond: list[Resources]
    new: list[TaskPlan]

    def total(self) -> Resources:
        return together([*self.listed, *self.beyond])

    def promised(self) -> Resources:
        return together(self.beyond)


def uses(state: State, namespaces: Collection[str]) -> dict[str, Use]:
    """Return the use of each of these namespaces. A pod that was heard to have ended has nothing any more."""
    if not namespaces:
        return {}
    listed = _listed(state)
    unlisted = _unlisted(listed)
    jobs = [job for job in state.jobs.values() if job.request.namespace in namespaces]
    found = {space: Use([], [], []) for space in namespaces}
    ended = {(job.request.namespace, pod) for job in jobs for pod in job.exits}
    for space in listed.keys() & found.keys():
        found[space].listed.extend(has for pod, has in listed[space].items() if (space, pod) not in ended)
    for job in jobs:
        use, pods = found[job.request.namespace], listed.get(job.request.namespace, {})
        for task in unlisted(job):
            has = _has(state.nodes[task.node], job, task) if task.node in state.nodes else Resources()
            use.beyond.append(less(task.resources, has))
            if job.pod(task) not in pods:
                use.new.append(task)
    return found


def _listed(state: State) -> Listed:
    """The very same as long as no node's pods change."""
    return _together((), [seen.own for seen in state.nodes.values()])


def _has(seen: CapacityChanged, job: Job, task: TaskPlan) -> Resources:
    """What the node lists the task's pod with."""
    return _own(seen.own).get(job.request.namespace, {}).get(job.pod(task), Resources())


def _of_job(job: Job, listed: Listed) -> tuple[TaskPlan, ...]:
    """Tasks that are wanted, that have not ended, and whose pod no node lists yet as it was decided.

    A task that two generations want has the larger of what they give it: a pod shrinks only once the later one runs.
    """
    wanted: dict[int, TaskPlan] = {}
    decided = [decision for decision in (job.runs, job.flies) if decision and not _all_stand(decision, listed)]
    for task in (task for decision in decided for task in decision.tasks):
        before = wanted.get(task.serial)
        wanted[task.serial] = replace(task, resources=larger(before.resources, task.resources)) if before else task
    return tuple(task for task in wanted.values() if job.exit_of(task) is None)


def _of_jobs(jobs: Mapping[str, Job], listed: Listed) -> list[tuple[Job, tuple[TaskPlan, ...]]]:
    """Those that have any."""
    decided = [job for job in jobs.values() if job.decided]
    return [(job, tasks) for job, tasks in zip(decided, _unlisted(listed).each(decided), strict=True) if tasks]


def _all_stand(decision: AllocationDecided, listed: Listed) -> bool:
    """Is every pod of a decision listed with just what was decided?"""
    return _decided(decision).items() <= listed.get(decision.namespace, {}).items()


def _plain_node(seen: CapacityChanged) -> Node:
    return Node(
        name=seen.node,
        free=seen.free,
        allocatable=seen.allocatable,
        open=seen.ready and seen.schedulable and not (seen.taints and any(t.effect in HARD for t in seen.taints)),
        hosts=frozenset([f"{own.namespace}.{own.job}" for own in seen.own]) if seen.own else NOBODY,
    )


def _decided_pods(decision: AllocationDecided) -> Pods:
    return {task.pod(decision.job): task.resources for task in decision.tasks}


def _own_pods(own: tuple[OwnPod, ...]) -> Listed:
    return _all_pods([own])


def _all_pods(nodes: Sequence[tuple[OwnPod, ...]]) -> Listed:
    found: defaultdict[str, Pods] = defaultdict(dict)
    for own in nodes:
        for pod in own:
            found[pod.namespace][pod.pod] = pod.resources
    return dict(found)


_unlisted: Kept[Listed, Kept[Job, tuple[TaskPlan, ...]]] = Kept(lambda listed: Kept(partial(_of_job, listed=listed)), 2)
_promised: Kept[Listed, Kept[Mapping[str, Job], list[tuple[Job, tuple[TaskPlan, ...]]]]] = Kept(
    lambda listed: Kept(partial(_of_jobs, listed=listed), 2), 2
)
_node, _own, _decided = Kept(_plain_node), Kept(_own_pods), Kept(_decided_pods)
_together: KeptTogether[tuple[()], tuple[OwnPod, ...], Listed] = KeptTogether(_all_pods)


def _give(node: Node, job: str, wants: Resources, has: Resources) -> Node:
    free, back = less(node.free, less(wants, has)), plus(node.returning, less(has, wants))
    return Node(node.name, free, node.allocatable, node.open, node.hosts | {job}, back, node.shunned)
