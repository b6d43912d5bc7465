"""Tests of the capacity that a node has left, and of the cluster's metrics."""

from __future__ import annotations

from msgspec.structs import replace

from services.monitor.capacity import ClusterPicture, capacity_measures, is_unchanged, node_capacity
from services.monitor.facts import Amount, read_amount
from shared.messages import CapacityChanged, OwnPod, Resources
from shared.runtime.http_server import format_metrics
from tests.allocator.builders import node
from tests.monitor.builders import container, node_fact, ours, pod, pod_fact
from tests.monitor.builders import node as node_object
from tests.shared.metric_lint import problems

OURS = OwnPod(
    namespace="default",
    job="mnist",
    pod="mnist-ps-1",
    resources=Resources(cpu=2, memory_gib=0.5, gpu=1),
)


def told(*nodes: CapacityChanged) -> dict[str, float]:
    return {
        f"{measure.family.name.removeprefix('weir_capacity_')} {labels[0]}": number
        for measure in capacity_measures(nodes)
        for labels, number in measure.series.items()
        if isinstance(number, int | float)
    }


def test_node_capacity_is_summed_in_base_units() -> None:
    found = told(node("n1", cpu=8, free=5, own=(OURS,)), node("n2", cpu=4, free=4))

    assert (found["cpu_cores allocatable"], found["cpu_cores free"], found["cpu_cores ours"]) == (
        12,
        9,
        2,
    )
    assert (found["memory_bytes allocatable"], found["memory_bytes ours"]) == (128 << 30, 1 << 29)
    assert (found["devices allocatable"], found["devices ours"]) == (0, 1)


def test_a_node_is_in_one_state() -> None:
    cordoned, gone = node("n2", schedulable=False), node("n3", gone=True)
    unready = replace(node("n4", schedulable=False), ready=False)
    found = told(node("n1"), cordoned, gone, unready)

    assert [found[f"nodes {state}"] for state in ("ready", "cordoned", "unready")] == [1, 1, 1]
    assert found["cpu_cores allocatable"] == 24


def test_an_empty_cluster_exports_zeros() -> None:
    assert set(told().values()) == {0}


def test_the_number_of_series_is_independent_of_the_number_of_nodes() -> None:
    many = format_metrics(capacity_measures([node(f"n{number}") for number in range(1000)]))

    assert problems(many) == []
    assert len(many.splitlines()) == len(format_metrics(capacity_measures([node()])).splitlines())


def capacity_of(raw_node, *pods, revision="1"):
    return node_capacity(node_fact(raw_node), [pod_fact(p) for p in pods], revision, 0.0)


def test_free_capacity_is_allocatable_minus_pod_requests():
    told = capacity_of(
        node_object(),
        pod("a"),
        ours(),
        pod("b", "n1", container("250m", "512Mi"), container("250m", "512Mi")),
    )
    assert told.allocatable == Resources(cpu=8, memory_gib=16)
    assert told.free == Resources(cpu=5.5, memory_gib=13)
    assert [(o.namespace, o.job, o.pod) for o in told.own] == [
        ("default", "mnist", "mnist-worker-2")
    ]
    assert told.labels == {"zone": "a"}


def test_ended_pods_do_not_count_and_terminating_ones_do():
    leaving = ours()
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    told = capacity_of(
        node_object(), pod("a", phase="Succeeded"), pod("b", phase="Failed"), leaving
    )
    assert told.free.cpu == 7 and told.own[0].terminating


def test_free_capacity_is_never_negative():
    assert capacity_of(node_object(cpu="1"), pod("a", "n1", container("3"))).free.cpu == 0


def test_a_node_above_the_message_bounds_is_clamped():
    assert capacity_of(node_object(cpu="1000001", memory="1Ei")).allocatable == Resources(
        cpu=1e6, memory_gib=1e6
    )


def test_init_containers_sidecars_and_overhead_count_as_the_scheduler_counts():
    sidecar = container("1", "0", restartPolicy="Always")
    inits = [container("2", "0"), sidecar, container("4", "0")]
    made = pod("a", "n1", container("3", "0"), initContainers=inits, overhead={"cpu": "250m"})
    assert pod_fact(made).requests == Amount(5250)
    made = pod("a", "n1", container("6", "0"), initContainers=inits)
    assert pod_fact(made).requests == Amount(7000)


