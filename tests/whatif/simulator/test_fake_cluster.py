"""Tests of the facts that the monitor would publish about simulated machines."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from services.whatif.simulator.fake_cluster import (
    Amount,
    Overcommitted,
    RecordedCluster,
    SimulatedCluster,
)
from services.whatif.simulator.scenario import Machine
from shared.messages import CapacityChanged, OwnPod, Resources, Taint


def pod(name: str = "one-worker-1", cpu: float = 2.0) -> OwnPod:
    return OwnPod(namespace="default", job="one", pod=name, resources=Resources(cpu=cpu))


def machines(*cpu: float) -> SimulatedCluster:
    made = SimulatedCluster(
        {f"n{number}": Resources(cpu=each, gpu=1) for number, each in enumerate(cpu, start=1)}
    )
    list(made.capacity_facts(0.0))
    return made


def test_capacity_facts_are_published_once_and_then_on_change() -> None:
    made = SimulatedCluster({"n1": Resources(cpu=4), "n2": Resources(cpu=2)})
    assert [(fact.node, fact.free.cpu) for fact in made.capacity_facts(0.0)] == [
        ("n1", 4),
        ("n2", 2),
    ]
    assert list(made.capacity_facts(1.0)) == []
    made.put_pod("n2", pod(cpu=1.5))
    (fact,) = made.capacity_facts(2.0)
    assert (fact.node, fact.free.cpu, fact.own) == ("n2", 0.5, (pod(cpu=1.5),))
    made.put_pod("n2", pod(cpu=1.5))
    assert list(made.capacity_facts(3.0)) == []


def test_two_facts_of_one_node_have_different_ids() -> None:
    made = machines(4)
    made.put_pod("n1", pod())
    (first,) = made.capacity_facts(1.0)
    made.remove_pod("n1", "default", "one-worker-1")
    (second,) = made.capacity_facts(2.0)
    assert first.id() != second.id() and second.free.cpu == 4


def test_overcommitment_is_an_error() -> None:
    made = machines(4)
    made.put_pod("n1", pod("a", 3))
    made.put_pod("n1", pod("b", 2))
    with pytest.raises(Overcommitted, match="n1 is overcommitted"):
        list(made.capacity_facts(1.0))


def test_a_grow_may_be_applied_before_the_shrink_it_needs() -> None:
    made = machines(4)
    made.put_pod("n1", pod("a", 3))
    made.put_pod("n1", pod("b", 3))
    made.put_pod("n1", pod("a", 1))
    (fact,) = made.capacity_facts(1.0)
    assert fact.free.cpu == 0


def test_a_tenant_displaces_the_newest_pods() -> None:
    made = machines(6)
    for name in ("a", "b", "c"):
        made.put_pod("n1", pod(name))
    assert [gone.pod for gone in made.change_tenant("n1", 3.0)] == ["c", "b"]
    (fact,) = made.capacity_facts(1.0)
    assert fact.free.cpu == 1.0 and fact.allocatable.cpu == 6.0
    assert made.change_tenant("n1", -3.0) == [] and made.free_resources("n1").cpu == 4.0


def test_held_and_offered_amounts() -> None:
    made = machines(4, 2)
    made.put_pod(
        "n1", OwnPod(namespace="default", job="one", pod="a", resources=Resources(cpu=1, gpu=1))
    )
    made.change_tenant("n2", 1.5)
    assert made.held_amount() == Amount(1.0, 1) and made.offered_amount() == Amount(4.5, 2)


def test_tenants_above_a_nodes_capacity_share_it() -> None:
    made = machines(4)
    made.change_tenant("n1", 3.0)
    made.change_tenant("n1", 3.0)
    (fact,) = made.capacity_facts(1.0)
    assert fact.free.cpu == 0.0 and made.offered_amount().cpu == 0.0
    made.change_tenant("n1", -3.0)
    assert made.free_resources("n1").cpu == 1.0


def test_nodes_have_the_labels_and_taints_of_their_machines() -> None:
    taint = Taint(key="team", value="a")
    marked = Machine(name="n1", cpu=4, labels={"pool": "a"}, taints=(taint,))
    made = SimulatedCluster({"n1": Resources(cpu=4)}, {"n1": marked})

    (fact,) = made.capacity_facts(0.0)
    assert (fact.labels, fact.taints) == ({"pool": "a"}, (taint,))


def test_a_recorded_node_has_its_labels_and_the_taints_that_it_always_had() -> None:
    stays, comes = Taint(key="team", value="a"), Taint(key="ToBeDeletedByClusterAutoscaler")
    first = CapacityChanged(
        node="n1",
        node_uid="n1",
        seen="1",
        allocatable=Resources(cpu=4),
        free=Resources(cpu=4),
        labels={"pool": "a"},
        taints=(stays,),
    )
    recorded = RecordedCluster()
    recorded.observe(first, 0.0)
    recorded.observe(replace(first, taints=(stays, comes)), 1.0)

    (machine,) = recorded.cluster().nodes
    assert (machine.labels, machine.taints) == ({"pool": "a"}, (stays,))
