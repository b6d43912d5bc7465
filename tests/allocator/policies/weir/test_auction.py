"""Who gets which step of the room there is.

Why a job gets no step more than it does.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.allocator.policies.weir.auction import (
    NO_STEP,
    BlockReason,
    ReservedRoom,
    Staircases,
    block_reasons,
    grant_steps,
)
from services.allocator.policies.weir.staircase import Config, concave_hulls

POINTS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 100)), min_size=1, max_size=12)


def stairs(*points: tuple[float, float]) -> list[Config]:
    """(cost, speed) of each step; the cost is in cores, too."""
    return [
        Config(1, n + 1, 32, cost, 0.0, 0.0, cost, speed) for n, (cost, speed) in enumerate(points)
    ]


def room(cpu: float) -> np.ndarray:
    return np.array([cpu, 0.0, 0.0])


def slopes(stairs: Staircases) -> np.ndarray:
    return stairs.gain_per_cost(stairs.speeds)


def sold(
    jobs: list[list[Config]], worth: list[float], cpu: float, first: tuple[int, ...] = ()
) -> list[int]:
    side_by_side = Staircases.from_configs(jobs)
    return grant_steps(
        side_by_side, slopes(side_by_side) * np.array(worth)[:, None], room(cpu), first
    ).tolist()


@given(
    st.lists(POINTS, min_size=1, max_size=3), st.lists(st.integers(1, 9), min_size=3, max_size=3)
)
def test_what_is_granted_is_within_one_step_of_the_best_there_is(jobs, worth):
    concave = []
    for points in jobs:
        cost, speed = np.array(points, dtype=float).T
        (steps,) = concave_hulls(cost[None], speed[None], np.zeros((1, 2)))
        concave.append(stairs(*((float(cost[n]), float(speed[n])) for n in steps)))
    got = [
        steps[at] if at != NO_STEP else None
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
    assert sold([stairs((5, 100)), stairs((1, 1))], [1.0, 1.0], 2.0) == [NO_STEP, 0]


def test_whose_step_does_not_fit_gets_none_after_it():
    big_then_small = stairs((1, 10), (9, 50), (10, 51))
    assert sold([big_then_small], [1.0], 5.0) == [0]


def test_who_is_first_has_its_floor_whatever_others_offer():
    assert sold([stairs((2, 1)), stairs((2, 100))], [1.0, 1.0], 2.0, first=(0,)) == [0, NO_STEP]


def test_a_step_that_has_to_leave_something_leaves_it_and_others_may_take_it():
    side_by_side = Staircases.from_configs([stairs((1, 10), (3, 20)), stairs((1, 1))])
    second = np.array([[False, True], [False, False]])
    leaves = ReservedRoom(second, np.array([[1.0, 0.0, 0.0], [9.0, 9.0, 9.0]]))
    got = [
        grant_steps(side_by_side, slopes(side_by_side), room(cpu), (), leaves).tolist()
        for cpu in (3.0, 4.0, 5.0)
    ]
    assert got == [[0, 0], [1, 0], [1, 0]]


def test_no_resource_is_given_twice():
    wide = [Config(0, 1, 1, 1.0, 8.0, 1.0, 0.5, 10.0)]
    side_by_side = Staircases.from_configs([wide, wide])
    for there in ([9.0, 9.0, 9.0], [9.0, 99.0, 1.0], [1.0, 99.0, 9.0]):
        assert sorted(
            grant_steps(side_by_side, slopes(side_by_side), np.array(there)).tolist()
        ) == [
            NO_STEP,
            0,
        ]


def test_whose_purse_is_empty_takes_nothing_from_the_room_that_all_share():
    """Two of one purse, which holds two cores, and one of none: the dearest of the purse, and the
    other.
    """
    jobs = [stairs((1, 100), (3, 200)), stairs((1, 90)), stairs((1, 1))]
    side_by_side = Staircases.from_configs(jobs, (0, 0, -1))
    rooms = np.concatenate([room(9.0), np.array([2.0, np.inf, np.inf])])
    assert grant_steps(side_by_side, slopes(side_by_side), rooms).tolist() == [0, 0, 0]


WORTH = st.lists(st.integers(1, 9), min_size=3, max_size=3)


def stairs_test_hindrance(*cores: float) -> list[Config]:
    """Each core is as fast as any other."""
    return [Config(1, n + 1, 32, cpu, 0.0, 0.0, cpu, cpu) for n, cpu in enumerate(cores)]


def hindered(
    jobs: list[list[Config]],
    worth: list[float],
    cpu: float,
    runs: tuple[int, ...] = (),
    spare: float = 0.0,
) -> list[BlockReason | None]:
    side_by_side, room = Staircases.from_configs(jobs), np.array([cpu, 0.0, 0.0])
    offers = side_by_side.gain_per_cost(side_by_side.speeds) * np.array(worth)[:, None]
    grows = side_by_side.exists & (np.arange(offers.shape[1]) > 0)
    leaves = ReservedRoom(grows, np.tile([spare, 0.0, 0.0], (len(jobs), 1)))
    given = grant_steps(side_by_side, offers, room, runs, leaves)
    return block_reasons(side_by_side, offers, room, given, runs)


def test_at_the_top_nothing_hinders():
    assert hindered([stairs_test_hindrance(1.0, 2.0)], [1.0], 2.0) == [None]


def test_alone_it_lacks_what_the_nodes_lack():
    assert hindered([stairs_test_hindrance(1.0, 2.0)], [1.0], 1.75) == [
        BlockReason("room", (0.25, 0.0, 0.0))
    ]
    assert hindered([stairs_test_hindrance(1.0, 2.0)], [1.0], 0.5) == [
        BlockReason("room", (0.5, 0.0, 0.0))
    ]


def test_what_others_have_beyond_their_least_is_worth_more_to_them():
    one, other = hindered(
        [stairs_test_hindrance(1.0, 2.0), stairs_test_hindrance(1.0, 2.0)],
        [1.0, 2.0],
        3.5,
        runs=(0, 1),
    )
    assert (one, other) == (BlockReason("others"), None)


def test_the_least_of_those_that_run_is_nobody_elses():
    assert hindered(
        [stairs_test_hindrance(1.0, 2.0), stairs_test_hindrance(1.0)], [1.0, 2.0], 2.75, runs=(0, 1)
    )[0] == BlockReason("room", (0.25, 0.0, 0.0))


def test_what_would_start_might_have_waited():
    assert hindered(
        [stairs_test_hindrance(1.0, 2.0), stairs_test_hindrance(1.0)], [1.0, 2.0], 2.75, runs=(0,)
    )[0] == BlockReason("others")


def test_what_is_there_and_not_to_be_had():
    assert hindered([stairs_test_hindrance(1.0, 2.0)], [1.0], 2.5, spare=1.0) == [
        BlockReason("next")
    ]


def test_who_has_just_paused_is_not_to_pause_again():
    side_by_side, offers = (
        Staircases.from_configs([stairs_test_hindrance(1.0, 2.0)]),
        np.array([[1.0, -np.inf]]),
    )
    room = np.array([4.0, 0.0, 0.0])
    assert block_reasons(side_by_side, offers, room, np.array([0]), [0]) == [BlockReason("pause")]


def test_of_a_spent_quota_is_told_what_of_it_lacks():
    side_by_side, room = (
        Staircases.from_configs([stairs_test_hindrance(1.0, 2.0)], [0]),
        np.array([4.0, 0.0, 0.0, 1.75, 0.0, 0.0]),
    )
    found = block_reasons(side_by_side, np.ones((1, 2)), room, np.array([0]), [0])
    assert found == [BlockReason("quota", (0.25, 0.0, 0.0))]


def test_who_waits_lacks_all_of_its_least_where_nothing_is_left():
    assert block_reasons(
        Staircases.from_configs([stairs_test_hindrance(1.0)]),
        np.ones((1, 1)),
        np.zeros(3),
        np.array([NO_STEP]),
        [],
    ) == [BlockReason("room", (1.0, 0.0, 0.0))]


@given(st.lists(st.integers(1, 8), min_size=3, max_size=3), WORTH, st.integers(0, 20))
def test_with_so_much_more_as_lacks_somebody_gets_more(tops, worth, cpu):
    jobs = [stairs_test_hindrance(*(float(n) for n in range(1, top + 1))) for top in tops]
    before = granted_in(jobs, worth, cpu)
    for lacks in filter(None, hindered(jobs, worth, float(cpu))):
        assert (lacks.short[0] > 0.0) == (lacks.cause == "room")
        assert lacks.cause == "others" or sum(granted_in(jobs, worth, cpu + lacks.short[0])) > sum(
            before
        )


def granted_in(jobs: list[list[Config]], worth: list[int], cpu: float) -> list[int]:
    side_by_side = Staircases.from_configs(jobs)
    offers = side_by_side.gain_per_cost(side_by_side.speeds) * np.array(worth)[:, None]
    return grant_steps(side_by_side, offers, np.array([cpu, 0.0, 0.0])).tolist()
