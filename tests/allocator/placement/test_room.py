"""Tests of a room: after any change its node index equals that of a new room."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.allocator.placement.amounts import smallest_enough
from services.allocator.placement.placers import place
from services.allocator.placement.room import Room
from services.allocator.policies.contract import Node, Size
from shared.messages import Resources
from tests.allocator.builders import EVEN

COUNT = 12
Told = tuple[dict[int, list[tuple[float, float, str]]], dict[str, list[str]]]


def node(name: str, chance: random.Random) -> Node:
    free = Resources(
        cpu=chance.randrange(9), memory_gib=chance.randrange(9), gpu=chance.randrange(3)
    )
    hosts = frozenset(chance.sample(["a", "b", "c", "d"], chance.randrange(3)))
    return Node(name, free, open=chance.random() < 0.8, hosts=hosts)


def told(room: Room) -> Told:
    shelves = {gpu: shelf for gpu, shelf in room.order().shelves.items() if shelf}
    homes = {job: sorted(home.name for home in room._homes(job)) for job in "abcd"}
    return shelves, homes


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 6))
def test_a_changed_copy_equals_a_new_room_and_keeps_the_original(chance, rounds):
    room = Room(node(f"n{number}", chance) for number in range(COUNT))
    for _ in range(rounds):
        place(room, chance.choice("abcd"), (), Size(1, chance.randrange(1, 4)), EVEN, 0)
        before = told(Room(room.nodes.values()))
        names = chance.sample(sorted(room.nodes), 3)
        changed = [
            replace(room.nodes[name], free=Resources(cpu=chance.randrange(9))) for name in names
        ]
        other = room.with_changes(changed, {}, {})

        assert told(other) == told(Room([*other.nodes.values()]))
        place(other, "b", (), Size(1, 2), EVEN, 0)
        assert told(other) == told(Room(other.nodes.values()))
        assert told(room) == before


def test_a_new_room_has_the_full_capacity_again():
    nodes = [Node(f"n{i}", Resources(cpu=8, memory_gib=64)) for i in range(COUNT)]
    placed = [place(Room(nodes), "a", (), Size(1, 2), EVEN, 0) for _ in range(2)]

    assert placed[0] is not None and placed[0] == placed[1]


def test_avoided_nodes_take_no_new_task() -> None:
    nodes = [Node(f"n{i}", Resources(cpu=8, memory_gib=64)) for i in range(2)]
    room = Room(nodes, shunned=["n0", "nowhere"])

    assert (
        room.put("a", Resources(cpu=1)) == "n1"
        and room.nodes["n0"].shunned
        and room.nodes.keys() == {"n0", "n1"}
    )


def test_a_new_reservation_replaces_the_previous_one() -> None:
    room = Room([Node(f"n{i}", Resources(cpu=4)) for i in range(2)], {"default": Resources(cpu=6)})
    room.hold_back(
        {"n0": Resources(cpu=3), "gone": Resources(cpu=1)}, {"default": Resources(cpu=9)}
    )
    assert (room.nodes["n0"].free.cpu, room.remaining_quotas["default"].cpu) == (1, 0)
    room.hold_back({"n1": Resources(cpu=9)}, {})
    assert [room.nodes[name].free.cpu for name in ("n0", "n1")] == [4, 0] and room.remaining_quotas[
        "default"
    ].cpu == 6
    room.hold_back({}, {})
    assert room.nodes["n1"].free.cpu == 4


@given(st.integers(0, 3000), st.integers(0, 2000))
def test_the_smallest_solution_is_found(most: int, edge: int) -> None:
    assert smallest_enough(most, lambda n: n >= edge) == (edge if edge <= most else None)


def test_bisection_needs_a_logarithmic_number_of_calls() -> None:
    asked: list[int] = []

    def holds(n: int) -> bool:
        asked.append(n)
        return n >= 700

    assert smallest_enough(1000, holds) == 700 and len(asked) <= 22 and max(asked) <= 1000


@pytest.mark.parametrize("holes", [{3}, {5, 6}, {9}])
def test_for_a_non_monotonic_predicate_the_result_holds_and_one_less_does_not(
    holes: set[int],
) -> None:
    def holds(n: int) -> bool:
        return n >= 2 and n not in holes

    found = smallest_enough(64, holds)
    assert found is not None and holds(found) and not holds(found - 1)