def test_pod_level_requests_replace_those_of_containers():
    bare = {"name": "main"}
    made = pod(
        "a",
        "n1",
        bare,
        resources={"requests": {"cpu": "3", "memory": "2Gi"}},
        overhead={"cpu": "250m"},
    )
    assert pod_fact(made).requests == Amount(3250, 2 << 30)
    assert capacity_of(node_object(), made).free == Resources(cpu=4.75, memory_gib=14)
    devices = {
        "name": "main",
        "resources": {"requests": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "2"}},
    }
    made = pod("a", "n1", devices, container("1", "1Gi"), resources={"requests": {"cpu": "5"}})
    assert pod_fact(made).requests == Amount(5000, 2 << 30, 2)
    made = pod("a", "n1", container("1", "1Gi"), resources={"requests": {}, "limits": {"cpu": "5"}})
    assert pod_fact(made).requests == Amount(1000, 1 << 30)


def test_a_pod_during_a_shrink_counts_its_old_requests():
    made = pod("a", "n1", container("1", "0"), resources={"requests": {"cpu": "2"}})
    made["status"]["allocatedResources"] = {"cpu": "4", "memory": "1Gi"}
    assert pod_fact(made).requests == Amount(4000)


def test_a_container_during_a_shrink_counts_its_old_requests():
    made = pod("a", "n1", container("1", "0"))
    made["status"]["containerStatuses"] = [{"name": "main", "allocatedResources": {"cpu": "2"}}]
    assert pod_fact(made).requests == Amount(2000)


def test_a_fact_has_readiness_cordon_and_taints():
    tainted = node_object(
        ready="Unknown", unschedulable=True, taints=[{"key": "k", "effect": "NoExecute"}]
    )
    told = capacity_of(tainted)
    assert (told.ready, told.schedulable, told.taints[0].effect) == (False, False, "NoExecute")


def test_a_repeated_earlier_capacity_is_a_fact_with_another_id():
    one, other = capacity_of(node_object(), revision="5"), capacity_of(node_object(), revision="9")
    assert is_unchanged(one, other) and one.id() != other.id()
    assert one.id() == capacity_of(node_object(), revision="5").id()


# ---------------------------------------------------------------- picture of the cluster


def looking(*said):
    picture = ClusterPicture(said)
    picture.replace_nodes([node_fact(node_object("n1")), node_fact(node_object("n2"))], "1")
    return picture


def test_a_pod_event_recomputes_one_node_and_publishes_only_changes():
    picture = looking()
    assert len(picture.take_changes(["n1", "n2"], 0.0)) == 2
    assert picture.update_pod(pod_fact(), "2") == {"n1"}
    (told,) = picture.take_changes(["n1"], 0.0)
    assert told.free.cpu == 7
    assert picture.take_changes(picture.update_pod(pod_fact(), "3"), 0.0) == []
    assert picture.take_changes(picture.remove_pod(pod_fact(), "4"), 0.0)[0].free.cpu == 8


def test_an_ended_pod_frees_its_node_and_an_unbound_pod_uses_none():
    picture = looking()
    assert picture.update_pod(pod_fact(pod(node="")), "2") == set()
    picture.update_pod(pod_fact(), "3")
    assert picture.update_pod(pod_fact(pod(phase="Succeeded")), "4") == {"n1"}
    assert picture.update_pod(pod_fact(pod(phase="Succeeded")), "5") == set()


def test_a_new_list_removes_missing_objects():
    picture = looking()
    picture.replace_pods([pod_fact(pod("a")), pod_fact(pod("b", "n2"))], "2")
    picture.take_changes(["n1", "n2"], 0.0)
    told = picture.take_changes(picture.replace_pods([pod_fact(pod("a"))], "9"), 0.0)
    assert [(t.node, t.free.cpu) for t in told] == [("n2", 8)]
    (gone,) = picture.take_changes(picture.replace_nodes([node_fact(node_object("n1"))], "10"), 0.0)
    assert gone.node == "n2" and gone.gone and not gone.ready


def test_a_node_deleted_between_two_lists_is_published_once():
    before = looking()
    said = before.take_changes(["n1", "n2"], 0.0)
    picture = ClusterPicture(said)
    told = picture.take_changes(picture.replace_nodes([node_fact(node_object("n1"))], "7"), 0.0)
    assert [(t.node, t.gone) for t in told] == [("n2", True)]
    again = ClusterPicture([said[0], *told])
    assert again.take_changes(again.replace_nodes([node_fact(node_object("n1"))], "8"), 0.0) == []


def test_amounts_are_rounded_up_and_absent_ones_are_zero():
    assert read_amount({"cpu": "100u", "memory": "1.5", "nvidia.com/gpu": "2"}) == Amount(1, 2, 2)
    assert read_amount(None) == read_amount({"ephemeral-storage": "1Gi"}) == Amount()
