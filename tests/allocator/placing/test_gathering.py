"""Devices side by side on few nodes."""

from __future__ import annotations

from msgspec.structs import replace

from services.allocator.placing.gathering import gathered, spread
from services.allocator.placing.placement import Room, place
from services.allocator.policies.contract import Node, Size
from shared.messages import Resources, RoleResources, TaskPlan
from tests.allocator.builders import EVEN


def room(*cpus: float) -> Room:
    return Room(Node(f"n{i}", Resources(cpu=c, memory_gib=100)) for i, c in enumerate(cpus))


def standing(*nodes: str) -> list[TaskPlan]:
    return [
        TaskPlan(role="worker", index=n, serial=n + 1, node=on, resources=EVEN.worker)
        for n, on in enumerate(nodes)
    ]


def test_devices_that_must_pause_anyway_are_gathered_on_fewer_nodes():
    """Two of three stand on n0, where there is room for two more; a fourth fits nowhere else beside
    the third.
    """
    keep = standing("n0", "n0", "n1")
    beside = {"n0": frozenset("a"), "n1": frozenset("a")}
    there = [replace(n, hosts=beside.get(n.name, n.hosts)) for n in room(2, 0, 1).nodes.values()]
    alone = RoleResources(chief=Resources(), ps=EVEN.ps, worker=EVEN.worker)
    tasks = gathered(Room(there), "a", keep, Size(0, 4), alone, 9)
    assert tasks and {t.node for t in tasks if t.role == "worker"} == {"n0"}
    stay = place(Room(there), "a", keep, Size(0, 4), alone, 9)
    assert stay and spread(stay) == 2


def test_who_does_not_gain_by_moving_stays():
    keep = standing("n0", "n0")
    tasks = gathered(room(1, 9), "a", keep, Size(0, 2), EVEN, 9)
    assert tasks and [t.serial for t in tasks if t.role == "worker"] == [1, 2]
