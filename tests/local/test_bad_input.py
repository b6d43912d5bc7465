"""Tests of the stand-in with bad input: every answer is valid, and pods still run afterwards."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.local.service import Cluster
from tests.local.builders import container, idle, node, pinned_pod, pod, python
from tests.local.conftest import Kube
from tests.shared.malformed import DEEP, spoilt

PODS = "/api/v1/namespaces/default/pods"
ASKED = container(
    cpu="100m",
    memory="64Mi",
    limit="1",
    env=[
        {"name": "A", "value": "b"},
        {"name": "F", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ],
    volumeMounts=[{"name": "v", "mountPath": "/x"}],
)
POD = pod(
    "odd",
    ASKED,
    labels={"a": "b"},
    meta={"ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "s", "uid": "u"}]},
    affinity=pinned_pod("big"),
    nodeSelector={"kubernetes.io/hostname": "big"},
    tolerations=[{"key": "k", "operator": "Exists"}],
    initContainers=[{**container(), "name": "first"}],
    volumes=[{"name": "v", "emptyDir": {}}],
    overhead={"cpu": "1m"},
    terminationGracePeriodSeconds=1,
)
STATUS = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [
        {"name": "main", "ready": True, "restartCount": 1, "state": {"running": {}}}
    ],
}
CHANGE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [ASKED]}, "status": STATUS}
PLACES = [
    ("PATCH", "held"),
    ("PATCH", "held/status"),
    ("PATCH", "held/resize"),
    ("POST", "held/eviction"),
]


def asked(method: str, path: str, document: Any) -> st.SearchStrategy[tuple[str, str, Any]]:
    return spoilt(document).map(lambda body: (method, path, body))


REQUESTS = st.one_of(
    asked("POST", PODS, POD),
    asked("POST", "/api/v1/nodes", node("oddnode", taints=[{"key": "a", "effect": "NoSchedule"}])),
    *(asked(method, f"{PODS}/{place}", CHANGE) for method, place in PLACES),
)


class Asker:
    def __init__(self, kube: Kube, http: aiohttp.ClientSession) -> None:
        self.kube, self.http, self.codes = kube, http, Counter[int]()

    async def ask(self, method: str, path: str, body: Any) -> None:
        """Send a request. The answer must be a success or a Status with the reason."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
        async with self.http.request(
            method, path, data=data, headers={"Content-Type": kind}
        ) as answer:
            said = await answer.json()
        self.codes[answer.status] += 1
        assert answer.status < 300 or (said["kind"], said["code"]) == ("Status", answer.status)
        assert answer.status < 500


@pytest.fixture
async def asker(cluster: Cluster, kube: Kube) -> AsyncIterator[Asker]:
    await kube.create(idle("held"))
    async with aiohttp.ClientSession(cluster.url) as http:
        yield Asker(kube, http)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(requests=st.lists(REQUESTS, min_size=1, max_size=12))
async def test_every_request_is_answered_and_a_pod_still_runs_afterwards(
    asker: Asker, requests: list[Any]
) -> None:
    for request in requests:
        await asker.ask(*request)

    others = "metadata.name!=held"
    await asker.kube.v1.delete_collection_namespaced_pod(
        "default", field_selector=others, grace_period_seconds=0
    )
    good = pod(
        "", python("pass"), meta={"generateName": "good-"}, affinity=pinned_pod("big")
    )  # no kubelet runs the pods of `oddnode`
    made = await asker.kube.create(good)
    await asker.kube.until_phase(made["metadata"]["name"], "Succeeded")


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"3", b"\xff", DEEP])
@pytest.mark.parametrize(
    "path", [PODS, f"{PODS}/held", f"{PODS}/held/status", f"{PODS}/held/eviction"]
)
async def test_a_body_that_is_no_object_is_refused(asker: Asker, path: str, body: bytes) -> None:
    for method in ("POST", "PUT", "PATCH"):
        await asker.ask(method, path, body)
    assert min(asker.codes) >= 400
