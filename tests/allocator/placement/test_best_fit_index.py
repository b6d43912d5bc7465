"""Tests of the best-fit index: it chooses the node that a scan of all nodes would choose."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.allocator.placement.amounts import (
    NO_MORE,
    count_fitting,
    fits,
    multiply,
    subtract,
    total_of,
)
from services.allocator.placement.best_fit_index import BestFitIndex, best_fit_key
from services.allocator.placement.placers import place
from services.allocator.placement.room import Room
from services.allocator.policies.contract import Node, Size
from shared.messages import Resources, RoleResources

EIGHTHS = st.integers(0, 48).map(lambda n: n / 8)
"""Numbers whose sums and differences are exact."""
TENTHS = st.integers(0, 30).map(lambda n: n / 10)
JOBS = st.sampled_from("abc")


def amounts(parts: st.SearchStrategy[float]) -> st.SearchStrategy[Resources]:
    return st.builds(Resources, cpu=parts, memory_gib=parts, gpu=st.integers(0, 3))


def nodes(parts: st.SearchStrategy[float]) -> st.SearchStrategy[list[Node]]:
    node = st.builds(
        Node,
        st.just(""),
        amounts(parts),
        open=st.sampled_from([True, True, False]),
        hosts=st.frozensets(JOBS),
    )
    return st.lists(node, max_size=8).map(
        lambda found: [replace(n, name=f"n{i}") for i, n in enumerate(found)]
    )


def by_scan(
    there: dict[str, Node], job: str, wants: Resources, count: int = 1, rest: Resources = NO_MORE
) -> str | None:
    """Return the best node by a scan of all nodes.

    Nodes with other tasks of the job come first, then nodes with room for all `count` tasks and the
    rest, then those with room for most of them. Among these the node with the least capacity left
    is the best.
    """

    def left(n: Node) -> tuple[bool, bool, int, float, float, float, str]:
        free = n.free
        return (
            job not in n.hosts,
            job not in n.hosts and not fits(total_of((multiply(wants, count), rest)), free),
            0
            if job in n.hosts
            else -max(k for k in range(1, count + 1) if fits(multiply(wants, k), free)),
            free.gpu - wants.gpu,
            free.cpu - wants.cpu,
            free.memory_gib - wants.memory_gib,
            n.name,
        )

    best = min(
        (n for n in there.values() if n.open and fits(wants, n.free)), key=left, default=None
    )
    return best.name if best else None


def put_by_scan(
    there: dict[str, Node], job: str, wants: Resources, count: int, rest: Resources
) -> str | None:
    name = by_scan(there, job, wants, count, rest)
    if name is not None:
        here = there[name]
        there[name] = replace(here, free=subtract(here.free, wants), hosts=here.hosts | {job})
    return name


def fill_by_scan(
    there: dict[str, Node], job: str, wants: Resources, count: int, rest: Resources = NO_MORE
) -> list[str]:
    found = (put_by_scan(there, job, wants, count - done, rest) for done in range(count))
    return [name for name in found if name is not None]


@settings(max_examples=400, deadline=None)
@given(
    nodes(EIGHTHS),
    st.lists(st.tuples(JOBS, amounts(EIGHTHS), st.integers(1, 4), st.booleans()), max_size=12),
)
def test_the_index_chooses_like_a_scan_of_all_nodes_and_undo_restores_it(there, steps):
    room, plain = Room(there), {node.name: node for node in there}
    for job, wants, count, keep in steps:
        mark, before = room.mark(), dict(plain)
        assert room.choose(job, wants) == by_scan(plain, job, wants)
        expected = fill_by_scan(plain, job, wants, count)
        assert room.fill(job, wants, count) == expected and room.nodes == plain
        if not keep:
            room.undo(mark)
            plain = before
            assert room.nodes == plain


@settings(max_examples=200, deadline=None)
@given(nodes(EIGHTHS), st.lists(st.tuples(JOBS, amounts(EIGHTHS), amounts(EIGHTHS)), max_size=5))
def test_a_job_goes_to_one_node_if_possible_and_else_its_workers_are_placed_first(there, jobs):
    room, plain = Room(there), {node.name: node for node in there}
    for job, ps, worker in jobs:
        sizes = RoleResources(chief=Resources(), ps=ps, worker=worker)
        tried = dict(plain)
        ends = ((worker, 3, multiply(ps, 2)), (ps, 2, NO_MORE), (sizes.chief, 1, NO_MORE))
        nodes = [fill_by_scan(tried, job, *wants) for wants in ends]
        tasks = place(room, job, (), Size(2, 3), sizes, 0)
        if sum(map(len, nodes)) < 6:
            assert tasks is None
        else:
            assert tasks and [task.node for task in tasks] == [*nodes[2], *nodes[1], *nodes[0]]
            plain = tried
        assert room.nodes == plain


@settings(max_examples=300, deadline=None)
@given(st.lists(amounts(TENTHS), max_size=8), amounts(TENTHS), st.integers(0, 4))
def test_best_fit_is_exact_despite_rounding(free, wants, count):
    named = [(f"n{i}", one) for i, one in enumerate(free)]
    fitting = [best_fit_key(one, name) for name, one in named if fits(wants, one)]
    assert BestFitIndex(named).best_fit(wants) == (min(fitting)[-1] if fitting else None)
    for one in free:
        left, taken_so_far = one, 0
        while taken_so_far < count and fits(wants, left):
            left, taken_so_far = subtract(left, wants), taken_so_far + 1
        assert count_fitting(one, wants, count) == (taken_so_far, left)


def test_a_task_without_devices_avoids_nodes_with_devices():
    order = BestFitIndex([("rich", Resources(cpu=1, gpu=4)), ("plain", Resources(cpu=9))])
    assert (
        order.best_fit(Resources(cpu=1)) == "plain"
        and order.best_fit(Resources(cpu=1, gpu=1)) == "rich"
    )
    order.move("plain", Resources(cpu=9), Resources(cpu=0.5))
    assert order.best_fit(Resources(cpu=1)) == "rich"
