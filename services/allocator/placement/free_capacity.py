"""The free capacity of nodes and of quotas.

Law: each decided task is counted exactly once. Until a node lists its pod among `own`, the task is
reserved here; from then on the node's own `free` is less by it. If the pod is listed with less than
was decided, the rest is reserved. If it is listed with more, the surplus is free only after the
node reports it. A task is no longer reserved once its revision was abandoned or superseded, or its
pod has ended.

A namespace may use the smaller of two limits: the quota of the settings and the quotas of the
cluster. Policies divide this limit among the jobs of the namespace. `remaining_quotas` is the part
that is not used yet, so the API server never refuses a size because of a quota.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from services.allocator.placement.amounts import add, larger, smaller, subtract, total_of
from services.allocator.placement.quota import (
    allowed_in_total,
    limits_of,
    unused_pods,
    unused_quota,
    with_own_usage,
)
from services.allocator.policies.contract import ClusterQuota, Node, Quota, TaskLimits
from services.allocator.settings import Rules
from services.allocator.state.job import Job, job_of
from services.allocator.state.state import State, fresh_tables
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    QuotaChanged,
    Resources,
    Taint,
    TaskPlan,
)

HARD = ("NoSchedule", "NoExecute")
NOBODY: frozenset[str] = frozenset()
Pods = dict[str, Resources]
"""The resources of listed pods, by name."""


def free_nodes(state: State) -> list[Node]:
    """Return every node with its free capacity: neither used nor promised."""
    nodes = _listed_nodes(state)
    for key, tasks in _promised_now(state).items():
        job = state.jobs[key]
        for task in tasks:
            node = nodes.get(task.node)
            if node is not None:
                listed = _listed_with(state.nodes[task.node], job, task)
                nodes[task.node] = _with_promised_task(node, key, task.resources, listed)
    return list(nodes.values())


def _listed_nodes(state: State) -> dict[str, Node]:
    """Return every node by name; promised tasks are not subtracted."""
    tables = fresh_tables(state)
    if tables is not None:
        return dict(tables.nodes)
    nodes = {}
    for name, seen in state.nodes.items():
        nodes[name] = node_view(seen)
    return nodes


def _promised_now(state: State) -> Mapping[str, tuple[TaskPlan, ...]]:
    """Return the promised tasks by job, from the tables where these are up to date."""
    tables = fresh_tables(state)
    return all_promised(state) if tables is None else tables.promised


def reserved_amounts(state: State, job: Job, promised: Iterable[TaskPlan]) -> list[Resources]:
    """Return the resources that each promised task takes beyond those of its listed pod."""
    found = []
    for task in promised:
        node = state.nodes.get(task.node)
        if node is not None:
            listed = _listed_with(node, job, task)
            found.append(subtract(task.resources, listed))
    return found


def remaining_quotas(state: State, quotas: Mapping[str, Quota]) -> dict[str, Resources]:
    """Return the remaining amount of each namespace with a quota.

    The resources of listed pods, on all nodes, and of decided tasks beyond those are subtracted
    from the quota. The unused part of the ResourceQuotas contains decided tasks until their pods
    are listed, so these are subtracted there, too. So nothing is promised twice, whenever a pod
    begins to count in the quota.
    """
    found = {}
    for namespace, use in namespace_usage(state, quotas).items():
        left = subtract(quotas[namespace].most(), use.total())
        fact = state.quotas.get(namespace)
        if fact is not None:
            left_in_cluster = subtract(unused_quota(fact), use.promised())
            left = smaller(left, left_in_cluster)
        found[namespace] = left
    return found


class NamespaceUsage(NamedTuple):
    """The use of one namespace's jobs. `listed`: the resources of their listed pods on all nodes;
    `beyond`: the resources that decided tasks need beyond those; `new`: the decided tasks without a
    listed pod.
    """

    listed: list[Resources]
    beyond: list[Resources]
    new: list[TaskPlan]

    def total(self) -> Resources:
        return total_of([*self.listed, *self.beyond])

    def promised(self) -> Resources:
        return total_of(self.beyond)


def namespace_usage(state: State, namespaces: Collection[str]) -> dict[str, NamespaceUsage]:
    """Return the use of each of these namespaces. A pod that has ended uses nothing, even if it is
    still listed.
    """
    if not namespaces:
        return {}
    found = {namespace: NamespaceUsage([], [], []) for namespace in namespaces}
    jobs = [job for job in state.jobs.values() if job.request.namespace in found]

    listed = _listed_pods(state, found, jobs)
    for namespace, pods in listed.items():
        found[namespace].listed.extend(pods.values())

    promised = _promised_now(state)
    for job in jobs:
        namespace = job.request.namespace
        _add_promised(found[namespace], listed[namespace], state, job, promised.get(job.key, ()))
    return found


def _add_promised(
    use: NamespaceUsage, pods: Pods, state: State, job: Job, promised: Iterable[TaskPlan]
) -> None:
    """Add the promised tasks of a job to the use of its namespace. `pods`: its listed pods."""
    for task in promised:
        listed = Resources()
        node = state.nodes.get(task.node)
        if node is not None:
            listed = _listed_with(node, job, task)
        use.beyond.append(subtract(task.resources, listed))
        if job.pod(task) not in pods:
            use.new.append(task)


def _listed_pods(state: State, namespaces: Collection[str], jobs: Iterable[Job]) -> dict[str, Pods]:
    """Return the listed pods by namespace, without those that have ended."""
    found: dict[str, Pods] = {}
    for namespace in namespaces:
        found[namespace] = {}
    for seen in state.nodes.values():
        for listed in seen.own:
            if listed.namespace in found:
                found[listed.namespace][listed.pod] = listed.resources
    for job in jobs:
        pods = found[job.request.namespace]
        for pod in job.exits:
            pods.pop(pod, None)
    return found


def _listed_with(seen: CapacityChanged, job: Job, task: TaskPlan) -> Resources:
    """Return the resources of the task's listed pod; nothing if the node does not list it."""
    pod = job.pod(task)
    namespace = job.request.namespace
    for listed in seen.own:
        if listed.pod == pod and listed.namespace == namespace:
            return listed.resources
    return Resources()


