"""A task larger than every node waits for ever: that is told, with what it wants and what there
is.
"""

from __future__ import annotations

import pytest

from services.allocator.placing.misfit import misfit
from services.allocator.placing.placement import ROLES, Room
from services.allocator.policies.contract import Node
from services.allocator.rules import Rules
from shared.messages import Resources, RoleResources, Taint
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
)

HUGE = RoleResources(chief=ONE_CORE, ps=ONE_CORE, worker=Resources(cpu=16, memory_gib=2))
TOO_LARGE = "no node is large enough for a worker: it wants {}, and the largest has {}"


def empty(cpu: float, memory_gib: float, gpu: int = 0) -> Node:
    has = Resources(cpu=cpu, memory_gib=memory_gib, gpu=gpu)
    return Node(f"{cpu}-{memory_gib}-{gpu}", free=Resources(), allocatable=has)


def against(wants: Resources, *nodes: Node) -> str:
    return misfit(Room(nodes), ["worker"], RoleResources(worker=wants))


def test_a_worker_larger_than_every_node_is_told_with_what_there_is() -> None:
    story = Story().hear(node(cpu=4), node("n2", cpu=8), accepted(request(resources=HUGE)))

    assert story.decide() == ()
    assert (
        story.why()
        == "no node is large enough for a worker: it wants 16 cpu, 2 GiB, and the largest has 8 cpu, 64 GiB"
    )


@pytest.mark.parametrize("policy", ["optimus", "elastic-batch"])
def test_that_is_told_under_a_policy_that_says_nothing_of_what_it_has_no_room_for(
    policy: str,
) -> None:
    story = Story(Rules(policy=policy)).hear(node(cpu=4), accepted(request(resources=HUGE)))

    assert _why(story).startswith(
        "no node is large enough for a worker: it wants 16 cpu, 2 GiB, and the largest has 4"
    )
    story = Story(Rules(policy=policy)).hear(
        node(cpu=18, free=0), accepted(request(resources=HUGE))
    )
    assert (
        _why(story)
        == "waits for room (too little cpu: no node has any cpu free) for a chief, 1 ps and 1 worker"
    )


def test_it_starts_when_a_node_comes_that_is_large_enough() -> None:
    story = Story().hear(node(cpu=8), accepted(request(resources=HUGE)))
    story.decide()

    assert len(story.hear(node("n2", cpu=18)).decided().tasks) == 3


def test_a_node_that_is_only_full_is_waited_for() -> None:
    story = Story().hear(node(cpu=18, free=0), accepted(request(resources=HUGE)))
    story.decide()

    assert story.why().startswith("waits for room")


def test_a_node_that_takes_no_tasks_is_none() -> None:
    shut = node("big", cpu=32, taints=(Taint(key="gpu"),))

    assert "the largest has 8 cpu" in _why(
        Story().hear(shut, node(cpu=8), accepted(request(resources=HUGE)))
    )
    assert _why(Story().hear(shut, accepted(request(resources=HUGE)))).startswith("waits for room")


def _why(story: Story) -> str:
    story.decide()
    return story.why()


def test_cores_of_one_node_and_memory_of_another_are_no_node() -> None:
    told = against(Resources(cpu=4, memory_gib=16), empty(1, 64), empty(8, 8))

    assert told.endswith("it wants 4 cpu, 16 GiB, and the largest has 8 cpu, 8 GiB")
    assert against(Resources(cpu=4, memory_gib=16), empty(8, 8), empty(4, 16)) == ""


def test_the_largest_is_the_one_that_lacks_least_of_what_is_wanted() -> None:
    told = against(Resources(cpu=2, memory_gib=4, gpu=2), empty(64, 512), empty(4, 8, gpu=1))

    assert told.endswith("the largest has 4 cpu, 8 GiB, 1 gpu")


def test_each_role_that_fits_nowhere_is_told() -> None:
    told = misfit(Room([empty(0.5, 4)]), ROLES, EVEN)

    assert [part.partition(":")[0] for part in told.split("; ")] == [
        f"no node is large enough for a {role}" for role in ROLES
    ]


def test_a_task_that_outgrew_every_node_by_running_out_of_memory_is_told() -> None:
    sizes = RoleResources(chief=ONE_CORE, ps=ONE_CORE, worker=Resources(cpu=1, memory_gib=50))
    first = Story().hear(node(cpu=3), accepted(request(resources=sizes)))
    plan = first.decided().tasks
    first.hear(node(cpu=3, free=0, own=own("mnist", *plan)), resumed(1))
    worker = next(t for t in plan if t.role == "worker")

    first.hear(exited(worker, 137, "OOMKilled")).decide()

    assert first.why().endswith(TOO_LARGE.format("1 cpu, 75 GiB", "3 cpu, 64 GiB"))
