"""Tests of the scheduler: the node that it chooses, and why it chooses none."""

from __future__ import annotations

from services.local.scheduler import choose_node, node_info, pod_requirements
from tests.local.builders import container, node, pinned_pod, pod


def where(body, *nodes, used=None):
    return choose_node(
        pod_requirements(body),
        [node_info(n, (used or {}).get(n["metadata"]["name"], {})) for n in nodes],
    )


def asking(cpu="1", **spec):
    return pod("p", container(cpu=cpu), **spec)


def test_the_emptiest_node_is_chosen_and_ties_are_broken_by_name():
    assert where(asking(), node("b"), node("a")).node == "a"
    assert where(asking(), node("b"), node("a"), used={"a": {"cpu": 1000}}).node == "b"


def test_requests_of_other_pods_are_not_free():
    choice = where(asking("2"), node("a", cpu="2"), used={"a": {"cpu": 1, "pods": 1}})
    assert choice.why_not == "0/1 nodes are available: 1 Insufficient cpu."


def test_every_insufficient_resource_is_named():
    body = pod("p", {**container(), "resources": {"requests": {"cpu": "9", "nvidia.com/gpu": "1"}}})
    assert where(body, node("a")).why_not == (
        "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient nvidia.com/gpu."
    )
    assert (
        where(asking(), node("a", pods="0")).why_not == "0/1 nodes are available: 1 Too many pods."
    )


def test_a_pod_is_pinned_to_a_node_by_a_field_term():
    assert where(asking(affinity=pinned_pod("b")), node("a"), node("b")).node == "b"
    assert (
        where(asking(affinity=pinned_pod("a", operator="NotIn")), node("a"), node("b")).node == "b"
    )
    mismatch = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    assert where(asking(affinity=pinned_pod("c")), node("a")).why_not == mismatch
    assert (
        where(asking(nodeSelector={"kubernetes.io/hostname": "b"}), node("a"), node("b")).node
        == "b"
    )


def test_a_cordoned_node_takes_no_pod():
    assert "1 node(s) were unschedulable" in where(asking(), node("a", unschedulable=True)).why_not


def test_an_untolerated_taint_excludes_a_node():
    tainted = node("a", taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
    assert "untolerated taint(s) {gpu: yes}" in where(asking(), tainted).why_not
    for toleration in (
        {"key": "gpu", "value": "yes"},
        {"key": "gpu", "operator": "Exists"},
        {"operator": "Exists"},
    ):
        assert where(asking(tolerations=[toleration]), tainted).node == "a"
    assert where(asking(tolerations=[{"key": "gpu", "value": "no"}]), tainted).node == ""
    assert (
        where(asking(), node("a", taints=[{"key": "x", "effect": "PreferNoSchedule"}])).node == "a"
    )


def test_a_not_ready_node_counts_as_tainted():
    assert "node.kubernetes.io/not-ready" in where(asking(), node("a", ready="False")).why_not
    assert "node.kubernetes.io/unreachable" in where(asking(), node("a", ready="Unknown")).why_not


def test_a_preference_outweighs_emptiness():
    liked = {
        "weight": 100,
        "preference": {
            "matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}
            ]
        },
    }
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [liked]}}
    assert (
        where(asking(affinity=affinity), node("a"), node("b"), used={"b": {"cpu": 2000}}).node
        == "b"
    )


def test_without_nodes_a_pod_is_unschedulable():
    assert where(asking()).why_not == "no nodes available to schedule pods"


def test_identical_pods_have_the_same_requirements_key():
    assert (
        pod_requirements(asking()).likeness()
        == pod_requirements(asking()).likeness()
        != pod_requirements(asking("2")).likeness()
    )
