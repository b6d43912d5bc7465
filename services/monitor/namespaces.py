"""The facts about each namespace: the bounds that its ResourceQuotas and LimitRanges set for tasks,
and the nodes that can reach the volumes behind its claims.

`Collection` has the objects of one kind by namespace, `NamespacePicture` the facts that were
published about each namespace.

Law of quotas: only bounds that apply to tasks are kept. The pod of a task has requests and no
deadline, so a quota with scopes counts only if it is for such pods and for no others; a quota for
pods of some priority classes is left out. Limits and use are taken from the status, by which the
API server admits pods.

Law of claims: a claim counts only if it is bound to a volume that not every node can reach: because
of the volume's node affinity, or its labels of zone and region, which older volumes have.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from services.monitor.facts import UNREADABLE, ObjectMeta
from shared.bounds import within_bounds
from shared.kube.objects import GPU, ApiObject, MalformedObject, whole_units
from shared.messages import (
    GIB,
    ClaimPlacement,
    ClaimsChanged,
    MostResources,
    Namespace,
    NodeRequirement,
    NodeTerm,
    QuotaBound,
    QuotaChanged,
    Resources,
    TaskBounds,
)

Value = TypeVar("Value")
F = TypeVar("F", bound=QuotaChanged | ClaimsChanged)


class NamespacedObject(msgspec.Struct, Generic[Value], frozen=True):
    """The value of one object of a namespace."""

    namespace: str
    name: str
    value: Value


class Collection(Generic[Value]):
    """All objects of one kind. Every change returns the namespaces that it affects."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Value]] = {}

    def replace_all(self, objects: Iterable[NamespacedObject[Value]]) -> set[str]:
        before = set(self.known)
        self.known = {}
        for each in objects:
            self.update(each)
        return before | set(self.known)

    def update(self, each: NamespacedObject[Value]) -> set[str]:
        self.known.setdefault(each.namespace, {})[each.name] = each.value
        return {each.namespace}

    def remove(self, each: NamespacedObject[Value]) -> set[str]:
        left = self.known.get(each.namespace, {})
        left.pop(each.name, None)
        if not left:
            self.known.pop(each.namespace, None)
        return {each.namespace}

    def in_namespace(self, namespace: str) -> list[tuple[str, Value]]:
        """Return names and values of the objects of a namespace, ordered by name."""
        return sorted(self.known.get(namespace, {}).items(), key=lambda item: item[0])


class NamespacePicture(Generic[F]):
    """The objects that exist, and the fact that was last published about each namespace.

    `revision`: the API's, of the newest event. It is part of a fact's digest, so that a namespace
    that returns to an old state has a new fact.
    """

    def __init__(self, published: Iterable[F] = ()) -> None:
        self.restart_from(published)
        self.revision = ""

    def restart_from(self, published: Iterable[F]) -> None:
        """Replace the published facts."""
        self.published = {fact.namespace: fact for fact in published}

    def take_changes(self, namespaces: Iterable[str], now: float) -> list[F]:
        """Return the new facts about these namespaces; they count as published."""
        changes = []
        for namespace in sorted(namespaces):
            fact = self.current_fact(namespace)
            if self.differs(self.published.get(namespace), fact):
                body = self.revision.encode() + msgspec.json.encode(fact)
                digest = hashlib.sha256(body).hexdigest()[:16]
                changes.append(msgspec.structs.replace(fact, seen=digest, observed_s=now))
        for fact in changes:
            self.published[fact.namespace] = fact
        return changes

    @abstractmethod
    def current_fact(self, namespace: str) -> F:
        """Return the fact about a namespace as it is now, without digest and time."""

    @abstractmethod
    def differs(self, last: F | None, fact: F) -> bool:
        """Return True if a fact has to be published: its content differs from the last one's.

        `last` None: a fact without content (bounds, placements) is not published.
        """


# ---------------------------------------------------------------- quotas

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
"""The resources of a quota that apply to tasks, each with the number of its smallest units
(millicores, bytes) in one unit of a message.
"""
OF_TASKS = ("Container", "Pod")
"""The kinds of limits that apply to tasks: the pod of a task has one container."""
UNITS = {"cpu": ("cpu", 1000), "memory_gib": ("memory", GIB), "gpu": (GPU, 1)}
Quantities = dict[str, str | int | float]


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
        spec = self.spec or QuotaSpec()
        status = self.status or QuotaStatus()
        if not spec.holds_tasks():
            return ()
        hard = status.hard or spec.hard or {}
        used = status.used or {}
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
        spec = self.spec or LimitRangeSpec()
        minima = []
        maxima = []
        for limit in spec.limits or ():
            if limit.type in OF_TASKS:
                minima.append(limit.min)
                maxima.append(limit.max)
        least = _combine(max, minima)
        most = _combine(min, maxima)
        return TaskBounds(
            limit_range=self.metadata.name,
            least=within_bounds(Resources(**least)),
            most=within_bounds(MostResources(**most)),
        )


def read_resource_quota(raw: bytes) -> NamespacedObject[tuple[QuotaBound, ...]]:
    """Decode a ResourceQuota. Raises `MalformedObject`."""
    try:
        read = msgspec.json.decode(raw, type=QuotaObject)
        return NamespacedObject(
            _namespace(read.metadata.namespace), read.metadata.name, read.bounds()
        )
    except UNREADABLE as error:
        raise MalformedObject(str(error)) from error


