"""Who gets which step of the room there is."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.allocator.policies.weir.auction import NONE, Leaves, Stairs, granted
from services.allocator.policies.weir.hull import Config, hulls

POINTS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 100)), min_size=1, max_size=12)


def stairs(*points: tuple[float, float]) -> list[Config]:
    """(cost, speed) of each step; the cost is in cores, too."""
    return [
        Config(1, n + 1, 32, cost, 0.0, 0.0, cost, speed) for n, (cost, speed) in enumerate(points)
    ]


def room(cpu: float) -> np.ndarray:
    return np.array([cpu, 0.0, 0.0])


def slopes(stairs: Stairs) -> np.ndarray:
    return stairs.slopes(stairs.speeds)


def sold(
    jobs: list[list[Config]], worth: list[float], cpu: float, first: tuple[int, ...] = ()
) -> list[int]:
    side_by_side = Stairs.of(jobs)
    return granted(
        side_by_side, slopes(side_by_side) * np.array(worth)[:, None], room(cpu), first
    ).tolist()


@given(
    st.lists(POINTS, min_size=1, max_size=3), st.lists(st.integers(1, 9), min_size=3, max_size=3)
)
def test_what_is_granted_is_within_one_step_of_the_best_there_is(jobs, worth):
    concave = []
    for points in jobs:
        cost, speed = np.array(points, dtype=float).T
        (steps,) = hulls(cost[None], speed[None], np.zeros((1, 2)))
        concave.append(stairs(*((float(cost[n]), float(speed[n])) for n in steps)))
    got = [
        steps[at] if at != NONE else None
        for steps, at in zip(concave, sold(concave, worth[: len(jobs)], 40.0), strict=True)
    ]
    assert sum(c.cost for c in got if c) <= 40.0 + 1e-6
    best = max(
        sum(w * c.speed for w, c in zip(worth, chosen, strict=False) if c)
        for chosen in product(*([None, *steps] for steps in concave))
        if sum(c.cost for c in chosen if c) <= 40.0
    )
    largest = max(
        (w * c.speed for w, steps in zip(worth, concave, strict=False) for c in steps), default=0.0
    )
    assert sum(w * c.speed for w, c in zip(worth, got, strict=False) if c) >= best - largest - 1e-6


def test_room_that_is_too_small_for_one_goes_to_the_next():
    assert sold([stairs((5, 100)), stairs((1, 1))], [1.0, 1.0], 2.0) == [NONE, 0]


def test_whose_step_does_not_fit_gets_none_after_it():
    big_then_small = stairs((1, 10), (9, 50), (10, 51))
    assert sold([big_then_small], [1.0], 5.0) == [0]


def test_who_is_first_has_its_floor_whatever_others_offer():
    assert sold([stairs((2, 1)), stairs((2, 100))], [1.0, 1.0], 2.0, first=(0,)) == [0, NONE]


def test_a_step_that_has_to_leave_something_leaves_it_and_others_may_take_it():
    side_by_side = Stairs.of([stairs((1, 10), (3, 20)), stairs((1, 1))])
    second = np.array([[False, True], [False, False]])
    leaves = Leaves(second, np.array([[1.0, 0.0, 0.0], [9.0, 9.0, 9.0]]))
    got = [
        granted(side_by_side, slopes(side_by_side), room(cpu), (), leaves).tolist()
        for cpu in (3.0, 4.0, 5.0)
    ]
    assert got == [[0, 0], [1, 0], [1, 0]]


def test_no_resource_is_given_twice():
    wide = [Config(0, 1, 1, 1.0, 8.0, 1.0, 0.5, 10.0)]
    side_by_side = Stairs.of([wide, wide])
    for there in ([9.0, 9.0, 9.0], [9.0, 99.0, 1.0], [1.0, 99.0, 9.0]):
        assert sorted(granted(side_by_side, slopes(side_by_side), np.array(there)).tolist()) == [
            NONE,
            0,
        ]


def test_whose_purse_is_empty_takes_nothing_from_the_room_that_all_share():
    """Two of one purse, which holds two cores, and one of none: the dearest of the purse, and the
    other.
    """
    jobs = [stairs((1, 100), (3, 200)), stairs((1, 90)), stairs((1, 1))]
    side_by_side = Stairs.of(jobs, (0, 0, -1))
    rooms = np.concatenate([room(9.0), np.array([2.0, np.inf, np.inf])])
    assert granted(side_by_side, slopes(side_by_side), rooms).tolist() == [0, 0, 0]
