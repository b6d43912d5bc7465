"""Tests of the launcher with bad input from the bus and from Kubernetes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.launcher import pods, view
from services.launcher.actions import CreatePod, Publish
from services.launcher.facts import (
    NodeFact,
    PodFact,
    ServiceFact,
    node_fact,
    pod_fact,
    service_fact,
)
from services.launcher.pods import read_resources
from services.launcher.reconcile import next_check_s, reconcile
from services.launcher.service import CONSUMED, PUBLISHED
from services.launcher.settings import Settings
from services.launcher.view import View
from shared.bus import subjects
from shared.kube.objects import MalformedObject
from shared.messages import JobMessage, Resources
from tests.launcher.builders import UID, decided, names, plan, sent
from tests.launcher.test_service import Stage, stage
from tests.shared.malformed import Poison, odd_messages, poison, readable, spoilt

__all__ = ["stage"]
Body = dict[str, Any]

STATUS = {
    "phase": "Failed",
    "reason": "Evicted",
    "message": "the node was low on memory",
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "no room",
        },
        {
            "type": "DisruptionTarget",
            "status": "True",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        },
    ],
    "containerStatuses": [
        {
            "name": "tensorflow",
            "state": {
                "waiting": {"reason": "ImagePullBackOff"},
                "terminated": {
                    "exitCode": 137,
                    "reason": "OOMKilled",
                    "finishedAt": "2026-01-01T00:00:00Z",
                },
            },
            "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}},
        }
    ],
}


def a_pod(word: str = "w2") -> Body:
    order = CreatePod(
        decision=decided(1, word), task=plan(word), name=names(word)[0], owner_uid="s"
    )
    made = pods.pod_manifest(order, Settings())
    made["metadata"] |= {
        "uid": f"uid-{word}",
        "resourceVersion": "7",
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }
    return {**made, "status": STATUS}


def a_service() -> Body:
    made = pods.service_manifest(decided(1, "c0"))
    made["metadata"] |= {"uid": "s", "resourceVersion": "7"}
    return made


def a_node() -> Body:
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    return {
        "metadata": {"name": "node-2", "labels": {"zone": "a"}},
        "status": {"conditions": [ready]},
    }


# ------------------------------------------------------------ objects


@given(spoilt(a_pod()), spoilt(a_service()), spoilt(a_node()))
def test_an_incomplete_object_is_a_fact_or_malformed(pod: Any, service: Any, node: Any) -> None:
    for read, kind, body in (
        (pod_fact, PodFact, pod),
        (service_fact, ServiceFact, service),
        (node_fact, NodeFact, node),
    ):
        try:
            assert isinstance(read(sent(body)), kind | None)
        except MalformedObject as error:
            assert str(error)


def test_labels_and_annotations_written_by_users_do_not_hide_a_pod() -> None:
    body = a_pod()
    body["metadata"]["annotations"] = {
        "weir.dev/resources": "{",
        "weir.dev/generation": "first",
        "note": "\0" * 9,
    }
    fact = pod_fact(sent(body))
    assert fact and (fact.generation, fact.created_with) == (0, fact.resources)


@pytest.mark.parametrize("amount", ["many", "1e4000", "-", {}, [1]])
def test_an_invalid_quantity_makes_a_pod_malformed(amount: Any) -> None:
    body = a_pod()
    body["spec"]["containers"][0]["resources"]["requests"]["cpu"] = amount
    with pytest.raises(MalformedObject):
        pod_fact(sent(body))


def test_a_huge_quantity_is_clamped() -> None:
    assert read_resources({"cpu": "1e999", "memory": "9" * 400}) == Resources(
        cpu=2.0**63, memory_gib=2.0**33
    )


def test_a_termination_message_is_cut_to_the_message_bounds() -> None:
    body = a_pod()
    body["status"] = {"phase": "Failed", "message": "x" * 2_000_000}
    fact = pod_fact(sent(body))
    assert fact and len(fact.message) == 4096


def facts_of(bodies: list[Body]) -> list[PodFact]:
    found = []
    for body in bodies:
        try:
            found.append(pod_fact(sent(body)))
        except MalformedObject:
            continue
    return [fact for fact in found if fact]


def seen(said: list[Any], bodies: list[Body]) -> View:
    """Return the view after a decision, these messages and a list with these pods."""
    known = View()
    for at, message in enumerate([decided(1, "c0 p1 w2"), *said]):
        known = view.fold_message(known, message, float(at))
    return view.with_pod_list(known, facts_of([a_pod("c0"), *bodies]))


ABOUT_JOBS = odd_messages().filter(lambda m: isinstance(m, CONSUMED + PUBLISHED))


@settings(max_examples=200, deadline=None)
@given(
    said=st.lists(ABOUT_JOBS, max_size=10),
    bodies=st.lists(spoilt(a_pod()), max_size=3),
    now=st.floats(0, 1e10),
)
def test_any_readable_message_gives_readable_actions(
    said: list[JobMessage], bodies: list[Body], now: float
) -> None:
    known = seen(said, bodies)
    for action in reconcile(known, now, Settings()):
        if isinstance(action, Publish):
            body = subjects.encode_message(action.message)
            assert (
                subjects.decode_message(subjects.subject_of(action.message), body) == action.message
            )
    for uid in known.uids():
        next_check_s(known, now, Settings(), uid)


# ------------------------------------------------------------ the bus


async def buried(stage: Stage) -> int:
    return int((await stage.bus.js.stream_info(subjects.DEAD)).state.messages)


def buries(subject: str) -> bool:
    try:
        return subjects.kind_of(subject) in CONSUMED + PUBLISHED and len(subject.split(".")) > 3
    except subjects.UnreadableMessage:
        return False


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(said=st.lists(poison(), min_size=5, max_size=30))
async def test_the_launcher_dead_letters_unreadable_messages_and_continues(
    stage: Stage, said: list[Poison]
) -> None:
    if stage.launcher is None:
        await stage.begin()
    before = await buried(stage)
    for subject, body in said:
        await stage.bus.js.publish(subject, body)
    unread = [subject for subject, body in said if buries(subject) and not readable(subject, body)]

    async with asyncio.timeout(60):
        while await buried(stage) != before + len(unread):
            await asyncio.sleep(0.01)
    assert stage.launcher
    assert [
        t for t in stage.launcher._tasks if t.done() and not t.cancelled() and t.exception()
    ] == []


async def test_a_decision_after_bad_input_is_executed(stage: Stage) -> None:
    await stage.begin()
    for kind in CONSUMED + PUBLISHED:
        await stage.bus.js.publish(f"weir.{subjects.tag_of(kind)}.default.net", b"\xff")

    await stage.train(decided(1, "c0 p1"), "c0 p1", 1)

    assert await buried(stage) == len(CONSUMED + PUBLISHED)


# ------------------------------------------------------------ Kubernetes


STRANGE: list[Body] = [
    {"metadata": {"name": "a"}, "status": []},
    {"metadata": {"name": "b", "labels": "none", "resourceVersion": 7}},
    {
        "metadata": {"name": "c", "namespace": "default", "labels": {"weir.dev/uid": str(UID)}},
        "spec": 3,
    },
]


@pytest.mark.parametrize("kind", ["nodes", "services", "pods"])
async def test_malformed_objects_in_a_list_are_left_out(stage: Stage, kind: str) -> None:
    for body in json.loads(json.dumps(STRANGE)):
        stage.server.put(kind, body)
    await stage.begin()

    await stage.train(decided(1, "c0 p1"), "c0 p1", 1)


@pytest.mark.parametrize("verb", ["ADDED", "MODIFIED", "DELETED"])
async def test_malformed_objects_in_a_watch_are_left_out(stage: Stage, verb: str) -> None:
    await stage.begin()
    for kind in ("nodes", "services", "pods"):
        for body in json.loads(json.dumps(STRANGE)):
            stage.server.put(kind, body, verb)

    await stage.train(decided(1, "c0 p1"), "c0 p1", 1)


async def test_malformed_api_answers_are_retried(stage: Stage) -> None:
    await stage.begin()
    for line in (
        {},
        {"type": "ERROR", "object": {"code": "x"}},
        {"type": "ADDED", "object": None},
        [],
    ):
        stage.server.say(line)  # type: ignore[arg-type]

    await stage.train(decided(1, "c0 p1"), "c0 p1", 1)