# ---------------------------------------------------------------- of one node, of one job


def node_view(seen: CapacityChanged) -> Node:
    """Return a node as policies see it; promised tasks are not subtracted."""
    hosts = NOBODY
    if seen.own:
        hosts = frozenset([job_of(pod) for pod in seen.own])
    return Node(
        name=seen.node,
        free=seen.free,
        allocatable=seen.allocatable,
        open=is_open(seen),
        hosts=hosts,
    )


def is_open(seen: CapacityChanged) -> bool:
    """Return True if a node is ready, not cordoned, and without a hard taint: every job may use it.
    `claims.py` opens nodes with taints to the jobs that tolerate them.
    """
    return seen.ready and seen.schedulable and not hard_taints(seen)


def hard_taints(seen: CapacityChanged) -> list[Taint]:
    """Return the taints that keep new tasks off the node."""
    return [taint for taint in seen.taints if taint.effect in HARD]


def all_promised(state: State) -> dict[str, tuple[TaskPlan, ...]]:
    """Return the promised tasks of each job that has any."""
    found = {}
    for key, job in state.jobs.items():
        tasks = promised_tasks(job, state.nodes)
        if tasks:
            found[key] = tasks
    return found


def promised_tasks(job: Job, nodes: Mapping[str, CapacityChanged]) -> tuple[TaskPlan, ...]:
    """Return the tasks of each decision with a pod that is not listed as it was decided.

    Ended tasks are left out. A task of two generations has the larger of its two sizes, because a
    pod shrinks only once the later generation runs.
    """
    wanted: dict[int, TaskPlan] = {}
    for decision in (job.active_decision, job.pending_decision):
        if decision is None or _all_listed(decision, nodes):
            continue
        for task in decision.tasks:
            before = wanted.get(task.serial)
            if before is not None:
                task = replace(task, resources=larger(before.resources, task.resources))
            wanted[task.serial] = task
    return tuple([task for task in wanted.values() if job.exit_of(task) is None])


def _all_listed(decision: AllocationDecided, nodes: Mapping[str, CapacityChanged]) -> bool:
    """Return True if every pod of a decision is listed on its node with the decided resources."""
    listed: Pods = {}
    for name in {task.node for task in decision.tasks}:
        seen = nodes.get(name)
        if seen is None:
            return False
        for pod in seen.own:
            if pod.job == decision.job and pod.namespace == decision.namespace:
                listed[pod.pod] = pod.resources
    return all(listed.get(task.pod(decision.job)) == task.resources for task in decision.tasks)