def read_limit_range(raw: bytes) -> NamespacedObject[TaskBounds]:
    """Decode a LimitRange. Raises `MalformedObject`."""
    try:
        read = msgspec.json.decode(raw, type=LimitRangeObject)
        return NamespacedObject(
            _namespace(read.metadata.namespace), read.metadata.name, read.task_bounds()
        )
    except UNREADABLE as error:
        raise MalformedObject(str(error)) from error


def _namespace(namespace: str | None) -> str:
    """Return the namespace. Raises an error if it can have no jobs."""
    return msgspec.convert(namespace or "", Namespace)


def _to_unit(resource: str, quantity: object) -> float:
    counted_as = "cpu" if "cpu" in resource else resource
    return whole_units(counted_as, quantity) / COUNTED[resource]


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
        if last is None:
            return bool(fact.bounds or fact.task_bounds)
        return last.bounds != fact.bounds or last.task_bounds != fact.task_bounds


# ---------------------------------------------------------------- claims

ZONES = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)
"""Labels of a volume that its nodes must have too; `a__b` means `a` or `b`."""
Terms = tuple[NodeTerm, ...]


class RequirementObject(ApiObject, frozen=True):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class TermObject(ApiObject, frozen=True):
    match_expressions: list[RequirementObject] | None = None
    match_fields: list[RequirementObject] | None = None


class SelectorObject(ApiObject, frozen=True):
    node_selector_terms: list[TermObject] | None = None


class VolumeAffinity(ApiObject, frozen=True):
    required: SelectorObject | None = None


class ClaimReference(ApiObject, frozen=True):
    namespace: str | None = None


class VolumeSpec(ApiObject, frozen=True):
    node_affinity: VolumeAffinity | None = None
    claim_ref: ClaimReference | None = None


class VolumeObject(ApiObject, frozen=True):
    metadata: ObjectMeta
    spec: VolumeSpec | None = None

    def terms(self) -> Terms:
        affinity = self.spec.node_affinity if self.spec else None
        required = affinity.required if affinity else None
        terms = []
        if required:
            for term in required.node_selector_terms or ():
                terms.append(_node_term(term))
        zones = _zone_requirements(self.metadata.labels or {})
        if not zones:
            return tuple(terms)
        if required is None:
            terms = [NodeTerm()]
        with_zones = []
        for reachable in terms:
            with_zones.append(
                msgspec.structs.replace(reachable, labels=(*reachable.labels, *zones))
            )
        return tuple(with_zones)


class ClaimSpec(ApiObject, frozen=True):
    volume_name: str | None = None


class ClaimObject(ApiObject, frozen=True):
    metadata: ObjectMeta
    spec: ClaimSpec | None = None


def read_claim(raw: bytes) -> NamespacedObject[str] | None:
    """Return the name of the volume that a claim is bound to; None if it is bound to none. Raises
    `MalformedObject`.
    """
    try:
        claim = msgspec.json.decode(raw, type=ClaimObject)
        volume = claim.spec.volume_name if claim.spec else None
        if not volume:
            return None
        return NamespacedObject(_namespace(claim.metadata.namespace), claim.metadata.name, volume)
    except UNREADABLE as error:
        raise MalformedObject(str(error)) from error


def read_volume(raw: bytes) -> NamespacedObject[Terms] | None:
    """Return the nodes that can reach a volume; None if all nodes can, or no claim is bound to it.
    Raises `MalformedObject`.
    """
    try:
        volume = msgspec.json.decode(raw, type=VolumeObject)
        claim = volume.spec.claim_ref if volume.spec else None
        terms = volume.terms() if claim else ()
        if not claim or not terms:
            return None
        return NamespacedObject(_namespace(claim.namespace), volume.metadata.name, terms)
    except UNREADABLE as error:
        raise MalformedObject(str(error)) from error


def _node_term(term: TermObject) -> NodeTerm:
    return NodeTerm(
        labels=_requirements(term.match_expressions), fields=_requirements(term.match_fields)
    )


def _requirements(objects: Iterable[RequirementObject] | None) -> tuple[NodeRequirement, ...]:
    requirements = []
    for each in objects or ():
        requirements.append(_requirement(each.key, each.operator, each.values or ()))
    return tuple(requirements)


def _zone_requirements(labels: Mapping[str, str]) -> tuple[NodeRequirement, ...]:
    requirements = []
    for key in ZONES:
        if key in labels:
            requirements.append(_requirement(key, "In", labels[key].split("__")))
    return tuple(requirements)


def _requirement(key: str, operator: str, values: Iterable[str]) -> NodeRequirement:
    requirement = NodeRequirement(key=key, operator=operator, values=tuple(values))
    return within_bounds(requirement)


class ClaimPicture(NamespacePicture[ClaimsChanged]):
    def __init__(self, published: Iterable[ClaimsChanged] = ()) -> None:
        super().__init__(published)
        self.claims = Collection[str]()
        self.volumes = Collection[Terms]()

    def current_fact(self, namespace: str) -> ClaimsChanged:
        volumes = self.volumes.known.get(namespace, {})
        claims_of: dict[Terms, list[str]] = {}
        for name, volume in self.claims.in_namespace(namespace):
            if volume in volumes:
                claims_of.setdefault(volumes[volume], []).append(name)
        placements = []
        for terms, names in claims_of.items():
            placements.append(ClaimPlacement(claims=tuple(names), terms=terms))
        return ClaimsChanged(namespace=namespace, seen="", placements=tuple(placements))

    def differs(self, last: ClaimsChanged | None, fact: ClaimsChanged) -> bool:
        return (last.placements if last else ()) != fact.placements
