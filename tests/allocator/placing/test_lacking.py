"""What there is too little of, where a job's tasks find no room."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from services.allocator.placing.lacking import lacking
from services.allocator.placing.placement import Room
from services.allocator.policies.contract import Node, Size
from shared.messages import Resources, RoleResources, TaskPlan
from tests.allocator.builders import EVEN, Story, accepted, node, request, span

ONE_EACH = Size(1, 1)


def free(cpu: float, memory_gib: float, gpu: int = 0, name: str = "n1", takes: bool = True) -> Node:
    return Node(name, free=Resources(cpu=cpu, memory_gib=memory_gib, gpu=gpu), open=takes)


def lacks(*nodes: Node, sizes: RoleResources = EVEN, size: Size = ONE_EACH) -> str:
    return lacking(Room(nodes), "default.mnist", (), size, sizes)


@pytest.mark.parametrize(
    ("there", "told"),
    [
        (free(2.5, 64), " (too little cpu)"),
        (free(16, 2.5), " (too little memory)"),
        (free(2.5, 2.5), " (too little cpu and memory)"),
        (free(16, 64, takes=False), ""),
    ],
)
def test_it_is_what_the_tasks_would_fit_without(there: Node, told: str) -> None:
    assert lacks(there) == told


def test_a_task_that_no_node_has_room_for_is_told_with_what_there_is() -> None:
    """3.5 GiB are free in sum: on one node 1, 0.5 on each of five others; one more takes no
    tasks.
    """
    small = Resources(cpu=0.1, memory_gib=0.25)
    sizes = RoleResources(chief=small, ps=small, worker=Resources(cpu=0.5, memory_gib=1.5, gpu=1))
    closed = free(4, 4, gpu=1, name="n9", takes=False)
    spread = [
        free(4, 1.0049, gpu=1),
        *(free(4, 0.5, gpu=1, name=f"n{n}") for n in range(2, 7)),
        closed,
    ]
    why = "a worker wants 1.5 GiB, and the most free on one node is 1"

    assert lacks(*spread, sizes=sizes) == f" (too little memory: {why})"
    bare = [replace(node, free=replace(node.free, gpu=0)) for node in spread]
    assert (
        lacks(*bare, sizes=sizes)
        == f" (too little memory and devices: {why}; no node has any devices free)"
    )
    kept = [TaskPlan(role="worker", index=0, serial=0, node="n1", resources=sizes.worker)]
    lacks_ps = lacking(
        Room([free(4, 0.2), free(4, 0.2, name="n2")]), "default.mnist", kept, ONE_EACH, sizes
    )
    assert (
        lacks_ps
        == " (too little memory: a chief wants 0.25 GiB, and the most free on one node is 0.2)"
    )


def test_cores_here_and_memory_there_lack_either_way() -> None:
    """Without wanting memory they would fit on the one, without wanting cores on the other: the
    first is told.
    """
    assert lacks(free(8, 0.5), free(0.5, 8, name="n2")) == " (too little cpu)"


def test_devices_are_few_and_what_is_not_wanted_never_lacks() -> None:
    with_device = RoleResources(
        chief=EVEN.chief, ps=EVEN.ps, worker=Resources(cpu=1, memory_gib=1, gpu=1)
    )

    assert (
        lacks(free(8, 64), sizes=with_device) == " (too few devices: no node has any devices free)"
    )
    assert (
        lacks(free(2.5, 64), sizes=with_device)
        == " (too little cpu and devices: no node has any devices free)"
    )
    assert lacks(free(2.5, 64)) == " (too little cpu)"


def test_to_look_takes_nothing_and_who_asks_the_same_is_answered_the_same() -> None:
    room = Room([free(2.5, 64)])

    assert lacking(room, "default.one", (), ONE_EACH, EVEN) == lacking(
        room, "default.two", (), ONE_EACH, EVEN
    )
    assert room.nodes["n1"].free.cpu == 2.5 and len(room.lacks) == 1


def test_the_allocator_says_it_of_a_job_that_waits_for_memory() -> None:
    large = RoleResources(chief=EVEN.chief, ps=EVEN.ps, worker=Resources(cpu=1, memory_gib=40))
    asked = request(resources=large, workers=span(2, least=2))
    story = Story().hear(node(cpu=16), accepted(asked))
    story.decide()

    assert story.why() == "waits for room (too little memory) for a chief, 1 ps and 2 workers"
