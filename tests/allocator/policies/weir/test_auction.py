"""Tests of the auction: the steps that jobs are granted, and the reason against the next one."""

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
    """Return steps of (cost, speed); the cost is also the number of cores."""
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
def test_the_auction_is_within_one_step_of_the_optimum(jobs, worth):
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


def test_capacity_too_small_for_one_job_goes_to_the_next():
    assert sold([stairs((5, 100)), stairs((1, 1))], [1.0, 1.0], 2.0) == [NO_STEP, 0]


def test_a_job_whose_step_does_not_fit_gets_no_later_step():
    big_then_small = stairs((1, 10), (9, 50), (10, 51))
    assert sold([big_then_small], [1.0], 5.0) == [0]


def test_the_first_job_gets_its_floor_for_any_offers():
    assert sold([stairs((2, 1)), stairs((2, 100))], [1.0, 1.0], 2.0, first=(0,)) == [0, NO_STEP]


def test_a_reserve_left_by_one_step_is_available_to_others():
    side_by_side = Staircases.from_configs([stairs((1, 10), (3, 20)), stairs((1, 1))])
    second = np.array([[False, True], [False, False]])
    leaves = ReservedRoom(second, np.array([[1.0, 0.0, 0.0], [9.0, 9.0, 9.0]]))
    got = [
        grant_steps(side_by_side, slopes(side_by_side), room(cpu), (), leaves).tolist()
        for cpu in (3.0, 4.0, 5.0)
    ]
    assert got == [[0, 0], [1, 0], [1, 0]]


def test_no_resource_is_granted_twice():
    wide = [Config(0, 1, 1, 1.0, 8.0, 1.0, 0.5, 10.0)]
    side_by_side = Staircases.from_configs([wide, wide])
    for there in ([9.0, 9.0, 9.0], [9.0, 99.0, 1.0], [1.0, 99.0, 9.0]):
        assert sorted(
            grant_steps(side_by_side, slopes(side_by_side), np.array(there)).tolist()
        ) == [
            NO_STEP,
            0,
        ]


def test_a_job_with_a_spent_quota_takes_no_shared_capacity():
    """Two jobs share a quota of two cores, and the third job has no quota.

    The quota has no room for the second step of the first job.
    """
    jobs = [stairs((1, 100), (3, 200)), stairs((1, 90)), stairs((1, 1))]
    side_by_side = Staircases.from_configs(jobs, (0, 0, -1))
    rooms = np.concatenate([room(9.0), np.array([2.0, np.inf, np.inf])])
    assert grant_steps(side_by_side, slopes(side_by_side), rooms).tolist() == [0, 0, 0]


WORTH = st.lists(st.integers(1, 9), min_size=3, max_size=3)


def stairs_test_hindrance(*cores: float) -> list[Config]:
    """Return steps with these cores; the speed is proportional to the cores."""
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


def test_a_job_at_its_last_step_has_no_block_reason():
    assert hindered([stairs_test_hindrance(1.0, 2.0)], [1.0], 2.0) == [None]


def test_a_job_alone_is_blocked_by_the_nodes():
    assert hindered([stairs_test_hindrance(1.0, 2.0)], [1.0], 1.75) == [
        BlockReason("room", (0.25, 0.0, 0.0))
    ]
    assert hindered([stairs_test_hindrance(1.0, 2.0)], [1.0], 0.5) == [
        BlockReason("room", (0.5, 0.0, 0.0))
    ]


def test_a_job_is_blocked_by_others_above_their_floor():
    one, other = hindered(
        [stairs_test_hindrance(1.0, 2.0), stairs_test_hindrance(1.0, 2.0)],
        [1.0, 2.0],
        3.5,
        runs=(0, 1),
    )
    assert (one, other) == (BlockReason("others"), None)


def test_the_floors_of_running_jobs_are_not_available():
    assert hindered(
        [stairs_test_hindrance(1.0, 2.0), stairs_test_hindrance(1.0)], [1.0, 2.0], 2.75, runs=(0, 1)
    )[0] == BlockReason("room", (0.25, 0.0, 0.0))


def test_a_starting_job_can_block_another():
    assert hindered(
        [stairs_test_hindrance(1.0, 2.0), stairs_test_hindrance(1.0)], [1.0, 2.0], 2.75, runs=(0,)
    )[0] == BlockReason("others")


def test_reserved_capacity_is_a_block_reason():
    assert hindered([stairs_test_hindrance(1.0, 2.0)], [1.0], 2.5, spare=1.0) == [
        BlockReason("next")
    ]


def test_a_recent_pause_is_a_block_reason():
    side_by_side, offers = (
        Staircases.from_configs([stairs_test_hindrance(1.0, 2.0)]),
        np.array([[1.0, -np.inf]]),
    )
    room = np.array([4.0, 0.0, 0.0])
    assert block_reasons(side_by_side, offers, room, np.array([0]), [0]) == [BlockReason("pause")]


def test_a_spent_quota_has_its_missing_amount():
    side_by_side, room = (
        Staircases.from_configs([stairs_test_hindrance(1.0, 2.0)], [0]),
        np.array([4.0, 0.0, 0.0, 1.75, 0.0, 0.0]),
    )
    found = block_reasons(side_by_side, np.ones((1, 2)), room, np.array([0]), [0])
    assert found == [BlockReason("quota", (0.25, 0.0, 0.0))]


def test_a_waiting_job_without_capacity_lacks_its_whole_floor():
    assert block_reasons(
        Staircases.from_configs([stairs_test_hindrance(1.0)]),
        np.ones((1, 1)),
        np.zeros(3),
        np.array([NO_STEP]),
        [],
    ) == [BlockReason("room", (1.0, 0.0, 0.0))]


@given(st.lists(st.integers(1, 8), min_size=3, max_size=3), WORTH, st.integers(0, 20))
def test_the_missing_amount_suffices_for_a_grant(tops, worth, cpu):
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
