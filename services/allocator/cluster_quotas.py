"""The quotas of the settings and those of the cluster together, for the namespaces that have jobs.

What all tasks of a namespace may have is the smaller of the two. Policies share that among its
jobs; what may still be asked for is less (`capacity.purses`), so the API server never has to refuse
a size because of a quota.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from services.allocator.capacity import Use, uses
from services.allocator.placing.amounts import together
from services.allocator.policies.contract import ClusterQuota, Quota, TaskLimits
from services.allocator.resource_quotas import limits_of, moved, ours_in_all, unused_pods
from services.allocator.rules import Rules
from services.allocator.state import State
from shared.messages import QuotaChanged


def with_cluster_quotas(state: State, rules: Rules) -> Rules:
    """Return the rules with the cluster's quotas in them."""
    if not state.quotas:
        return rules
    with_jobs = {job.request.namespace for job in state.jobs.values()}
    spaces = sorted(with_jobs & state.quotas.keys())
    if not spaces:
        return rules
    use = uses(state, spaces)
    quotas = dict(rules.quotas)
    for space in spaces:
        quota = rules.quotas.get(space, Quota())
        quotas[space] = _combined_quota(state.quotas[space], use[space], quota)
    return replace(rules, quotas=quotas)


def slots(state: State, quotas: Mapping[str, Quota]) -> dict[str, int]:
    """Return how many more tasks each namespace may have, where the cluster limits that."""
    found = {}
    for space, use in uses(state, _spaces_with_pod_limit(quotas)).items():
        left = unused_pods(state.quotas[space])
        if left is not None:
            found[space] = max(0, left - len(use.new))
    return found


def _spaces_with_pod_limit(quotas: Mapping[str, Quota]) -> list[str]:
    """Return the namespaces in which a ResourceQuota limits the number of pods."""
    spaces = []
    for space, quota in quotas.items():
        if isinstance(quota, ClusterQuota) and quota.pods is not None:
            spaces.append(space)
    return spaces


def task_limits(quotas: Mapping[str, Quota]) -> dict[str, TaskLimits]:
    """Return what the cluster allows the tasks of each namespace."""
    limits = {}
    for space, quota in quotas.items():
        if isinstance(quota, ClusterQuota):
            limits[space] = quota.tasks
    return limits


def quotas_after(before: State, after: State) -> dict[str, QuotaChanged]:
    """Return the cluster's quotas, with what is used of them once the pods that were listed are
    others.
    """
    had = uses(before, before.quotas)
    has = uses(after, after.quotas)
    quotas = {}
    for space, fact in after.quotas.items():
        quotas[space] = _with_use(fact, had[space], has[space])
    return quotas


def _with_use(fact: QuotaChanged, had: Use, has: Use) -> QuotaChanged:
    """Return the very same fact where nothing changes."""
    if had.listed == has.listed:
        return fact
    before = together(had.listed)
    after = together(has.listed)
    return moved(fact, before, len(had.listed), after, len(has.listed))


def _combined_quota(fact: QuotaChanged, use: Use, quota: Quota) -> ClusterQuota:
    """Return the smaller limit of each resource: that of the ResourceQuotas, less the use of other
    pods, or the configured one. None: no limit.
    """
    pods = len(use.listed) + len(use.new)
    ours = ours_in_all(fact, use.total(), pods)
    gpu = _smaller(ours.get("gpu"), quota.gpu)
    return ClusterQuota(
        cpu=_smaller(ours.get("cpu"), quota.cpu),
        memory_gib=_smaller(ours.get("memory_gib"), quota.memory_gib),
        gpu=None if gpu is None else int(gpu),
        pods=int(ours["pods"]) if "pods" in ours else None,
        tasks=limits_of(fact),
    )


def _smaller(one: float | None, other: float | None) -> float | None:
    """Return the smaller limit; None: there is none."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
