"""To which nodes the volume behind each claim of a namespace can be attached.

Law: only claims are kept that are bound to a volume, and only volumes that not every node can
reach: by their node affinity, or by the labels of zone and region that older volumes have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from services.monitor.facts import UNREADABLE, ObjectMeta
from services.monitor.namespaces import Collection, NamespacedObject
from shared.bounds import within_bounds
from shared.kube.objects import ApiObject, MalformedObject
from shared.messages import ClaimPlacement, ClaimsChanged, Namespace, NodeRequirement, NodeTerm

ZONES = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)
"""The labels of a volume that its nodes must have, too; `a__b` stands for `a` or `b`."""
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
    """Read the name of the volume to which a claim is bound; None where it is bound to none. Raise
    `Strange`.
    """
    try:
        read = msgspec.json.decode(raw, type=ClaimObject)
        volume = read.spec.volume_name if read.spec else None
        return (
            NamespacedObject(_namespace(read.metadata.namespace), read.metadata.name, volume)
            if volume
            else None
        )
    except UNREADABLE as error:
        raise MalformedObject(str(error)) from error


def read_volume(raw: bytes) -> NamespacedObject[Terms] | None:
    """Read which nodes a volume is for; None where it is for all, or is nobody's. Raise
    `Strange`.
    """
    try:
        read = msgspec.json.decode(raw, type=VolumeObject)
        claimed = read.spec.claim_ref if read.spec else None
        terms = read.terms() if claimed else ()
        return (
            NamespacedObject(_namespace(claimed.namespace), read.metadata.name, terms)
            if claimed and terms
            else None
        )
    except UNREADABLE as error:
        raise MalformedObject(str(error)) from error


def _namespace(namespace: str | None) -> str:
    """Raise an error for a namespace that can have no jobs."""
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


# ---------------------------------------------------------------- the picture


class ClaimPicture:
    """The claims and volumes there are, and what was last said of each namespace."""

    def __init__(self, said: Iterable[ClaimsChanged] = ()) -> None:
        self.begin_from(said)
        self.claims = Collection[str]()
        self.volumes = Collection[Terms]()
        self.revision = ""
        """The API's, of the newest event: what returns to an old picture is a new fact."""

    def begin_from(self, said: Iterable[ClaimsChanged]) -> None:
        """Take these for what was said."""
        self.said = {told.namespace: told for told in said}

    def news(self, namespaces: Iterable[str], now: float) -> list[ClaimsChanged]:
        """Return what is new of these namespaces; it counts as said."""
        told = [self._told(namespace, now) for namespace in sorted(namespaces)]
        fresh = [each for each in told if _differs(self.said.get(each.namespace), each)]
        self.said.update({each.namespace: each for each in fresh})
        return fresh

    def _told(self, namespace: str, now: float) -> ClaimsChanged:
        volumes, together = self.volumes.known.get(namespace, {}), dict[Terms, list[str]]()
        for name, bound_to in self.claims.in_namespace(namespace):
            if bound_to in volumes:
                together.setdefault(volumes[bound_to], []).append(name)
        placements = [
            ClaimPlacement(claims=tuple(names), terms=terms) for terms, names in together.items()
        ]
        told = ClaimsChanged(namespace=namespace, seen="", placements=tuple(placements))
        digest = hashlib.sha256(self.revision.encode() + msgspec.json.encode(told)).hexdigest()[:16]
        return msgspec.structs.replace(told, seen=digest, observed_s=now)


def _differs(last: ClaimsChanged | None, told: ClaimsChanged) -> bool:
    return (last.placements if last else ()) != told.placements
