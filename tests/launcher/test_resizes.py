"""Cpu and memory in place: the same generation, a new revision."""

from __future__ import annotations

from services.launcher.actions import ResizePod
from shared.messages import HandOverOrdered, Resources, TaskUpdated
from tests.launcher.builders import SMALL, decided
from tests.launcher.world import World

MORE, LESS = Resources(cpu=1.5, memory_gib=2.0), Resources(cpu=0.25, memory_gib=1.0)


def test_a_new_revision_changes_pods_in_place_without_a_hand_over(world: World) -> None:
    world.train(decided(1, "c0 p1"))
    world.decide(decided(1, "c0 p1", revision=11, resources=MORE))
    assert {m.pod: (m.resources, m.revision) for m in world.all(TaskUpdated)} == {
        "net-chief-0": (MORE, 11),
        "net-ps-1": (MORE, 11),
    }
    assert len(world.all(HandOverOrdered)) == 1


def test_a_change_there_and_back_is_said_twice(world: World) -> None:
    world.train(decided(1, "c0"))
    world.decide(decided(1, "c0", revision=11, resources=MORE))
    world.decide(decided(1, "c0", revision=12, resources=SMALL))
    assert [m.resources for m in world.all(TaskUpdated)] == [MORE, SMALL]


def test_a_change_is_said_once_the_node_has_made_it(world: World) -> None:
    world.train(decided(1, "c0"))
    world.change("net-chief-0", actual=SMALL)
    world.decide(decided(1, "c0", revision=11, resources=MORE))
    assert world.all(TaskUpdated) == []
    world.change("net-chief-0", actual=MORE)
    world.settle()
    assert world.last(TaskUpdated).resources == MORE


def test_a_pod_that_still_trains_shrinks_only_once_the_next_generation_runs(world: World) -> None:
    world.train(decided(1, "c0 p1"))
    world.hand_over(decided(2, "c0 p1 w2", resources=LESS))
    assert [a.name for a in world.done if isinstance(a, ResizePod)] == []
    world.resume(2)
    world.settle()
    assert sorted(m.pod for m in world.all(TaskUpdated)) == ["net-chief-0", "net-ps-1"]


def test_rounding_is_no_change(world: World) -> None:
    world.train(decided(1, "c0", resources=Resources(cpu=1 / 3, memory_gib=1.1)))
    world.change("net-chief-0", resources=Resources(cpu=0.333, memory_gib=1126 / 1024))
    world.settle()
    assert not [a for a in world.done if isinstance(a, ResizePod)]
