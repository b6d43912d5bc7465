"""A survey that was followed is the one that would have been made anew."""

from __future__ import annotations

import random
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from services.allocator.kept import KeptNear
from services.allocator.placing.placement import Room, place
from services.allocator.placing.survey import Survey, anew, followed
from services.allocator.policies.contract import Node, Size
from shared.messages import Resources
from tests.allocator.builders import EVEN

COUNT = 64
"""Of so many nodes, some may change and the survey is still followed."""


def node(name: str, chance: random.Random) -> Node:
    free = Resources(cpu=chance.randrange(9), memory_gib=chance.randrange(9), gpu=chance.randrange(3))
    hosts = frozenset(chance.sample(["a", "b", "c", "d"], chance.randrange(3)))
    return Node(name, free, open=chance.random() < 0.8, hosts=hosts)


def stirred(nodes: Mapping[str, Node], chance: random.Random) -> dict[str, Node]:
    """One goes, one comes, some change."""
    left = dict(nodes)
    del left[chance.choice([*left])]
    for name in (chance.choice([*left]), f"new-{chance.random()}"):
        left[name] = node(name, chance)
    return left


def told(survey: Survey) -> tuple[dict[int, list[tuple[float, float, str]]], dict[str, list[str]]]:
    shelves = {gpu: shelf for gpu, shelf in survey.order.shelves.items() if shelf}
    return shelves, {job: sorted(names) for job, names in survey.homes.items()}


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 6))
def test_it_follows_nodes_that_come_go_and_change(chance, rounds):
    follows: list[int] = []

    def counted(last: Survey, gone: list[Node], come: list[Node]) -> Survey:
        follows.append(len(come))
        return followed(last, gone, come)

    surveyed = KeptNear(anew, counted)
    nodes = {name: node(name, chance) for name in map("n{}".format, range(COUNT))}
    surveyed(nodes)
    for _ in range(rounds):
        nodes = stirred(nodes, chance)
        assert told(surveyed(nodes)) == told(anew(nodes.values()))
    assert len(follows) == rounds


def test_where_nothing_changed_it_is_the_very_same_and_where_much_did_it_is_made_anew():
    surveyed = KeptNear(anew, lambda last, gone, come: last)
    one, other = ({name: node(name, random.Random(seed)) for name in "xyz"} for seed in (1, 2))
    first = surveyed(one)

    assert surveyed(dict(one)) is first
    assert told(surveyed(other)) == told(anew(other.values()))


def test_what_a_room_gives_away_the_next_one_has_again():
    nodes = [Node(f"n{i}", Resources(cpu=8, memory_gib=64)) for i in range(COUNT)]
    placed = [place(Room(nodes), "a", (), Size(1, 2), EVEN, 0) for _ in range(2)]

    assert placed[0] is not None and placed[0] == placed[1]
