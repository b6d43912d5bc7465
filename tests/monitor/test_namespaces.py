"""Tests of the facts about a namespace.

They have the bounds of quotas and limit ranges for its tasks, and the nodes of its claims.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from hypothesis import given, settings

from services.monitor.namespaces import (
    ClaimPicture,
    NamespacedObject,
    QuotaPicture,
    read_claim,
    read_limit_range,
    read_resource_quota,
    read_volume,
)
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.kube.objects import MalformedObject
from shared.messages import (
    ClaimPlacement,
    ClaimsChanged,
    MostResources,
    NodeRequirement,
    NodeTerm,
    QuotaBound,
    QuotaChanged,
    Resources,
    TaskBounds,
)
from tests.monitor.builders import Raw
from tests.monitor.test_service import api, count, monitor
from tests.monitor.test_service import told as node_told
from tests.shared.kube.api_server import ApiServer
from tests.shared.malformed import spoilt

__all__ = ["api"]


def raw_quota(
    name: str = "compute", used: Raw | None = None, space: str = "team-a", **spec: Any
) -> Raw:
    hard = spec.pop(
        "hard", {"requests.cpu": "8", "limits.memory": "16Gi", "pods": "10", "services": "3"}
    )
    return {
        "metadata": {"name": name, "namespace": space, "uid": f"uid-{name}"},
        "spec": {"hard": hard, **spec},
        "status": {"hard": hard, "used": used or {"requests.cpu": "2500m", "pods": "3"}},
    }


def raw_range(name: str = "sizes", space: str = "team-a", *limits: Raw) -> Raw:
    usual = [
        {"type": "Container", "min": {"cpu": "250m"}, "max": {"cpu": "4", "memory": "8Gi"}},
        {"type": "Pod", "max": {"cpu": "2"}},
        {"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}},
    ]
    return {
        "metadata": {"name": name, "namespace": space},
        "spec": {"limits": list(limits) or usual},
    }


def read_quota(raw: Any) -> NamespacedObject[tuple[QuotaBound, ...]]:
    return read_resource_quota(msgspec.json.encode(raw))


def bounds(raw: Raw) -> list[tuple[str, float, float]]:
    return [(bound.resource, bound.hard, bound.used) for bound in read_quota(raw).value]


def test_a_quota_and_its_usage_are_in_message_units():
    assert bounds(raw_quota()) == [
        ("limits.memory", 16, 0),
        ("pods", 10, 3),
        ("requests.cpu", 8, 2.5),
    ]
    devices = {
        "requests.nvidia.com/gpu": "4",
        "count/pods": "7",
        "cpu": "1500m",
        "requests.memory": "512Mi",
    }
    assert bounds(raw_quota(hard=devices)) == [
        ("count/pods", 7, 0),
        ("cpu", 1.5, 0),
        ("requests.memory", 0.5, 0),
        ("requests.nvidia.com/gpu", 4, 0),
    ]


def test_a_quota_counts_only_if_its_scopes_cover_every_task():
    assert bounds(raw_quota(scopes=["NotTerminating", "NotBestEffort"]))
    for scope in ("Terminating", "BestEffort", "PriorityClass", "CrossNamespacePodAffinity"):
        assert bounds(raw_quota(scopes=[scope])) == []
    for name, operator, counts in (
        ("NotBestEffort", "Exists", True),
        ("PriorityClass", "In", False),
    ):
        expressions = [{"scopeName": name, "operator": operator}]
        assert bool(bounds(raw_quota(scopeSelector={"matchExpressions": expressions}))) == counts


def test_a_limit_range_bounds_a_task_by_its_container_and_pod_limits():
    told = read_limit_range(msgspec.json.encode(raw_range())).value
    assert told == TaskBounds(
        limit_range="sizes", least=Resources(cpu=0.25), most=MostResources(cpu=2, memory_gib=8)
    )


def test_a_namespace_is_published_on_relevant_changes_and_when_all_quotas_are_gone():
    picture = QuotaPicture()
    assert (
        picture.take_changes(
            picture.quotas.update(read_quota(raw_quota(scopes=["BestEffort"]))), 1.0
        )
        == []
    )
    picture.revision = "1"
    (first,) = picture.take_changes(picture.quotas.update(read_quota(raw_quota())), 1.0)
    assert first.namespace == "team-a" and len(first.bounds) == 3
    assert picture.take_changes(picture.quotas.update(read_quota(raw_quota())), 2.0) == []
    picture.revision = "2"
    (gone,) = picture.take_changes(picture.quotas.replace_all(()), 3.0)
    assert gone.bounds == () and gone.id() != first.id()
    picture.revision = "3"
    (again,) = picture.take_changes(picture.quotas.update(read_quota(raw_quota())), 4.0)
    assert again.bounds == first.bounds and again.id() != first.id()
    restarted = QuotaPicture([again])
    assert [each.bounds for each in restarted.take_changes(restarted.published, 5.0)] == [()]


@settings(max_examples=200)
@given(raw=spoilt(raw_quota(scopes=["NotTerminating"])), other=spoilt(raw_range()))
def test_an_incomplete_object_is_malformed_or_gives_a_readable_fact(raw: Any, other: Any) -> None:
    picture = QuotaPicture()
    for read, there, body in (
        (read_resource_quota, picture.quotas, raw),
        (read_limit_range, picture.limit_ranges, other),
    ):
        try:
            there.update(read(msgspec.json.encode(body)))
        except MalformedObject as error:
            assert str(error)
    for said in picture.take_changes(
        {space for space in (*picture.quotas.known, *picture.limit_ranges.known)}, 1.0
    ):
        assert (
            subjects.decode_message(subjects.subject_of(said), subjects.encode_message(said))
            == said
        )


# ------------------------------------------------------------ the service


async def told(bus: Bus, *hards: float) -> QuotaChanged:
    """Wait until the last fact of the namespace has these hard limits; return it."""
    async with asyncio.timeout(60):
        while True:
            heard = await bus.last_message(QuotaChanged, "team-a")
            said = heard.message if heard else None
            if isinstance(said, QuotaChanged) and [bound.hard for bound in said.bounds] == [*hards]:
                return said


async def test_quotas_are_published_at_start_on_change_and_on_deletion(
    nats_url: str, person: Bus, api: ApiServer
) -> None:
    api.put("resourcequotas", raw_quota(hard={"requests.cpu": "8"}))
    api.put("limitranges", raw_range())
    async with monitor(nats_url, api):
        first = await told(person, 8)
        assert [each.limit_range for each in first.task_bounds] == ["sizes"]
        api.put("resourcequotas", raw_quota(hard={"requests.cpu": "8"}, used={"requests.cpu": "6"}))
        async with asyncio.timeout(60):
            while (await told(person, 8)).bounds[0].used != 6:
                pass
    before = await count(person)
    api.remove("resourcequotas", "compute", silent=True)
    async with monitor(nats_url, api):
        gone = await told(person)
        assert [each.limit_range for each in gone.task_bounds] == ["sizes"]
        assert await count(person) == before + 1


async def test_capacity_is_published_without_permission_to_read_quotas(
    nats_url: str, person: Bus, api: ApiServer
) -> None:
    api.forbidden = {"resourcequotas", "limitranges"}
    async with monitor(nats_url, api):
        assert (await node_told(person, "n1", bool)).free.cpu == 7


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
def test_an_incomplete_claim_or_volume_is_malformed_or_gives_a_readable_fact(
    raw: Any, other: Any
) -> None:
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


async def published_claims(bus: Bus, *claims: str) -> ClaimsChanged:
    """Wait until these claims of the namespace are bound to nodes; return the fact."""
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
        assert (await published_claims(person, "data")).placements[0].terms == (IN_A,)
    api.remove("persistentvolumeclaims", "data", silent=True)
    async with monitor(nats_url, api):
        await published_claims(person)
