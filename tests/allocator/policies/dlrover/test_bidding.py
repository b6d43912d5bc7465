"""Tests of the bids of jobs: the candidate plans of a job, and the plan that it is granted."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from services.allocator.placement.amounts import ROUNDING
from services.allocator.policies.contract import Plan, Size
from services.allocator.policies.dlrover.bidding import (
    LEAST_ELASTICITY,
    REACH_FACTOR,
    Bid,
    pareto_front,
    plan_space,
    weighted_greedy,
)

LEAST, MOST = Size(1, 1), Size(15, 60)


def bid(*steps: tuple[float, float], weight: float = 1.0, gib: float = 0.0) -> Bid:
    """Return a bid whose candidates are (cost, throughput); the cost is in cores."""
    cost, speed = np.array(steps, dtype=float).T
    plans = np.ones((len(steps), 4))
    return Bid(
        plans=plans,
        speed=speed,
        cost=cost,
        cpu=cost,
        gib=gib * cost,
        weight=weight,
        now=(speed[0], cost[0]),
    )


# ---------------------------------------------------------------- candidate plans


def test_candidate_plans_include_the_current_one_and_steps_in_each_direction():
    plans = plan_space(Plan(4, 8, 2.0, 3.0), LEAST, MOST).on_nodes(32).plans()
    assert [4, 8, 2.0, 3.0] in plans.tolist() and len(np.unique(plans, axis=0)) == len(plans)
    assert (plans.min(axis=0) < [4, 8, 2, 3]).all() and (plans.max(axis=0) > [4, 8, 2, 3]).all()


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 15), st.integers(1, 60), st.floats(0.1, 16), st.floats(0.1, 16), st.floats(1, 32)
)
def test_candidate_plans_are_within_bounds_and_near(ps, workers, ps_cpu, worker_cpu, node_cpu):
    plans = (
        plan_space(Plan(ps, workers, ps_cpu, worker_cpu), LEAST, MOST).on_nodes(node_cpu).plans()
    )
    assert (
        (plans[:, :2] >= 1).all()
        and (plans[:, 0] <= MOST.ps).all()
        and (plans[:, 1] <= MOST.workers).all()
    )
    assert (plans[:, :2] == np.round(plans[:, :2])).all() and (
        plans[:, :2] <= REACH_FACTOR * np.array([ps, workers])
    ).all()
    assert (plans[:, 2:] > 0).all() and (plans[:, 2:] <= node_cpu + ROUNDING).all()


def test_a_job_outside_its_bounds_is_brought_back():
    plans = plan_space(Plan(100, 1, 2.0, 3.0), Size(2, 3), Size(8, 12)).plans()
    assert plans[:, 0].tolist() == [8.0] * len(plans) and plans[:, 1].min() >= 3


# ---------------------------------------------------------------- Pareto front


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=30))
def test_the_pareto_front_has_only_undominated_plans(points):
    cost, gain = np.array(points, dtype=float).T

    def beaten(one: tuple[int, int]) -> bool:
        return any(c <= one[0] and g >= one[1] and (c, g) != one for c, g in points)

    kept = [points[i] for i in pareto_front(cost, gain)]
    assert kept == sorted({one for one in points if not beaten(one)})


# ---------------------------------------------------------------- grants


def test_capacity_goes_to_the_largest_gain():
    steep, flat = bid((2, 100), (4, 190)), bid((2, 100), (4, 150))
    assert weighted_greedy({"flat": flat, "steep": steep}, cpu=2, gib=0) == {"flat": 0, "steep": 1}
    assert weighted_greedy({"flat": flat, "steep": steep}, cpu=4, gib=0) == {"flat": 1, "steep": 1}


def test_gain_is_relative_to_the_jobs_own_throughput():
    """A model that trains a thousand times as fast does not have a thousand times the gain."""
    fast, slow = bid((2, 100_000), (4, 150_000)), bid((2, 100), (4, 190))
    assert weighted_greedy({"fast": fast, "slow": slow}, cpu=2, gib=0) == {"fast": 0, "slow": 1}


def test_weight_decides_between_equals():
    light, heavy = bid((2, 100), (4, 190)), bid((2, 100), (4, 190), weight=2.0)
    assert weighted_greedy({"a": light, "b": heavy}, cpu=2, gib=0) == {"a": 0, "b": 1}


def test_capacity_with_too_little_gain_stays_free():
    below, above = (LEAST_ELASTICITY * f for f in (0.9, 1.1))
    assert weighted_greedy({"j": bid((2, 100), (4, 100 * (1 + below)))}, cpu=100, gib=0) == {"j": 0}
    assert weighted_greedy({"j": bid((2, 100), (4, 100 * (1 + above)))}, cpu=100, gib=0) == {"j": 1}


def test_a_job_whose_best_step_does_not_fit_gets_a_fitting_one():
    three = bid((2, 100), (3, 130), (9, 800))
    assert weighted_greedy({"j": three}, cpu=7, gib=0) == {"j": 2}
    assert weighted_greedy({"j": three}, cpu=6, gib=0) == {"j": 1}


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=6), min_size=1, max_size=6),
    st.floats(0, 40),
    st.floats(0, 20),
    st.integers(0, 9),
)
def test_grants_never_exceed_the_capacity(rises, cpu, gib, seed):
    chance = np.random.default_rng(seed)
    bids = {
        f"{n}": bid(
            *zip(np.cumsum(rise), np.cumsum(chance.uniform(1, 50, len(rise))), strict=True), gib=0.5
        )
        for n, rise in enumerate(rises)
    }
    at = weighted_greedy(bids, cpu, gib)
    more = sum(bids[key].cpu[to] - bids[key].cpu[0] for key, to in at.items())
    assert at.keys() == bids.keys() and more <= cpu + 1e-9 and 0.5 * more <= gib + 1e-9


def test_a_job_alone_takes_every_step_that_pays():
    rising = bid(*((c, 100 * c**0.9) for c in range(1, 12)))
    assert weighted_greedy({"j": rising}, cpu=1000, gib=0) == {"j": len(rising.cost) - 1}
    assert weighted_greedy({}, cpu=1000, gib=0) == {}
    assert weighted_greedy({"j": rising}, cpu=0, gib=0) == {"j": 0}
