"""The staircase of a job's configurations, and how room is shared along it."""

from __future__ import annotations

from itertools import pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from services.allocator.hull import ALIKE, Config, hull, shared
from services.allocator.placement import Size
from shared.messages import Resources


def config(cost: float, speed: float, workers: int = 1) -> Config:
    return Config(Size(1, workers), 32, Resources(cpu=cost), cost, speed)


POINTS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 100)), max_size=12)


def test_what_costs_more_and_is_no_faster_is_left_out():
    assert hull([config(1, 5), config(2, 5), config(3, 4)]) == [config(1, 5)]


def test_a_step_that_pays_only_together_with_the_next_is_taken_with_it():
    assert hull([config(1, 1), config(2, 10), config(3, 12)]) == [config(2, 10), config(3, 12)]


def test_a_straight_line_keeps_its_points():
    assert len(hull([config(n, 10.0 * n) for n in range(1, 6)])) == 5


def test_a_job_that_never_moves_has_no_hull():
    assert hull([config(1, 0.0)]) == []


@given(POINTS)
def test_each_step_gains_less_for_its_cost_or_alike_and_nothing_lies_above(points):
    found = hull([config(float(c), float(s)) for c, s in points])
    slopes = [
        (b.speed - a[1]) / (b.cost - a[0])
        for a, b in zip([(0.0, 0.0), *((f.cost, f.speed) for f in found)], found, strict=False)
    ]
    assert all(later <= earlier * ALIKE + 1e-9 for earlier, later in pairwise(slopes))
    for cost, speed in points:
        assert speed <= _height(found, cost) * ALIKE ** len(found) + 1e-9


def _height(found: list[Config], cost: float) -> float:
    before = (0.0, 0.0)
    for step in found:
        if step.cost >= cost:
            return before[1] + (step.speed - before[1]) * (cost - before[0]) / (step.cost - before[0])
        before = (step.cost, step.speed)
    return before[1]


@given(st.lists(POINTS.filter(bool), min_size=1, max_size=3), st.lists(st.integers(1, 9), min_size=3, max_size=3))
def test_sharing_is_within_one_step_of_the_best_there_is(jobs, worth):
    hulls = {str(n): hull([config(float(c), float(s)) for c, s in points]) for n, points in enumerate(jobs)}
    prices = {str(n): float(worth[n]) for n in range(len(jobs))}
    given = shared(hulls, prices, Resources(cpu=40.0))
    got = sum(prices[job] * c.speed for job, c in given.items())
    assert sum(c.cost for c in given.values()) <= 40.0 + 1e-6
    best = max(
        sum(prices[job] * c.speed for job, c in zip(hulls, chosen, strict=True) if c)
        for chosen in product(*([None, *steps] for steps in hulls.values()))
        if sum(c.cost for c in chosen if c) <= 40.0
    )
    largest = max((prices[job] * c.speed for job, steps in hulls.items() for c in steps), default=0.0)
    assert got >= best - largest - 1e-6


def test_room_that_is_too_small_for_one_goes_to_the_next():
    hulls = {"large": [config(5, 100)], "small": [config(1, 1)]}
    assert set(shared(hulls, {"large": 1.0, "small": 1.0}, Resources(cpu=2.0))) == {"small"}
