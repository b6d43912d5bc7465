"""The bounds that the ResourceQuotas and LimitRanges of each namespace set for tasks.

Law: only bounds that apply to tasks are kept. The pod of a task has requests and no deadline, so a
quota with scopes counts only if it is for such pods and for no others; a quota for pods of some
priority classes is left out. Limits and use are taken from the status, by which the API server
admits pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from services.monitor.facts import UNREADABLE, ObjectMeta
from services.monitor.namespaces import Collection, NamespacedObject, NamespacePicture
from shared.bounds import within_bounds
from shared.kube.objects import GIB, GPU, ApiObject, MalformedObject, whole_units
from shared.messages import (
    MostResources,
    Namespace,
    QuotaBound,
    QuotaChanged,
    Resources,
    TaskBounds,
)

SCOPES_OF_TASKS = {"NotTerminating", "NotBestEffort"}
COUNTED = {
    "pods": 1,
    "count/pods": 1,
    "cpu": 1000,
    "requests.cpu": 1000,
    "limits.cpu": 1000,
    "memory": GIB,
    "requests.memory": GIB,
    "limits.memory": GIB,
    f"requests.{GPU}": 1,
}
"""The resources of a quota that apply to tasks, with the number of smallest units in one of Weir's.
"""
OF_TASKS = ("Container", "Pod")
"""The kinds of limits that apply to tasks: the pod of a task has one container."""
UNITS = {"cpu": ("cpu", 1000), "memory_gib": ("memory", GIB), "gpu": (GPU, 1)}
Quantities = dict[str, str | int | float]


# ---------------------------------------------------------------- the API's shapes


class ScopeRequirement(ApiObject, frozen=True):
    scope_name: str = ""
    operator: str = ""


class ScopeSelector(ApiObject, frozen=True):
    match_expressions: list[ScopeRequirement] | None = None


class QuotaSpec(ApiObject, frozen=True):
    hard: Quantities | None = None
    scopes: list[str] | None = None
    scope_selector: ScopeSelector | None = None

    def holds_tasks(self) -> bool:
        scopes = set(self.scopes or ())
        selector = self.scope_selector or ScopeSelector()
        for requirement in selector.match_expressions or ():
            if requirement.operator != "Exists":
                return False
            scopes.add(requirement.scope_name)
        return scopes <= SCOPES_OF_TASKS


class QuotaStatus(ApiObject, frozen=True):
    hard: Quantities | None = None
    used: Quantities | None = None


class QuotaObject(ApiObject, frozen=True):
    metadata: ObjectMeta
    spec: QuotaSpec | None = None
    status: QuotaStatus | None = None

    def bounds(self) -> tuple[QuotaBound, ...]:
        spec, status = self.spec or QuotaSpec(), self.status or QuotaStatus()
        if not spec.holds_tasks():
            return ()
        hard, used = status.hard or spec.hard or {}, status.used or {}
        bounds = []
        for resource in sorted(hard.keys() & COUNTED.keys()):
            bound = QuotaBound(
                quota=self.metadata.name,
                resource=resource,
                hard=_to_unit(resource, hard[resource]),
                used=_to_unit(resource, used.get(resource, 0)),
            )
            bounds.append(within_bounds(bound))
        return tuple(bounds)


class LimitItem(ApiObject, frozen=True):
    type: str = ""
    min: Quantities | None = None
    max: Quantities | None = None


class LimitRangeSpec(ApiObject, frozen=True):
    limits: list[LimitItem] | None = None


class LimitRangeObject(ApiObject, frozen=True):
    metadata: ObjectMeta
    spec: LimitRangeSpec | None = None

    def task_bounds(self) -> TaskBounds:
        limits = (self.spec and self.spec.limits) or ()
        of_tasks = [limit for limit in limits if limit.type in OF_TASKS]
        least = _combine(max, [limit.min for limit in of_tasks])
        most = _combine(min, [limit.max for limit in of_tasks])
        return TaskBounds(
            limit_range=self.metadata.name,
            least=within_bounds(Resources(**least)),
            most=within_bounds(MostResources(**most)),
        )


def read_resource_quota(raw: bytes) -> NamespacedObject[tuple[QuotaBound, ...]]:
    """Decode a ResourceQuota. Raises `MalformedObject`."""
    try:
        read = msgspec.json.decode(raw, type=QuotaObject)
        return NamespacedObject(_namespace(read.metadata), read.metadata.name, read.bounds())
    except UNREADABLE as error:
        raise MalformedObject(str(error)) from error


def read_limit_range(raw: bytes) -> NamespacedObject[TaskBounds]:
    """Decode a LimitRange. Raises `MalformedObject`."""
    try:
        read = msgspec.json.decode(raw, type=LimitRangeObject)
        return NamespacedObject(_namespace(read.metadata), read.metadata.name, read.task_bounds())
    except UNREADABLE as error:
        raise MalformedObject(str(error)) from error


def _namespace(metadata: ObjectMeta) -> str:
    """Return the namespace. Raises an error if it can have no jobs."""
    return msgspec.convert(metadata.namespace or "", Namespace)


def _to_unit(resource: str, quantity: object) -> float:
    smallest = whole_units(resource.rpartition("cpu")[1] or resource, quantity)
    return smallest / COUNTED[resource]


def _combine(choose: Callable[[list[Any]], Any], limits: list[Quantities | None]) -> dict[str, Any]:
    """Return the chosen one of several limits of each resource, in the units of a message."""
    combined = {}
    for name, (resource, unit) in UNITS.items():
        amounts = []
        for quantities in limits:
            if quantities and resource in quantities:
                smallest = whole_units(resource, quantities[resource])
                amounts.append(smallest if unit == 1 else smallest / unit)
        if amounts:
            combined[name] = choose(amounts)
    return combined


# ---------------------------------------------------------------- picture


class QuotaPicture(NamespacePicture[QuotaChanged]):
    def __init__(self, published: Iterable[QuotaChanged] = ()) -> None:
        super().__init__(published)
        self.quotas = Collection[tuple[QuotaBound, ...]]()
        self.limit_ranges = Collection[TaskBounds]()

    def current_fact(self, namespace: str) -> QuotaChanged:
        bounds: list[QuotaBound] = []
        for _, of_quota in self.quotas.in_namespace(namespace):
            bounds += of_quota
        task_bounds = []
        for _, of_range in self.limit_ranges.in_namespace(namespace):
            if (of_range.least, of_range.most) != (Resources(), MostResources()):
                task_bounds.append(of_range)
        return QuotaChanged(
            namespace=namespace, seen="", bounds=tuple(bounds), task_bounds=tuple(task_bounds)
        )

    def differs(self, last: QuotaChanged | None, fact: QuotaChanged) -> bool:
        before = (last.bounds, last.task_bounds) if last else ((), ())
        return before != (fact.bounds, fact.task_bounds)
