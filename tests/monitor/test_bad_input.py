"""Tests of bad input: the monitor leaves malformed objects out, and its facts can be read."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.monitor.capacity import node_capacity
from services.monitor.facts import NodeFact, PodFact, node_fact, pod_fact
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.kube.objects import MalformedObject
from tests.monitor.builders import Raw, container, node, ours, pod
from tests.monitor.test_service import api, count, monitor, told
from tests.shared.kube.api_server import ApiServer
from tests.shared.malformed import DEEP, spoilt

__all__ = ["api"]

TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}
NODE = node(taints=[TAINT], unschedulable=False)
POD = pod(
    "p1",
    "n1",
    container(),
    initContainers=[container(restartPolicy="Always")],
    overhead={"cpu": "250m"},
)
POD["metadata"] |= {"labels": {"app.kubernetes.io/managed-by": "weir", "weir.dev/job": "mnist"}}
POD["status"]["containerStatuses"] = [{"name": "main", "allocatedResources": {"cpu": "2"}}]


def fact_of(body: Any, read: Any) -> Any:
    try:
        return read(msgspec.json.encode(body))
    except MalformedObject as error:
        assert str(error)
        return None


@settings(max_examples=300)
@given(raw_node=spoilt(NODE), raw_pods=st.lists(spoilt(POD), max_size=3))
def test_an_incomplete_object_is_malformed_or_gives_a_readable_fact(
    raw_node: Any, raw_pods: Any
) -> None:
    place = fact_of(raw_node, node_fact) or fact_of(node(), node_fact)
    pods = [fact for raw in raw_pods if (fact := fact_of(raw, pod_fact))]

    said = node_capacity(place, pods, "7", 1.0)

    assert isinstance(place, NodeFact) and all(isinstance(fact, PodFact) for fact in pods)
    assert subjects.decode_message(subjects.subject_of(said), subjects.encode_message(said)) == said


@pytest.mark.parametrize(
    "raw", [b"", b"null", b"[]", b"\xff", b'{"metadata":{"name":"n","name', DEEP]
)
def test_a_value_that_is_no_object_is_malformed(raw: bytes) -> None:
    for read in (node_fact, pod_fact):
        with pytest.raises(MalformedObject):
            read(raw)


@pytest.mark.parametrize("name", [None, "", "a b", "N1", "n1.", "*", ">", "n\n", "x" * 254])
def test_a_node_whose_name_is_no_subject_token_is_malformed(name: Any) -> None:
    assert fact_of({**NODE, "metadata": {"name": name, "uid": "u"}}, node_fact) is None


def test_a_negative_amount_is_malformed_and_a_huge_one_is_clamped() -> None:
    assert fact_of(node(cpu="-1"), node_fact) is None
    assert fact_of(node(cpu="1e999"), node_fact).allocatable.milli == ((1 << 63) - 1) * 1000


# ------------------------------------------------------------ the service

ODD: list[Raw] = [
    {"metadata": {"name": "odd", "uid": "uid-odd"}, "spec": 7},
    {"metadata": {"name": "Odd Name", "uid": "uid-name"}, "status": {"allocatable": {"cpu": "1"}}},
    {
        "metadata": {"name": "odd-amount", "uid": "uid-amount"},
        "status": {"allocatable": {"cpu": "many"}},
    },
    {"metadata": {"name": "odd-labels", "uid": "uid-labels", "labels": {"a": 1}}},
]
ODD_PODS: list[Raw] = [
    {
        "metadata": {"name": "odd-requests", "uid": "uid-requests"},
        "spec": {"nodeName": "n1", "containers": [container("much")]},
    },
    {
        "metadata": {"name": "odd-null", "uid": "uid-null"},
        "spec": {"nodeName": "n1", "containers": [None]},
    },
]


async def test_malformed_objects_in_a_list_hide_no_others(
    nats_url: str, person: Bus, api: ApiServer
) -> None:
    for kind, bodies in (("nodes", ODD), ("pods", ODD + ODD_PODS)):
        for body in bodies:
            api.put(kind, deepcopy(body))
    async with monitor(nats_url, api):
        assert (await told(person, "n1", bool)).free.cpu == 7
        assert await count(person) == 2


async def test_malformed_objects_in_a_watch_hide_no_others(
    nats_url: str, person: Bus, api: ApiServer
) -> None:
    async with monitor(nats_url, api):
        await told(person, "n1", bool)
        for kind, bodies in (("nodes", ODD), ("pods", ODD + ODD_PODS)):
            for body in bodies:
                api.put(kind, deepcopy(body))
        api.put("pods", ours())
        await told(person, "n1", lambda c: c.free.cpu == 6)
        assert api.lists["pods"] == 1


async def test_a_malformed_deletion_removes_the_pod(
    nats_url: str, person: Bus, api: ApiServer
) -> None:
    async with monitor(nats_url, api):
        await told(person, "n1", lambda c: c.free.cpu == 7)
        api.pod("a")["spec"] = 7
        api.remove("pods", "a")
        await told(person, "n1", lambda c: c.free.cpu == 8)


async def test_malformed_watch_lines_cause_a_retry(
    nats_url: str, person: Bus, api: ApiServer
) -> None:
    async with monitor(nats_url, api):
        await told(person, "n1", bool)
        for line in (b"{\n", b"[]\n", b'{"type":"ERROR","object":{"code":"x"}}\n', DEEP + b"\n"):
            api.say(line, "pods")
        api.put("pods", ours())
        await told(person, "n1", lambda c: c.free.cpu == 6)


async def test_an_unreadable_earlier_fact_does_not_stop_the_start(
    nats_url: str, person: Bus, api: ApiServer
) -> None:
    for subject in (
        "weir.capacity.changed.n1",
        "weir.capacity.changed.*",
        "weir.capacity.changed.a.b",
    ):
        await person.js.publish(subject, b"\xff")
    async with monitor(nats_url, api):
        assert (await told(person, "n1", bool)).free.cpu == 7
