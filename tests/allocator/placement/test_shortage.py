"""Tests of shortages: the resources that are missing, and tasks larger than every node.

A job with such a task waits, and its reason names the request and the largest node.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from services.allocator.placement.placers import ROLES
from services.allocator.placement.room import Room
from services.allocator.placement.trial import missing_resources, unschedulable_reason
from services.allocator.policies.contract import Node, Size
from services.allocator.settings import Rules
from shared.messages import Resources, RoleResources, Taint, TaskPlan
from tests.allocator.builders import (
    EVEN,
    ONE_CORE,
    Story,
    accepted,
    exited,
    node,
    own,
    request,
    resumed,
    span,
)

HUGE = RoleResources(chief=ONE_CORE, ps=ONE_CORE, worker=Resources(cpu=16, memory_gib=2))
TOO_LARGE = "no node is large enough for a worker: it needs {}, and the largest has {}"


def empty(cpu: float, memory_gib: float, gpu: int = 0) -> Node:
    has = Resources(cpu=cpu, memory_gib=memory_gib, gpu=gpu)
    return Node(f"{cpu}-{memory_gib}-{gpu}", free=Resources(), allocatable=has)


def against(wants: Resources, *nodes: Node) -> str:
    return unschedulable_reason(Room(nodes), ["worker"], RoleResources(worker=wants))


def test_a_worker_larger_than_every_node_is_named_with_the_largest_node() -> None:
    story = Story().hear(node(cpu=4), node("n2", cpu=8), accepted(request(resources=HUGE)))

    assert story.decide() == ()
    assert (
        story.why()
        == "no node is large enough for a worker: it needs 16 cpu, 2 GiB, and the largest has 8"
        " cpu, 64 GiB"
    )


@pytest.mark.parametrize("policy", ["optimus", "elastic-batch"])
def test_a_too_large_task_is_named_under_every_policy(
    policy: str,
) -> None:
    story = Story(Rules(policy=policy)).hear(node(cpu=4), accepted(request(resources=HUGE)))

    assert _why(story).startswith(
        "no node is large enough for a worker: it needs 16 cpu, 2 GiB, and the largest has 4"
    )
    story = Story(Rules(policy=policy)).hear(
        node(cpu=18, free=0), accepted(request(resources=HUGE))
    )
    assert (
        _why(story)
        == "waits for room (too little cpu: no node has any cpu free) for a chief, 1 ps and 1"
        " worker"
    )


def test_a_job_starts_when_a_large_enough_node_arrives() -> None:
    story = Story().hear(node(cpu=8), accepted(request(resources=HUGE)))
    story.decide()

    assert len(story.hear(node("n2", cpu=18)).decided().tasks) == 3


def test_a_full_node_is_a_reason_to_wait() -> None:
    story = Story().hear(node(cpu=18, free=0), accepted(request(resources=HUGE)))
    story.decide()

    assert story.why().startswith("waits for room")


def test_an_unschedulable_node_does_not_count_as_the_largest() -> None:
    shut = node("big", cpu=32, taints=(Taint(key="gpu"),))

    assert "the largest has 8 cpu" in _why(
        Story().hear(shut, node(cpu=8), accepted(request(resources=HUGE)))
    )
    assert _why(Story().hear(shut, accepted(request(resources=HUGE)))).startswith("waits for room")


def _why(story: Story) -> str:
    story.decide()
    return story.why()


def test_cores_and_memory_of_different_nodes_are_not_combined() -> None:
    told = against(Resources(cpu=4, memory_gib=16), empty(1, 64), empty(8, 8))

    assert told.endswith("it needs 4 cpu, 16 GiB, and the largest has 8 cpu, 8 GiB")
    assert against(Resources(cpu=4, memory_gib=16), empty(8, 8), empty(4, 16)) == ""


def test_the_largest_node_is_the_one_closest_to_the_request() -> None:
    told = against(Resources(cpu=2, memory_gib=4, gpu=2), empty(64, 512), empty(4, 8, gpu=1))

    assert told.endswith("the largest has 4 cpu, 8 GiB, 1 gpu")


def test_each_role_that_fits_nowhere_is_named() -> None:
    told = unschedulable_reason(Room([empty(0.5, 4)]), ROLES, EVEN)

    assert [part.partition(":")[0] for part in told.split("; ")] == [
        f"no node is large enough for a {role}" for role in ROLES
    ]


def test_a_task_that_outgrew_every_node_is_named() -> None:
    sizes = RoleResources(chief=ONE_CORE, ps=ONE_CORE, worker=Resources(cpu=1, memory_gib=50))
    first = Story().hear(node(cpu=3), accepted(request(resources=sizes)))
    plan = first.decided().tasks
    first.hear(node(cpu=3, free=0, own=own("mnist", *plan)), resumed(1))
    worker = next(t for t in plan if t.role == "worker")

    first.hear(exited(worker, 137, "OOMKilled")).decide()

    assert first.why().endswith(TOO_LARGE.format("1 cpu, 75 GiB", "3 cpu, 64 GiB"))


ONE_EACH = Size(1, 1)


def free(cpu: float, memory_gib: float, gpu: int = 0, name: str = "n1", takes: bool = True) -> Node:
    return Node(name, free=Resources(cpu=cpu, memory_gib=memory_gib, gpu=gpu), open=takes)


def lacks(*nodes: Node, sizes: RoleResources = EVEN, size: Size = ONE_EACH) -> str:
    return missing_resources(Room(nodes), "default.mnist", (), size, sizes)


@pytest.mark.parametrize(
    ("there", "told"),
    [
        (free(2.5, 64), " (too little cpu)"),
        (free(16, 2.5), " (too little memory)"),
        (free(2.5, 2.5), " (too little cpu and memory)"),
        (free(16, 64, takes=False), ""),
    ],
)
def test_the_missing_resource_is_the_one_without_which_tasks_would_fit(
    there: Node, told: str
) -> None:
    assert lacks(there) == told


def test_a_task_without_room_on_any_node_is_shown_with_the_free_capacity() -> None:
    """3.5 GiB are free in sum: 1 on one node, and 0.5 on each of five others.

    A further node is closed to new tasks.
    """
    small = Resources(cpu=0.1, memory_gib=0.25)
    sizes = RoleResources(chief=small, ps=small, worker=Resources(cpu=0.5, memory_gib=1.5, gpu=1))
    closed = free(4, 4, gpu=1, name="n9", takes=False)
    spread = [
        free(4, 1.0049, gpu=1),
        *(free(4, 0.5, gpu=1, name=f"n{n}") for n in range(2, 7)),
        closed,
    ]
    why = "a worker needs 1.5 GiB, and the most free on one node is 1"

    assert lacks(*spread, sizes=sizes) == f" (too little memory: {why})"
    bare = [replace(node, free=replace(node.free, gpu=0)) for node in spread]
    assert (
        lacks(*bare, sizes=sizes)
        == f" (too little memory and devices: {why}; no node has any devices free)"
    )
    kept = [TaskPlan(role="worker", index=0, serial=0, node="n1", resources=sizes.worker)]
    lacks_ps = missing_resources(
        Room([free(4, 0.2), free(4, 0.2, name="n2")]), "default.mnist", kept, ONE_EACH, sizes
    )
    assert (
        lacks_ps
        == " (too little memory: a chief needs 0.25 GiB, and the most free on one node is 0.2)"
    )


def test_if_cores_and_memory_are_on_different_nodes_the_cores_are_named_as_missing() -> None:
    """Without their memory the tasks would fit on n1, without their cores on n2."""
    assert lacks(free(8, 0.5), free(0.5, 8, name="n2")) == " (too little cpu)"


def test_devices_can_be_missing_and_unrequested_resources_cannot() -> None:
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


def test_describing_a_shortage_changes_nothing() -> None:
    room = Room([free(2.5, 64)])

    assert missing_resources(room, "default.one", (), ONE_EACH, EVEN) == missing_resources(
        room, "default.two", (), ONE_EACH, EVEN
    )
    assert room.nodes["n1"].free.cpu == 2.5 and len(room.shortage_texts) == 1


def test_a_job_that_waits_for_memory_has_that_reason() -> None:
    large = RoleResources(chief=EVEN.chief, ps=EVEN.ps, worker=Resources(cpu=1, memory_gib=40))
    asked = request(resources=large, workers=span(2, least=2))
    story = Story().hear(node(cpu=16), accepted(asked))
    story.decide()

    assert story.why() == "waits for room (too little memory) for a chief, 1 ps and 2 workers"
