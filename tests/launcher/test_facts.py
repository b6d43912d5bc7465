"""Tests of reading pods, nodes and quantities as real servers write them.

Only some cordons and taints are a reason for pods to leave a node.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.launcher.facts import (
    NodeEviction,
    node_eviction,
    node_fact,
    pod_fact,
    service_fact,
    unix_seconds,
)
from services.launcher.pods import is_same_size, read_resources, to_quantities
from shared.messages import CORDONED, TAINTED, Resources, Taint
from tests.launcher.builders import sent

TAGS = {"weir.dev/job": "net", "weir.dev/uid": "7", "weir.dev/role": "ps", "weir.dev/serial": "1"}


def pod(status: dict[str, Any], **meta: Any) -> Any:
    about = {"name": "net-ps-1", "namespace": "default", "uid": "u", "labels": TAGS, **meta}
    spec = {"containers": [{"name": "tensorflow"}]}
    return pod_fact(sent({"metadata": about, "spec": spec, "status": status}))


def ended(reason: str, code: int) -> dict[str, Any]:
    return {"containerStatuses": [{"state": {"terminated": {"reason": reason, "exitCode": code}}}]}


@pytest.mark.parametrize(
    ("status", "meta", "says"),
    [
        ({"phase": "Failed", **ended("OOMKilled", 137)}, {}, (137, "OOMKilled")),
        ({"phase": "Failed", **ended("Error", 1)}, {}, (1, "Error")),
        ({"phase": "Succeeded", **ended("Completed", 0)}, {}, (0, "Completed")),
        ({"phase": "Failed", "reason": "Evicted"}, {}, (None, "Evicted")),
        ({"phase": "Failed", "reason": "OutOfcpu"}, {}, (None, "OutOfcpu")),
        (
            {"phase": "Failed", **ended("Error", 143)},
            {"deletionTimestamp": "2026-01-01T00:00:00Z"},
            (143, "Deleted"),
        ),
        (
            {
                "phase": "Failed",
                **ended("Error", 143),
                "conditions": [{"type": "DisruptionTarget", "status": "True"}],
            },
            {"deletionTimestamp": "2026-01-01T00:00:00Z"},
            (143, "Evicted"),
        ),
        ({"phase": "Failed"}, {}, (None, "Error")),
    ],
)
def test_the_exit_reason_of_a_pod(
    status: dict[str, Any], meta: dict[str, Any], says: tuple[int | None, str]
) -> None:
    fact = pod(status, **meta)
    assert (fact.exit_code, fact.reason) == says


def test_the_exit_time_of_a_pod() -> None:
    over = {"state": {"terminated": {"exitCode": 137, "finishedAt": "1970-01-01T00:01:00Z"}}}
    assert pod({"phase": "Failed", "containerStatuses": [over]}).ended_s == 60.0


def test_the_time_since_a_pod_is_unschedulable() -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "no room",
    }
    fact = pod(
        {
            "phase": "Pending",
            "conditions": [{**condition, "lastTransitionTime": "1970-01-01T00:01:00Z"}],
        }
    )
    assert (fact.unschedulable, fact.unschedulable_since_s) == ("no room", 60.0)


def test_the_deadline_and_the_cause_of_a_leaving_pod() -> None:
    moved = {"type": "DisruptionTarget", "status": "True", "message": "Eviction API: evicting"}
    fact = pod(
        {"phase": "Running", "conditions": [moved]}, deletionTimestamp="1970-01-01T00:01:00Z"
    )
    assert (fact.terminating, fact.killed_s, fact.reason, fact.message) == (
        True,
        60.0,
        "Evicted",
        moved["message"],
    )
    assert pod({"phase": "Running"}, deletionTimestamp="1970-01-01T00:01:00Z").reason == "Deleted"
    assert (pod({"phase": "Running"}).killed_s, pod({"phase": "Running"}).reason) == (0.0, "")


def test_the_waiting_reason_of_a_container() -> None:
    assert (
        pod({"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}).waiting
        == "ImagePullBackOff"
    )


def test_the_actual_resources_of_a_pod() -> None:
    given_now = {"containerStatuses": [{"resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}]}
    assert pod(given_now).allocated == Resources(cpu=2, memory_gib=1)


@pytest.mark.parametrize(
    "tags", [{}, {**TAGS, "weir.dev/uid": "x"}, {**TAGS, "weir.dev/role": "evaluator"}]
)
def test_a_pod_without_our_labels_is_ignored(tags: dict[str, str]) -> None:
    assert pod({}, labels=tags) is None


def test_services_and_nodes_are_read() -> None:
    found = service_fact(
        sent({"metadata": {"name": "net", "namespace": "default", "uid": "s", "labels": TAGS}})
    )
    assert found and found.job_uid == 7
    assert (
        service_fact(sent({"metadata": {"name": "other", "namespace": "default", "uid": "s"}}))
        is None
    )
    ready = {"type": "Ready", "status": "Unknown", "lastTransitionTime": "1970-01-01T00:01:00Z"}
    node = node_fact(sent({"metadata": {"name": "n"}, "status": {"conditions": [ready]}}))
    assert (node.ready, node.since_s) == (False, 60.0)


def test_a_missing_timestamp_is_zero() -> None:
    assert unix_seconds(None) == 0.0


@given(st.floats(0.001, 512), st.floats(0.001, 4096), st.integers(0, 16))
def test_quantities_round_trip(cpu: float, memory: float, gpu: int) -> None:
    asked = Resources(cpu=cpu, memory_gib=memory, gpu=gpu)
    assert is_same_size(read_resources(to_quantities(asked)), asked)


@pytest.mark.parametrize(
    ("key", "effect", "notice_s"),
    [
        ("ToBeDeletedByClusterAutoscaler", "NoSchedule", 0.0),
        ("aws-node-termination-handler/spot-itn", "NoSchedule", 120.0),
        ("cloud.google.com/impending-node-termination", "NoSchedule", 30.0),
        ("maintenance", "NoExecute", 0.0),
    ],
)
def test_an_evicting_taint_is_a_reason_to_leave_a_node(
    key: str, effect: str, notice_s: float
) -> None:
    assert node_eviction(False, [Taint(key=key, effect=effect)]) == NodeEviction(
        TAINTED, f"{key}:{effect}", notice_s
    )


@pytest.mark.parametrize(
    ("key", "effect"),
    [
        ("node.kubernetes.io/unreachable", "NoExecute"),  # judged by readiness
        ("nvidia.com/gpu", "NoExecute"),  # tolerated
        (
            "kubernetes.azure.com/scalesetpriority",
            "NoSchedule",
        ),  # a spot node has it for as long as it lives
        ("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule"),  # it may go one day
        ("dedicated", "NoSchedule"),
    ],
)
def test_other_taints_are_no_reason_to_leave(key: str, effect: str) -> None:
    assert node_eviction(False, [Taint(key=key, effect=effect)]) is None


def test_an_evicting_taint_precedes_a_cordon() -> None:
    assert node_eviction(True, []) == NodeEviction(CORDONED)
    keys = ("karpenter.sh/disrupted", "aws-node-termination-handler/spot-itn")
    assert node_eviction(True, [Taint(key=key) for key in keys]) == NodeEviction(
        TAINTED, f"{keys[1]}:NoSchedule", 120.0
    )


def test_a_node_is_read_with_its_cordon_and_its_taints() -> None:
    cordon = {
        "unschedulable": True,
        "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}],
    }
    assert node_fact(sent({"metadata": {"name": "n"}, "spec": cordon})).eviction_reason == CORDONED
    taint = {
        "key": "aws-node-termination-handler/spot-itn",
        "effect": "NoSchedule",
        "timeAdded": None,
    }
    node = node_fact(sent({"metadata": {"name": "n"}, "spec": {"taints": [taint]}}))
    assert (node.eviction_reason, node.notice_s, node.ready) == (TAINTED, 120.0, True)