def _with_promised_task(node: Node, job: str, decided: Resources, listed: Resources) -> Node:
    """Return a node with a promised task on it. `decided`: the task's resources; `listed`: those of
    its listed pod.
    """
    free = subtract(node.free, subtract(decided, listed))
    returning = add(node.returning, subtract(listed, decided))
    hosts = node.hosts | {job}
    return Node(node.name, free, node.allocatable, node.open, hosts, returning, node.shunned)


def with_cluster_quotas(state: State, rules: Rules) -> Rules:
    """Return the rules with the cluster's quotas added."""
    if not state.quotas:
        return rules
    with_jobs = {job.request.namespace for job in state.jobs.values()}
    namespaces = sorted(with_jobs & state.quotas.keys())
    if not namespaces:
        return rules
    use = namespace_usage(state, namespaces)
    quotas = dict(rules.quotas)
    for namespace in namespaces:
        quota = rules.quotas.get(namespace, Quota())
        quotas[namespace] = _combined_quota(state.quotas[namespace], use[namespace], quota)
    return replace(rules, quotas=quotas)


def remaining_pods(state: State, quotas: Mapping[str, Quota]) -> dict[str, int]:
    """Return how many more tasks each namespace may have, if the cluster limits that."""
    found = {}
    for namespace, use in namespace_usage(state, _spaces_with_pod_limit(quotas)).items():
        left = unused_pods(state.quotas[namespace])
        if left is not None:
            found[namespace] = max(0, left - len(use.new))
    return found


def _spaces_with_pod_limit(quotas: Mapping[str, Quota]) -> list[str]:
    """Return the namespaces with a ResourceQuota for the number of pods."""
    namespaces = []
    for namespace, quota in quotas.items():
        if isinstance(quota, ClusterQuota) and quota.pods is not None:
            namespaces.append(namespace)
    return namespaces


def task_limits(quotas: Mapping[str, Quota]) -> dict[str, TaskLimits]:
    """Return the cluster's limits for the tasks of each namespace."""
    limits = {}
    for namespace, quota in quotas.items():
        if isinstance(quota, ClusterQuota):
            limits[namespace] = quota.tasks
    return limits


def quotas_after(before: State, after: State) -> dict[str, QuotaChanged]:
    """Return the cluster's quotas, with their use updated for the pods that are listed now."""
    used_before = namespace_usage(before, before.quotas)
    used_after = namespace_usage(after, after.quotas)
    quotas = {}
    for namespace, fact in after.quotas.items():
        quotas[namespace] = _with_use(fact, used_before[namespace], used_after[namespace])
    return quotas


def _with_use(
    fact: QuotaChanged, used_before: NamespaceUsage, used_after: NamespaceUsage
) -> QuotaChanged:
    """Return the fact with its use updated; the very same fact if nothing changes."""
    if used_before.listed == used_after.listed:
        return fact
    total_before = total_of(used_before.listed)
    total_after = total_of(used_after.listed)
    return with_own_usage(
        fact, total_before, len(used_before.listed), total_after, len(used_after.listed)
    )


def _combined_quota(fact: QuotaChanged, use: NamespaceUsage, quota: Quota) -> ClusterQuota:
    """Return the smaller limit of each resource: that of the ResourceQuotas, less the use of other
    pods, or the configured one. None: no limit.
    """
    pods = len(use.listed) + len(use.new)
    allowed = allowed_in_total(fact, use.total(), pods)
    gpu = _smaller(allowed.get("gpu"), quota.gpu)
    return ClusterQuota(
        cpu=_smaller(allowed.get("cpu"), quota.cpu),
        memory_gib=_smaller(allowed.get("memory_gib"), quota.memory_gib),
        gpu=None if gpu is None else int(gpu),
        pods=int(allowed["pods"]) if "pods" in allowed else None,
        tasks=limits_of(fact),
    )


def _smaller(one: float | None, other: float | None) -> float | None:
    """Return the smaller limit; None: there is none."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
