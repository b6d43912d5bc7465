"""What quotas and limit ranges allow the tasks of a namespace."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from hypothesis import given, settings

from services.monitor.namespaces import NamespacedObject
from services.monitor.quotas import QuotaPicture, read_limit_range, read_resource_quota
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.kube.objects import MalformedObject
from shared.messages import MostResources, QuotaBound, QuotaChanged, Resources, TaskBounds
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
    """Wait until a namespace's last fact has these bounds."""
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
