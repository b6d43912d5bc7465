"""Tests of slow-task migration: a starving task moves to a node with enough cpu, if it pays."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from services.allocator.settings import Rules
from shared.messages import AllocationDecided, ProgressReported, TaskPlan, TaskUsage
from tests.allocator.builders import (
    AT_ONCE,
    Story,
    accepted,
    node,
    own,
    progress,
    request,
    resumed,
    span,
    tasks,
)

STATIC: Rules = replace(AT_ONCE, policy="static", starved_s=30.0)


def training(spare: float = 2) -> tuple[Story, AllocationDecided, TaskPlan]:
    """Return a job with three tasks on n1 and n2, one of them alone on its node, and this task.

    n3 has `spare` free cores.
    """
    asked = request(ps=span(1), workers=span(1))
    story = Story(STATIC).hear(node("n1", cpu=2), node("n2", cpu=1), accepted(asked))
    first = story.decided()
    nodes = [t.node for t in first.tasks]
    alone = next(t for t in first.tasks if nodes.count(t.node) == 1)
    for name, cpu in (("n1", 2), ("n2", 1)):
        mine = [t for t in first.tasks if t.node == name]
        story.hear(node(name, cpu=cpu, free=0, own=own("mnist", *mine)))
    return story.hear(node("n3", cpu=spare), resumed(1)), first, alone


def report(
    first: AllocationDecided, hungry: TaskPlan | None, step: int, done: int = 100
) -> ProgressReported:
    """Return a report in which the hungry task gets 0.2 cores and waits.

    Each other task uses 0.9 cores and needs no more.
    """
    usage = tuple(
        (
            TaskUsage(task=t.name(), cpu=0.2, memory_gib=0.1, waited=1.6, busy=1.0)
            if t is hungry
            else TaskUsage(task=t.name(), cpu=0.9, memory_gib=0.1, waited=0.0, busy=0.9)
        )
        for t in first.tasks
    )
    return replace(progress(1, done=done, total=10_000, speed=10.0, step=step), usage=usage)


def test_a_starving_task_moves_after_the_configured_time():
    story, first, hungry = training()
    assert story.hear(report(first, hungry, 1)).decide() == ()
    assert story.hear(report(first, hungry, 2), after_s=20).decide() == ()

    moved = story.hear(report(first, hungry, 3), after_s=10).decided()

    assert (
        moved.reason
        == f"mnist-{hungry.role}-{hungry.serial} gets 20% of the CPU that it requested on"
        f" {hungry.node}; moved"
    )
    assert [t.node for t in tasks(moved, hungry.role)] == ["n3"]
    assert [t for t in moved.tasks if t.role != hungry.role] == [
        t for t in first.tasks if t is not hungry
    ]
    assert moved.gain_s == 9_900 / 10 * 0.8 and story.decide() == ()


def test_temporary_starvation_moves_nothing():
    story, first, hungry = training()
    story.hear(report(first, hungry, 1), report(first, None, 2), after_s=20)
    assert story.hear(report(first, hungry, 3), after_s=20).decide() == ()


def test_a_starving_task_of_a_nearly_finished_job_stays():
    story, first, hungry = training()
    story.hear(report(first, hungry, 1, done=9_990))
    assert story.hear(report(first, hungry, 2, done=9_995), after_s=40).decide() == ()


def test_a_starving_task_without_room_elsewhere_stays():
    story, first, hungry = training(spare=0.5)
    story.hear(report(first, hungry, 1))
    assert story.hear(report(first, hungry, 2), after_s=40).decide() == ()


def test_a_starving_task_does_not_return_to_its_node():
    story, first, hungry = training(spare=0)
    story.hear(node(hungry.node, cpu=8, free=6, own=own("mnist", hungry)), report(first, hungry, 1))
    assert story.hear(report(first, hungry, 2), after_s=40).decide() == ()


def test_a_node_with_a_starving_task_takes_nothing_new():
    story, first, hungry = training(spare=0)
    story.hear(node(hungry.node, cpu=8, free=6, own=own("mnist", hungry)), report(first, hungry, 1))
    story.hear(report(first, hungry, 2), after_s=40)
    assert story.hear(accepted(request("other", ps=span(1), workers=span(1)), uid=2)).decide() == ()

    assert story.hear(report(first, None, 3)).decided().job == "other"


def test_the_start_of_starvation_survives_a_restart():
    story, first, hungry = training()
    story.hear(report(first, hungry, 1), report(first, hungry, 2))
    assert story.replayed() == story.facts


def test_a_task_that_starves_everywhere_stops_moving():
    story, first, hungry = training()
    moved = story.hear(report(first, hungry, 1), report(first, hungry, 2), after_s=40).decided()
    again = next(t for t in moved.tasks if t.role == hungry.role)
    story.hear(
        resumed(2), node(hungry.node, cpu=1), node("n3", cpu=2, free=1, own=own("mnist", again))
    )

    for step in (3, 4, 5):
        starves = replace(report(moved, again, step), generation=2)
        assert story.hear(starves, after_s=40).decide() == ()
    assert (
        story.hear(replace(report(moved, again, 6), generation=2), after_s=3600)
        .decided()
        .generation
        == 3
    )


@pytest.mark.parametrize("policy", ["static", "weir", "config-manager"])
def test_starvation_of_one_job_shrinks_no_other(policy: str):
    """A node that takes no new tasks still counts, so no job shrinks because of it."""
    story, first, hungry = training(spare=0)
    story.rules = replace(STATIC, policy=policy)
    other = request("other", ps=span(1), workers=span(3, 1))
    story.hear(node("n4", cpu=5), accepted(other, uid=2))
    (second,) = (a for a in story.decide() if isinstance(a, AllocationDecided))
    story.hear(
        node("n4", cpu=5, free=0, own=own("other", *second.tasks)), resumed(1, job="other", uid=2)
    )
    story.hear(report(first, hungry, 1))
    for step in range(2, 30):
        assert story.hear(report(first, hungry, step), after_s=10).decide() == ()


def test_slow_task_migration_takes_no_reserved_capacity():
    story, first, hungry = training(spare=4)
    story.hear(accepted(request("two", ps=span(1), workers=span(1)), uid=2))
    second = story.decided()
    story.hear(node("n3", cpu=4, free=1, own=own("two", *second.tasks)), resumed(1, "two", uid=2))
    story.hear(accepted(request("large", ps=span(1), workers=span(2, least=2)), uid=3))
    story.hear(*(report(first, hungry, step) for step in range(1, 41)))
    story.rules = replace(STATIC, reserve_after_s=10.0)
    assert story.decide() == () and "reserved for it" in story.why("large")
    story.rules = STATIC
    assert "gets 20% of the CPU" in story.decided().reason, "without it the task moves to n3"
