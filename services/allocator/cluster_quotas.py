"""The quotas of the settings and those of the cluster together, for the namespaces that have jobs.

What all tasks of a namespace may have is the smaller of the two. Policies share that among its jobs; what may still be
asked for is less (`capacity.purses`), so the API server never has to refuse a size because of a quota.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from services.allocator.capacity import Use, uses
from services.allocator.kept import KeptEach
from services.allocator.placing.amounts import together
from services.allocator.policies.contract import ClusterQuota, Quota, TaskLimits
from services.allocator.resource_quotas import limits_of, moved, ours_in_all, unused_pods
from services.allocator.rules import Rules
from services.allocator.state import State
from shared.messages import QuotaChanged

ByNamespace = tuple[tuple[str, ClusterQuota], ...]


def with_cluster_quotas(state: State, rules: Rules) -> Rules:
    """Return the rules with the cluster's quotas in them; the very same ones while these are the same."""
    if not state.quotas:
        return rules
    spaces = sorted({job.request.namespace for job in state.jobs.values()} & state.quotas.keys())
    use = uses(state, spaces)
    found = [(space, _together(state.quotas[space], use[space], rules.quotas.get(space, Quota()))) for space in spaces]
    return _rules_with([(rules, tuple(found))])[0] if found else rules


def slots(state: State, quotas: Mapping[str, Quota]) -> dict[str, int]:
    """Return how many more tasks each namespace may have, where the cluster limits that."""
    limited = [space for space, quota in quotas.items() if isinstance(quota, ClusterQuota) and quota.pods is not None]
    found = {}
    for space, use in uses(state, limited).items():
        left = unused_pods(state.quotas[space])
        if left is not None:
            found[space] = max(0, left - len(use.new))
    return found


def task_limits(quotas: Mapping[str, Quota]) -> dict[str, TaskLimits]:
    """Return what the cluster allows the tasks of each namespace."""
    return {space: quota.tasks for space, quota in quotas.items() if isinstance(quota, ClusterQuota)}


def quotas_after(before: State, after: State) -> dict[str, QuotaChanged]:
    """Return the cluster's quotas, with what is used of them once the pods that were listed are others."""
    had, has = uses(before, before.quotas), uses(after, after.quotas)
    return {space: _with_use(fact, had[space], has[space]) for space, fact in after.quotas.items()}


def _with_use(fact: QuotaChanged, had: Use, has: Use) -> QuotaChanged:
    """Return the very same fact where nothing changes."""
    if had.listed == has.listed:
        return fact
    return moved(fact, together(had.listed), len(had.listed), together(has.listed), len(has.listed))


def _together(fact: QuotaChanged, use: Use, quota: Quota) -> ClusterQuota:
    ours = ours_in_all(fact, use.total(), len(use.listed) + len(use.new))
    most = {name: ours.get(name) for name in ("cpu", "memory_gib", "gpu")}
    for name in most:
        most[name] = min((each for each in (most[name], getattr(quota, name)) if each is not None), default=None)
    return ClusterQuota(
        cpu=most["cpu"],
        memory_gib=most["memory_gib"],
        gpu=None if most["gpu"] is None else int(most["gpu"]),
        pods=int(ours["pods"]) if "pods" in ours else None,
        tasks=limits_of(fact),
    )


def _with(pairs: Sequence[tuple[Rules, ByNamespace]]) -> list[Rules]:
    return [replace(rules, quotas={**rules.quotas, **dict(found)}) for rules, found in pairs]


_rules_with: KeptEach[tuple[Rules, ByNamespace], Rules] = KeptEach(_with, lambda pair: (id(pair[0]), pair[1]))
