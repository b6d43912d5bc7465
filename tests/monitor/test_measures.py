"""The cluster in numbers."""

from __future__ import annotations

from msgspec.structs import replace

from services.monitor.measures import capacity
from shared.messages import CapacityChanged, OwnPod, Resources
from shared.runtime.metrics import exposed
from tests.allocator.builders import node
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
        for measure in capacity(nodes)
        for labels, number in measure.series.items()
        if isinstance(number, int | float)
    }


def test_what_nodes_have_is_added_up_in_base_units() -> None:
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


def test_an_empty_cluster_is_told_as_such() -> None:
    assert set(told().values()) == {0}


def test_a_thousand_nodes_make_no_more_series_than_one() -> None:
    many = exposed(capacity([node(f"n{number}") for number in range(1000)]))

    assert problems(many) == []
    assert len(many.splitlines()) == len(exposed(capacity([node()])).splitlines())
