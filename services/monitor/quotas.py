"""What the ResourceQuotas and LimitRanges of each namespace allow its tasks.

Law: only what counts for tasks is kept. A task's pod has requests and no deadline, so of the quotas
with scopes those count that are for such pods and for no others; a quota for pods of some priority
classes is left out. What a quota allows and uses is taken from its status, by which the API server
admits pods.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from services.monitor.facts import UNREADABLE, ObjectMeta
from services.monitor.namespaces import Collection, NamespacedObject
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
COUNTED = {"pods": 1, "count/pods": 1}
COUNTED |= {f"{of}cpu": 1000 for of in ("", "requests.", "limits.")}
COUNTED |= {f"{of}memory": GIB for of in ("", "requests.", "limits.")}
COUNTED |= {f"requests.{GPU}": 1}
"""The resources of a quota that count for tasks, and how many of their smallest units come to one
of ours.
"""
OF_TASKS = ("Container", "Pod")
"""The kinds of limits that count for tasks: the pod of a task has one container."""
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
        selected = (self.scope_selector.match_expressions if self.scope_selector else None) or []
        scopes = {*(self.scopes or ()), *(each.scope_name for each in selected)}
        return scopes <= SCOPES_OF_TASKS and all(each.operator == "Exists" for each in selected)


class QuotaStatus(ApiObject, frozen=True):
    hard: Quantities | None = None
    used: Quantities | None = None


class QuotaObject(ApiObject, frozen=True):
    metadata: ObjectMeta
    spec: QuotaSpec | None = None
    status: QuotaStatus | None = None

    def bounds(self) -> tuple[QuotaBound, ...]:
        spec, status = self.spec or QuotaSpec(), self.status or QuotaStatus()
        hard, used = status.hard or spec.hard or {}, status.used or {}
        if not spec.holds_tasks():
            return ()
        return tuple(
            within_bounds(
                QuotaBound(
                    quota=self.metadata.name,
                    resource=resource,
                    hard=_converted(resource, hard[resource]),
                    used=_converted(resource, used.get(resource, 0)),
                )
            )
            for resource in sorted(hard.keys() & COUNTED.keys())
        )


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
        items = [item for item in (self.spec and self.spec.limits) or () if item.type in OF_TASKS]
        least, most = _amounts(item.min for item in items), _amounts(item.max for item in items)
        return TaskBounds(
            limit_range=self.metadata.name,
            least=within_bounds(Resources(**{name: max(found) for name, found in least.items()})),
            most=within_bounds(MostResources(**{name: min(found) for name, found in most.items()})),
        )


def read_resource_quota(raw: bytes) -> NamespacedObject[tuple[QuotaBound, ...]]:
    """Read a ResourceQuota; raise `Strange` for what is none."""
    try:
        read = msgspec.json.decode(raw, type=QuotaObject)
        return NamespacedObject(_namespace(read.metadata), read.metadata.name, read.bounds())
    except UNREADABLE as error:
        raise MalformedObject(str(error)) from error


def read_limit_range(raw: bytes) -> NamespacedObject[TaskBounds]:
    """Read a LimitRange; raise `Strange` for what is none."""
    try:
        read = msgspec.json.decode(raw, type=LimitRangeObject)
        return NamespacedObject(_namespace(read.metadata), read.metadata.name, read.task_bounds())
    except UNREADABLE as error:
        raise MalformedObject(str(error)) from error


def _namespace(metadata: ObjectMeta) -> str:
    """Raise an error for a namespace that can have no jobs."""
    return msgspec.convert(metadata.namespace or "", Namespace)


def _converted(resource: str, quantity: object) -> float:
    smallest = whole_units(resource.rpartition("cpu")[1] or resource, quantity)
    return smallest / COUNTED[resource]


def _amounts(each: Iterable[Quantities | None]) -> dict[str, list[Any]]:
    """Return what is said of each resource, in our units."""
    found: dict[str, list[Any]] = {}
    for quantities in each:
        for name, (resource, unit) in UNITS.items():
            if quantities and resource in quantities:
                found.setdefault(name, []).append(
                    _in_unit(whole_units(resource, quantities[resource]), unit)
                )
    return found


def _in_unit(smallest: int, unit: int) -> float:
    return smallest if unit == 1 else smallest / unit


# ---------------------------------------------------------------- the picture


class QuotaPicture:
    """The quotas and limit ranges there are, and what was last said of each namespace."""

    def __init__(self, said: Iterable[QuotaChanged] = ()) -> None:
        self.begin_from(said)
        self.quotas = Collection[tuple[QuotaBound, ...]]()
        self.limit_ranges = Collection[TaskBounds]()
        self.revision = ""
        """The API's, of the newest event: what returns to an old picture is a new fact."""

    def begin_from(self, said: Iterable[QuotaChanged]) -> None:
        """Take these for what was said."""
        self.said = {told.namespace: told for told in said}

    def news(self, namespaces: Iterable[str], now: float) -> list[QuotaChanged]:
        """Return what is new of these namespaces; it counts as said."""
        told = [self._told(namespace, now) for namespace in sorted(namespaces)]
        fresh = [each for each in told if _differs(self.said.get(each.namespace), each)]
        self.said.update({each.namespace: each for each in fresh})
        return fresh

    def _told(self, namespace: str, now: float) -> QuotaChanged:
        told = QuotaChanged(
            namespace=namespace,
            seen="",
            bounds=tuple(
                bound for _, bounds in self.quotas.in_namespace(namespace) for bound in bounds
            ),
            task_bounds=tuple(
                each
                for _, each in self.limit_ranges.in_namespace(namespace)
                if _says_anything(each)
            ),
        )
        digest = hashlib.sha256(self.revision.encode() + msgspec.json.encode(told)).hexdigest()[:16]
        return msgspec.structs.replace(told, seen=digest, observed_s=now)


def _says_anything(each: TaskBounds) -> bool:
    return (each.least, each.most) != (Resources(), MostResources())


def _differs(last: QuotaChanged | None, told: QuotaChanged) -> bool:
    before = (last.bounds, last.task_bounds) if last else ((), ())
    return before != (told.bounds, told.task_bounds)
