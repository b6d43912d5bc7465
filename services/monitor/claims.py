"""The nodes that can reach the volume behind each claim of a namespace.

Law: a claim counts only if it is bound to a volume that not every node can reach: because of the
volume's node affinity, or its labels of zone and region, which older volumes have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from services.monitor.facts import UNREADABLE, ObjectMeta
from services.monitor.namespaces import Collection, NamespacedObject, NamespacePicture
from shared.bounds import within_bounds
from shared.kube.objects import ApiObject, MalformedObject
from shared.messages import ClaimPlacement, ClaimsChanged, Namespace, NodeRequirement, NodeTerm

ZONES = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)
"""Labels of a volume that its nodes must have too; `a__b` means `a` or `b`."""
Terms = tuple[NodeTerm, ...]


# ---------------------------------------------------------------- the API's shapes


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
        return tuple(msgspec.structs.replace(term, labels=(*term.labels, *zones)) for term in terms)


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


def _namespace(namespace: str | None) -> str:
    """Return the namespace. Raises an error if it can have no jobs."""
    return msgspec.convert(namespace or "", Namespace)


def _node_term(term: TermObject) -> NodeTerm:
    return NodeTerm(
        labels=_requirements(term.match_expressions), fields=_requirements(term.match_fields)
    )


def _requirements(objects: Iterable[RequirementObject] | None) -> tuple[NodeRequirement, ...]:
    return tuple(_requirement(each.key, each.operator, each.values or ()) for each in objects or ())


def _zone_requirements(labels: Mapping[str, str]) -> tuple[NodeRequirement, ...]:
    found = [(key, labels[key].split("__")) for key in ZONES if key in labels]
    return tuple(_requirement(key, "In", values) for key, values in found)


def _requirement(key: str, operator: str, values: Iterable[str]) -> NodeRequirement:
    requirement = NodeRequirement(key=key, operator=operator, values=tuple(values))
    return within_bounds(requirement)


# ---------------------------------------------------------------- picture


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
