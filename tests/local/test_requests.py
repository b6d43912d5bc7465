"""What a pod asks for."""

from __future__ import annotations

from services.local.objects.requests import pod_limit, pod_requests, quality_of
from tests.local.builders import container, pod


def test_a_pod_asks_for_its_containers_or_its_largest_init_container_and_overhead():
    body = pod(
        "p",
        container(cpu="1", memory="1Gi"),
        {**container(cpu="500m"), "name": "b"},
        overhead={"cpu": "100m"},
        initContainers=[container(cpu="3")],
    )
    assert pod_requests(body) == {"cpu": 3100, "memory": 2**30, "pods": 1}


def test_a_sidecar_counts_beside_what_comes_after_it():
    sidecar = {**container(cpu="1"), "restartPolicy": "Always"}
    assert (
        pod_requests(pod("p", container(cpu="1"), initContainers=[sidecar, container(cpu="4")]))[
            "cpu"
        ]
        == 5000
    )
    assert (
        pod_requests(pod("p", container(cpu="6"), initContainers=[sidecar, container(cpu="4")]))[
            "cpu"
        ]
        == 7000
    )


def test_a_pod_is_limited_only_if_each_container_is():
    assert pod_limit(pod("p", container(limit="1"), container(limit="500m")), "cpu") == 1500
    assert pod_limit(pod("p", container(limit="1"), container()), "cpu") is None


def test_quality_of_service_follows_requests_and_limits():
    both = {"cpu": "1", "memory": "1Gi"}
    assert quality_of(pod("p")) == "BestEffort"
    assert quality_of(pod("p", container(cpu="1"))) == "Burstable"
    assert (
        quality_of(pod("p", {**container(), "resources": {"requests": both, "limits": both}}))
        == "Guaranteed"
    )
