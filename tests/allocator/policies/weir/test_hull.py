"""The staircase of a job's configurations."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.allocator.policies.weir.hull import ALIKE, hulls

Point = tuple[float, float]


def on_hull(points: list[Point]) -> list[Point]:
    cost, speed = np.array(points, dtype=float).reshape(1, -1, 2).transpose(2, 0, 1)
    return [points[n] for n in hulls(cost, speed, np.zeros((1, 2)))[0]]


POINTS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 100)), max_size=12)


def test_what_costs_more_and_is_no_faster_is_left_out():
    assert on_hull([(1, 5), (2, 5), (3, 4)]) == [(1, 5)]


def test_a_step_that_pays_only_together_with_the_next_is_taken_with_it():
    assert on_hull([(1, 1), (2, 10), (3, 12)]) == [(2, 10), (3, 12)]


def test_a_straight_line_keeps_its_points():
    assert len(on_hull([(n, 10.0 * n) for n in range(1, 6)])) == 5


def test_a_job_that_never_moves_has_no_hull():
    assert on_hull([(1, 0.0)]) == []


@given(POINTS)
def test_each_step_gains_less_for_its_cost_or_alike_and_nothing_lies_above(points):
    found = on_hull([(float(c), float(s)) for c, s in points])
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise([(0.0, 0.0), *found])]
    assert all(later <= earlier * ALIKE + 1e-9 for earlier, later in pairwise(slopes))
    for cost, speed in points:
        assert speed <= _height(found, cost) * ALIKE ** len(found) + 1e-9


def _height(found: list[Point], cost: float) -> float:
    for before, step in pairwise([(0.0, 0.0), *found]):
        if step[0] >= cost:
            return before[1] + (step[1] - before[1]) * (cost - before[0]) / (step[0] - before[0])
    return found[-1][1] if found else 0.0
