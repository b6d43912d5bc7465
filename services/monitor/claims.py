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
        required = self.spec and self.spec.node_affinity and self.spec.node_affinity.required
        terms = [_term(each) for each in required.node_selector_terms or ()] if required else []
        zones = _zones(self.metadata.labels or {})
        if not zones:
            return tuple(terms)
        alone = [NodeTerm()] if required is None else terms
        return tuple(msgspec.structs.replace(term, labels=(*term.labels, *zones)) for term in alone)


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


def _term(term: TermObject) -> NodeTerm:
    return NodeTerm(
        labels=_requirements(term.match_expressions), fields=_requirements(term.match_fields)
    )


def _requirements(each: Iterable[RequirementObject] | None) -> tuple[NodeRequirement, ...]:
    return tuple(
        within_bounds(
            NodeRequirement(key=one.key, operator=one.operator, values=tuple(one.values or ()))
        )
        for one in each or ()
    )


def _zones(labels: Mapping[str, str]) -> tuple[NodeRequirement, ...]:
    return tuple(
        within_bounds(
            NodeRequirement(key=key, operator="In", values=tuple(labels[key].split("__")))
        )
        for key in ZONES
        if key in labels
    )


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
        placements = [
            ClaimPlacement(claims=tuple(names), terms=terms) for terms, names in claims_of.items()
        ]
        return ClaimsChanged(namespace=namespace, seen="", placements=tuple(placements))

    def differs(self, last: ClaimsChanged | None, fact: ClaimsChanged) -> bool:
        return (last.placements if last else ()) != fact.placements
