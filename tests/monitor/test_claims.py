"""To which nodes the claims of a namespace are bound."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from hypothesis import given, settings

from services.monitor.claims import ClaimPicture, read_claim, read_volume
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.kube.objects import MalformedObject
from shared.messages import ClaimPlacement, ClaimsChanged, NodeRequirement, NodeTerm
from tests.monitor.builders import Raw
from tests.monitor.test_service import api, monitor
from tests.shared.kube.api_server import ApiServer
from tests.shared.malformed import spoilt

__all__ = ["api"]

ZONE = "topology.kubernetes.io/zone"
IN_A = NodeTerm(labels=(NodeRequirement(key=ZONE, operator="In", values=("a",)),))


def raw_claim(name: str = "data", bound_to: str | None = "pv-1", space: str = "team-a") -> Raw:
    spec = {"volumeName": bound_to} if bound_to else {}
    return {"metadata": {"name": name, "namespace": space, "uid": f"uid-{name}"}, "spec": spec}


def raw_volume(
    name: str = "pv-1", space: str = "team-a", labels: Raw | None = None, **affinity: Any
) -> Raw:
    terms = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a"]}]}]
    usual = {"required": {"nodeSelectorTerms": terms}}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels or {}},
        "spec": {
            "claimRef": {"namespace": space, "name": "data"},
            "nodeAffinity": affinity or usual,
        },
    }


def terms_of(raw: Raw) -> tuple[NodeTerm, ...]:
    read = read_volume(msgspec.json.encode(raw))
    return read.value if read else ()


def seen(*bodies: Raw) -> ClaimPicture:
    picture = ClaimPicture()
    for body in bodies:
        raw = msgspec.json.encode(body)
        if "claimRef" in body["spec"]:
            picture.volumes.replace_all([read] if (read := read_volume(raw)) else [])
        elif found := read_claim(raw):
            picture.claims.update(found)
    return picture


def test_node_terms_and_fields_of_a_volume_are_published_unchanged():
    field = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    raw = raw_volume(required={"nodeSelectorTerms": [{"matchFields": [field]}, {}]})
    here = NodeRequirement(key="metadata.name", operator="In", values=("n1",))
    assert terms_of(raw) == (NodeTerm(fields=(here,)), NodeTerm())
    assert terms_of(raw_volume()) == (IN_A,)


def test_legacy_zone_labels_of_a_volume_restrict_it_too():
    either = NodeRequirement(key=ZONE, operator="In", values=("a", "b"))
    labels = {ZONE: "a__b", "app": "x"}
    assert terms_of(raw_volume(labels=labels, required=None)) == (NodeTerm(labels=(either,)),)
    assert terms_of(raw_volume(labels=labels)) == (NodeTerm(labels=(*IN_A.labels, either)),)


def test_an_unrestricted_volume_and_an_unbound_claim_have_no_terms():
    assert terms_of(raw_volume(required=None)) == ()
    assert read_claim(msgspec.json.encode(raw_claim(bound_to=None))) is None
    assert seen(raw_claim(), raw_volume(required=None)).take_changes(["team-a"], 1.0) == []


def test_claims_with_the_same_terms_are_grouped_and_published_only_on_change():
    picture = seen(
        raw_claim(), raw_claim("models"), raw_claim("other", bound_to="pv-2"), raw_volume()
    )
    picture.volumes.known["team-a"]["pv-2"] = (IN_A,)
    (told,) = picture.take_changes(["team-a", "team-b"], 1.0)
    assert told.placements == (ClaimPlacement(claims=("data", "models", "other"), terms=(IN_A,)),)
    assert picture.take_changes(["team-a"], 2.0) == []
    picture.volumes.known.clear()
    (gone,) = picture.take_changes(["team-a"], 3.0)
    assert gone.placements == () and gone.id() != told.id()


@settings(max_examples=200)
@given(raw=spoilt(raw_claim()), other=spoilt(raw_volume(labels={ZONE: "a"})))
def test_an_incomplete_object_is_malformed_or_gives_a_readable_fact(raw: Any, other: Any) -> None:
    picture = ClaimPicture()
    for read, there, body in (
        (read_claim, picture.claims, raw),
        (read_volume, picture.volumes, other),
    ):
        try:
            found: Any = read(msgspec.json.encode(body))
        except MalformedObject as error:
            assert str(error)
        else:
            there.replace_all([found] if found else [])
    for said in picture.take_changes({*picture.claims.known, *picture.volumes.known}, 1.0):
        assert (
            subjects.decode_message(subjects.subject_of(said), subjects.encode_message(said))
            == said
        )


# ------------------------------------------------------------ the service


async def told(bus: Bus, *claims: str) -> ClaimsChanged:
    """Wait until these claims of the namespace are bound to nodes."""
    async with asyncio.timeout(60):
        while True:
            heard = await bus.last_message(ClaimsChanged, "team-a")
            said = heard.message if heard else None
            if isinstance(said, ClaimsChanged) and [
                name for p in said.placements for name in p.claims
            ] == [*claims]:
                return said


async def test_claims_are_published_when_bound_and_when_deleted(
    nats_url: str, person: Bus, api: ApiServer
) -> None:
    api.put("persistentvolumeclaims", raw_claim(bound_to=None))
    async with monitor(nats_url, api):
        api.put("persistentvolumes", raw_volume())
        api.put("persistentvolumeclaims", raw_claim())
        assert (await told(person, "data")).placements[0].terms == (IN_A,)
    api.remove("persistentvolumeclaims", "data", silent=True)
    async with monitor(nats_url, api):
        await told(person)
