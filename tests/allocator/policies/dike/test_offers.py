"""Which sizes of a job the nodes can hold."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from services.allocator.placement.placers import place
from services.allocator.placement.room import Room
from services.allocator.policies.contract import JobSnapshot, Node, Size
from services.allocator.policies.dike.offers import FreeNodes, growing_steps, offered_sizes
from shared.messages import Resources, RoleResources, TaskPlan
from tests.allocator.builders import EVEN, request, span


def nodes(*cpus: float, **fields: Any) -> list[Node]:
    return [Node(f"n{i}", Resources(cpu=c, memory_gib=100), **fields) for i, c in enumerate(cpus)]


def job(
    ps: int = 4, workers: int = 6, sizes: RoleResources = EVEN, tasks: tuple[TaskPlan, ...] = ()
) -> JobSnapshot:
    asked = request(ps=span(1, most=ps), workers=span(1, most=workers))
    return JobSnapshot(
        key="default.mnist", request=asked, sizes=sizes, submitted_s=0.0, tasks=tasks
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(1, 4), st.integers(1, 6))
def test_exactly_the_offered_sizes_can_be_placed(cpus, ps, workers):
    cluster, asks = nodes(*cpus), job(ps, workers)
    offer = set(offered_sizes(FreeNodes(cluster), asks))
    for size in (Size(p, w) for p in range(1, ps + 1) for w in range(1, workers + 1)):
        placed = place(Room(cluster), asks.key, (), size, asks.sizes, serial=0)
        assert (placed is not None) == (size in offer)


def test_a_job_can_use_its_own_capacity_on_an_unschedulable_node():
    held = [
        TaskPlan(role=r, index=0, serial=s, node="n0", resources=EVEN.ps)
        for s, r in enumerate(("chief", "ps", "worker"))
    ]  # type: ignore[arg-type]
    assert offered_sizes(FreeNodes(nodes(0.0)), job(tasks=tuple(held))) == [Size(1, 1)]
    assert offered_sizes(FreeNodes(nodes(9.0, open=False)), job(tasks=tuple(held))) == [Size(1, 1)]


def test_ps_leave_devices_to_the_workers():
    plain = Node("plain", Resources(cpu=4, memory_gib=64))
    rich = Node("rich", Resources(cpu=2, memory_gib=64, gpu=2))
    wants = RoleResources(
        chief=Resources(), ps=EVEN.ps, worker=Resources(cpu=1, memory_gib=1, gpu=1)
    )
    assert Size(4, 2) in offered_sizes(FreeNodes([plain, rich]), job(sizes=wants))
    assert max(s.workers for s in offered_sizes(FreeNodes([plain, rich]), job(sizes=wants))) == 2


def test_nothing_is_offered_if_the_chief_does_not_fit():
    assert offered_sizes(FreeNodes([]), job()) == offered_sizes(FreeNodes(nodes(0.5)), job()) == []


def test_tasks_without_requests_fit_anywhere_if_there_is_a_node():
    nothing = RoleResources(chief=Resources(), ps=Resources(), worker=Resources())
    assert len(offered_sizes(FreeNodes(nodes(0.0)), job(sizes=nothing))) == 4 * 6
    assert offered_sizes(FreeNodes([]), job(sizes=nothing)) == []


def test_step_sizes_grow_with_the_numbers():
    assert growing_steps(1, 6) == [1, 2, 3, 4, 5, 6]
    assert growing_steps(3, 3) == [3] and growing_steps(4, 3) == []
    many = growing_steps(1, 500)
    assert many[:8] == [1, 2, 3, 4, 5, 6, 7, 8] and many[-1] == 500 and len(many) < 30
