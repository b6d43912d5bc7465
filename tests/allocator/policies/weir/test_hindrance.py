"""Why a job gets no step more than it does."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.allocator.policies.weir.auction import NONE, Leaves, Stairs, granted
from services.allocator.policies.weir.hindrance import Hindrance, hindrances
from services.allocator.policies.weir.hull import Config

WORTH = st.lists(st.integers(1, 9), min_size=3, max_size=3)


def stairs(*cores: float) -> list[Config]:
    """Each core is as fast as any other."""
    return [Config(1, n + 1, 32, cpu, 0.0, 0.0, cpu, cpu) for n, cpu in enumerate(cores)]


def hindered(
    jobs: list[list[Config]],
    worth: list[float],
    cpu: float,
    runs: tuple[int, ...] = (),
    spare: float = 0.0,
) -> list[Hindrance | None]:
    side_by_side, room = Stairs.of(jobs), np.array([cpu, 0.0, 0.0])
    offers = side_by_side.slopes(side_by_side.speeds) * np.array(worth)[:, None]
    grows = side_by_side.there & (np.arange(offers.shape[1]) > 0)
    leaves = Leaves(grows, np.tile([spare, 0.0, 0.0], (len(jobs), 1)))
    given = granted(side_by_side, offers, room, runs, leaves)
    return hindrances(side_by_side, offers, room, given, runs)


def test_at_the_top_nothing_hinders():
    assert hindered([stairs(1.0, 2.0)], [1.0], 2.0) == [None]


def test_alone_it_lacks_what_the_nodes_lack():
    assert hindered([stairs(1.0, 2.0)], [1.0], 1.75) == [Hindrance("room", (0.25, 0.0, 0.0))]
    assert hindered([stairs(1.0, 2.0)], [1.0], 0.5) == [Hindrance("room", (0.5, 0.0, 0.0))]


def test_what_others_have_beyond_their_least_is_worth_more_to_them():
    one, other = hindered([stairs(1.0, 2.0), stairs(1.0, 2.0)], [1.0, 2.0], 3.5, runs=(0, 1))
    assert (one, other) == (Hindrance("others"), None)


def test_the_least_of_those_that_run_is_nobody_elses():
    assert hindered([stairs(1.0, 2.0), stairs(1.0)], [1.0, 2.0], 2.75, runs=(0, 1))[0] == Hindrance(
        "room", (0.25, 0.0, 0.0)
    )


def test_what_would_start_might_have_waited():
    assert hindered([stairs(1.0, 2.0), stairs(1.0)], [1.0, 2.0], 2.75, runs=(0,))[0] == Hindrance(
        "others"
    )


def test_what_is_there_and_not_to_be_had():
    assert hindered([stairs(1.0, 2.0)], [1.0], 2.5, spare=1.0) == [Hindrance("next")]


def test_who_has_just_paused_is_not_to_pause_again():
    side_by_side, offers = Stairs.of([stairs(1.0, 2.0)]), np.array([[1.0, -np.inf]])
    room = np.array([4.0, 0.0, 0.0])
    assert hindrances(side_by_side, offers, room, np.array([0]), [0]) == [Hindrance("pause")]


def test_of_a_spent_quota_is_told_what_of_it_lacks():
    side_by_side, room = (
        Stairs.of([stairs(1.0, 2.0)], [0]),
        np.array([4.0, 0.0, 0.0, 1.75, 0.0, 0.0]),
    )
    found = hindrances(side_by_side, np.ones((1, 2)), room, np.array([0]), [0])
    assert found == [Hindrance("quota", (0.25, 0.0, 0.0))]


def test_who_waits_lacks_all_of_its_least_where_nothing_is_left():
    assert hindrances(
        Stairs.of([stairs(1.0)]), np.ones((1, 1)), np.zeros(3), np.array([NONE]), []
    ) == [Hindrance("room", (1.0, 0.0, 0.0))]


@given(st.lists(st.integers(1, 8), min_size=3, max_size=3), WORTH, st.integers(0, 20))
def test_with_so_much_more_as_lacks_somebody_gets_more(tops, worth, cpu):
    jobs = [stairs(*(float(n) for n in range(1, top + 1))) for top in tops]
    before = granted_in(jobs, worth, cpu)
    for lacks in filter(None, hindered(jobs, worth, float(cpu))):
        assert (lacks.short[0] > 0.0) == (lacks.cause == "room")
        assert lacks.cause == "others" or sum(granted_in(jobs, worth, cpu + lacks.short[0])) > sum(
            before
        )


def granted_in(jobs: list[list[Config]], worth: list[int], cpu: float) -> list[int]:
    side_by_side = Stairs.of(jobs)
    offers = side_by_side.slopes(side_by_side.speeds) * np.array(worth)[:, None]
    return granted(side_by_side, offers, np.array([cpu, 0.0, 0.0])).tolist()
