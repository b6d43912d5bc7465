"""What is free to be given.

Law: each decided task is counted exactly once. Until its pod is listed among a node's `own` it is reserved here; from
then on the node's own `free` is less by it. Where it is listed with less than was decided, the rest is reserved; where
with more, that is free only when it is seen free. A task whose revision was abandoned or superseded, or whose pod has
ended, is reserved no longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial

from msgspec.structs import replace

from services.allocator.job import Job
from services.allocator.kept import MOST, Kept
from services.allocator.placing.amounts import larger, less, plus, together
from services.allocator.placing.placement import Node
from services.allocator.placing.quota import Quota
from services.allocator.state import State
from shared.messages import AllocationDecided, CapacityChanged, Resources, TaskPlan

HARD = ("NoSchedule", "NoExecute")
Pods = frozenset[tuple[str, str, Resources]]
"""(namespace, name, what it has)"""


def free_nodes(state: State) -> list[Node]:
    """Every node with what is neither used nor promised."""
    nodes = {name: _node(seen) for name, seen in state.nodes.items()}
    unlisted = _unlisted(_all_listed(state))
    for job in [job for job in state.jobs.values() if job.decided]:
        for task in unlisted(job):
            if task.node in nodes:
                has = _has(state.nodes[task.node]).get((job.request.namespace, job.pod(task)), Resources())
                nodes[task.node] = _give(nodes[task.node], job.key, task.resources, has)
    return list(nodes.values())


def purses(state: State, quotas: Mapping[str, Quota]) -> dict[str, Resources]:
    """What each namespace that has a quota may still take: the quota less what its pods have, wherever they are listed,
    and less what its decided tasks are to have beyond that. A pod that was heard to have ended has nothing any more.
    """
    if not quotas:
        return {}
    unlisted = _unlisted(_all_listed(state))
    jobs = [job for job in state.jobs.values() if job.request.namespace in quotas]
    used: dict[str, list[Resources]] = {namespace: [] for namespace in quotas}
    ended = {(job.request.namespace, pod) for job in jobs for pod in job.exits}
    for pod, has in (each for seen in state.nodes.values() for each in _has(seen).items()):
        if pod[0] in used and pod not in ended:
            used[pod[0]].append(has)
    for job in jobs:
        for task in unlisted(job):
            own = _has(state.nodes[task.node]) if task.node in state.nodes else {}
            has = own.get((job.request.namespace, job.pod(task)), Resources())
            used[job.request.namespace].append(less(task.resources, has))
    return {space: less(quota.most(), together(used[space])) for space, quota in quotas.items()}


def _all_listed(state: State) -> Pods:
    return _together(frozenset(map(_listed, state.nodes.values())))


def _of_job(job: Job, listed: Pods) -> tuple[TaskPlan, ...]:
    """Tasks that are wanted, that have not ended, and whose pod no node lists yet as it was decided.

    A task that two generations want has the larger of what they give it: a pod shrinks only once the later one runs.
    """
    wanted: dict[int, TaskPlan] = {}
    decided = [decision for decision in (job.runs, job.flies) if decision and not _pods(decision) <= listed]
    for task in (task for decision in decided for task in decision.tasks):
        before = wanted.get(task.serial)
        wanted[task.serial] = replace(task, resources=larger(before.resources, task.resources)) if before else task
    return tuple(task for task in wanted.values() if job.exit_of(task) is None)


def _plain_node(seen: CapacityChanged) -> Node:
    return Node(
        name=seen.node,
        free=seen.free,
        allocatable=seen.allocatable,
        open=seen.ready and seen.schedulable and not any(t.effect in HARD for t in seen.taints),
        hosts=frozenset([f"{own.namespace}.{own.job}" for own in seen.own]),
    )


def _own_pods(seen: CapacityChanged) -> Pods:
    return _same(frozenset([(own.namespace, own.pod, own.resources) for own in seen.own]))


def _own_resources(seen: CapacityChanged) -> dict[tuple[str, str], Resources]:
    return {(own.namespace, own.pod): own.resources for own in seen.own}


def _decided_pods(decision: AllocationDecided) -> Pods:
    namespace, job = decision.namespace, decision.job
    return frozenset([(namespace, f"{job}-{task.role}-{task.serial}", task.resources) for task in decision.tasks])


@lru_cache(MOST)
def _same(pods: Pods) -> Pods:
    """The very same for equal ones: mostly a node's picture changes, and our pods on it do not."""
    return pods


@lru_cache(2)
def _together(listed: frozenset[Pods]) -> Pods:
    return Pods().union(*listed)


_unlisted: Kept[Pods, Kept[Job, tuple[TaskPlan, ...]]] = Kept(lambda listed: Kept(partial(_of_job, listed=listed)), 2)
_node, _listed, _has, _pods = Kept(_plain_node), Kept(_own_pods), Kept(_own_resources), Kept(_decided_pods)


def _give(node: Node, job: str, wants: Resources, has: Resources) -> Node:
    free, back = less(node.free, less(wants, has)), plus(node.returning, less(has, wants))
    return Node(node.name, free, node.allocatable, node.open, node.hosts | {job}, back)
