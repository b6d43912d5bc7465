"""Tests of placement: which task goes to which node, and devices on few nodes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.allocator.placement.placers import (
    has_room,
    ladder,
    place,
    place_colocated,
    place_most,
    worker_node_count,
)
from services.allocator.placement.room import Room
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


def test_devices_are_gathered_on_fewer_nodes_during_a_resize():
    """Two of three workers are on n0, which has room for two more; n1 has no room for a fourth."""
    keep = standing("n0", "n0", "n1")
    beside = {"n0": frozenset("a"), "n1": frozenset("a")}
    there = [replace(n, hosts=beside.get(n.name, n.hosts)) for n in room(2, 0, 1).nodes.values()]
    alone = RoleResources(chief=Resources(), ps=EVEN.ps, worker=EVEN.worker)
    tasks = place_colocated(Room(there), "a", keep, Size(0, 4), alone, 9)
    assert tasks and {t.node for t in tasks if t.role == "worker"} == {"n0"}
    stay = place(Room(there), "a", keep, Size(0, 4), alone, 9)
    assert stay and worker_node_count(stay) == 2


def test_tasks_that_do_not_gain_from_moving_stay():
    keep = standing("n0", "n0")
    tasks = place_colocated(room(1, 9), "a", keep, Size(0, 2), EVEN, 9)
    assert tasks and [t.serial for t in tasks if t.role == "worker"] == [1, 2]


CPUS = st.lists(st.integers(0, 6), min_size=1, max_size=5)
SIZES = st.builds(Size, st.integers(1, 5), st.integers(1, 8))


def standing_test_placement(*where: tuple[str, int, int, str]) -> list[TaskPlan]:
    return [TaskPlan(role=r, index=i, serial=s, node=n, resources=EVEN.ps) for r, i, s, n in where]  # type: ignore[arg-type]


@settings(max_examples=80, deadline=None)
@given(CPUS, SIZES, SIZES)
def test_no_node_is_overcommitted_and_surviving_tasks_stay(cpus, first, second):
    free = room(*cpus)
    keep = place(free, "a", (), first, EVEN, 0)
    if keep is None:
        assert {n.name: n.free.cpu for n in free.nodes.values()} == {
            f"n{i}": c for i, c in enumerate(cpus)
        }
        return
    tasks = place(free, "a", keep, second, EVEN, len(keep)) or keep
    for i, cpu in enumerate(cpus):
        used = {t.serial: t.node for t in (*keep, *tasks)}
        assert sum(n == f"n{i}" for n in used.values()) + free.nodes[f"n{i}"].free.cpu == cpu
    where = {t.serial: t.node for t in keep}
    assert all(where.get(t.serial, t.node) == t.node for t in tasks)
    for role in ("chief", "ps", "worker"):
        mine = [t.index for t in tasks if t.role == role]
        assert mine == list(range(len(mine)))
    assert len({t.serial for t in tasks}) == len(tasks)


@settings(max_examples=100, deadline=None)
@given(CPUS, SIZES, SIZES, st.data())
def test_fits_agrees_with_placement_and_changes_nothing(cpus, first, second, data):
    free = room(*cpus)
    stood = place(free, "a", (), first, EVEN, 0) or ()
    keep = [task for task in stood if data.draw(st.booleans())]
    before = dict(free.nodes)
    found = has_room(free, "a", keep, second, EVEN)
    assert free.nodes == before
    assert found == (place(free, "a", keep, second, EVEN, len(stood)) is not None)


@settings(max_examples=60, deadline=None)
@given(CPUS, SIZES)
def test_the_largest_fitting_size_is_within_bounds_and_maximal(cpus, most):
    tasks = place_most(room(*cpus), "a", (), most, Size(1, 1), EVEN, 0)
    if tasks is None:
        assert sum(cpus) < 3
        return
    steps = ladder(most, Size(1, 1))
    at = steps.index(
        Size(sum(t.role == "ps" for t in tasks), sum(t.role == "worker" for t in tasks))
    )
    assert at == 0 or place(room(*cpus), "a", (), steps[at - 1], EVEN, 0) is None


@settings(max_examples=60, deadline=None)
@given(CPUS, st.lists(SIZES, min_size=1, max_size=6))
def test_earlier_refusals_do_not_change_a_placement(cpus, sizes):
    used = room(*cpus)
    before = []
    for n, most in enumerate(sizes):
        fresh = room(*cpus)
        for job, tasks in before:
            place(
                fresh,
                job,
                (),
                Size(*[sum(t.role == role for t in tasks) for role in ("ps", "worker")]),
                EVEN,
                0,
            )
        mark = used.mark()
        tried = place_most(used, "tried", (), most, Size(1, 1), EVEN, 0)
        used.undo(mark)
        found = place_most(used, f"job-{n}", (), most, Size(1, 1), EVEN, 0)
        assert found == tried == place_most(fresh, f"job-{n}", (), most, Size(1, 1), EVEN, 0)
        before += [(f"job-{n}", found)] if found else []


def test_a_refused_placement_fits_after_capacity_is_returned():
    free = room(4)
    mark = free.mark()
    assert place(free, "a", (), Size(1, 2), EVEN, 0)
    assert place_most(free, "b", (), Size(1, 1), Size(1, 1), EVEN, 0) is None
    free.undo(mark)
    assert place_most(free, "b", (), Size(1, 1), Size(1, 1), EVEN, 0)


def test_a_job_goes_to_the_smallest_node_that_fits_all_tasks():
    tasks = place(room(9, 4, 3), "a", (), Size(1, 2), EVEN, 0)
    assert tasks and [t.node for t in tasks] == ["n1"] * 4


def test_a_job_larger_than_a_node_uses_few_nodes():
    tasks = place(room(1, 1, 4, 1, 1, 3), "a", (), Size(1, 5), EVEN, 0)
    assert tasks and [t.node for t in tasks] == ["n5", "n5", *["n2"] * 4, "n5"]


def test_new_tasks_are_placed_beside_existing_ones():
    keep = standing_test_placement(
        ("chief", 0, 0, "n0"), ("ps", 0, 1, "n0"), ("worker", 0, 2, "n0")
    )
    there = Room(
        replace(n, hosts=frozenset("a" if n.name == "n0" else ""))
        for n in room(1, 2, 9).nodes.values()
    )
    tasks = place(there, "a", keep, Size(1, 4), EVEN, 9)
    assert tasks and [t.node for t in tasks if t.role == "worker"] == ["n0", "n0", "n1", "n1"]


def test_the_newest_tasks_are_removed_first_and_gaps_filled_by_the_highest_index():
    keep = standing_test_placement(
        ("chief", 0, 0, "n0"), ("ps", 0, 1, "n0"), ("worker", 0, 2, "n0"), ("worker", 2, 3, "n0")
    )
    tasks = place(room(0), "a", keep, Size(1, 2), EVEN, 9)
    assert tasks and [(t.index, t.serial) for t in tasks if t.role == "worker"] == [(0, 2), (1, 3)]
    tasks = place(room(0), "a", keep, Size(1, 1), EVEN, 9)
    assert tasks and [(t.index, t.serial) for t in tasks if t.role == "worker"] == [(0, 2)]


def test_memory_and_devices_count_like_cpu():
    wants = RoleResources(chief=EVEN.chief, ps=EVEN.ps, worker=Resources(cpu=1, memory_gib=200))
    assert place(room(9), "a", (), Size(1, 1), wants, 0) is None
    wants = RoleResources(chief=EVEN.chief, ps=EVEN.ps, worker=Resources(cpu=1, gpu=1))
    assert place(room(9), "a", (), Size(1, 1), wants, 0) is None
