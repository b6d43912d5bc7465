"""Tests of placement, passes and learning rates.

Variables are placed largest first on the emptiest ps. The batches of an update are cut into passes
that a device holds; their shares give the mean of the batches. The learning rate follows the batch
by its rule, and the number of workers by stability.
"""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.worker.scaling import (
    PlacementPlan,
    has_several_passes,
    largest_first,
    rate_for_batch,
    rate_for_workers,
    stability_bound,
)


def fullest(sizes: list[int], chosen: tuple[int, ...] | list[int], bins: int) -> int:
    return max(sum(s for s, c in zip(sizes, chosen, strict=True) if c == b) for b in range(bins))


def test_alternating_large_and_small_variables_are_balanced() -> None:
    assert largest_first([1000, 10, 1000, 10], 2) == [0, 0, 1, 1]


def test_a_large_variable_has_its_own_ps() -> None:
    assert largest_first([10, 10, 1000, 10], 2) == [1, 1, 0, 1]


def test_ties_go_to_the_lower_index() -> None:
    assert largest_first([5, 5, 5, 5], 3) == [0, 1, 2, 0]


def test_empty_variables_are_spread() -> None:
    assert set(largest_first([0, 0, 0], 3)) == {0, 1, 2}


def test_with_fewer_variables_than_ps_some_ps_hold_nothing() -> None:
    assert largest_first([7], 4) == [0]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=7), st.integers(1, 3))
def test_the_fullest_ps_holds_at_most_four_thirds_of_the_best_possible(
    sizes: list[int], bins: int
) -> None:
    best = min(fullest(sizes, chosen, bins) for chosen in product(range(bins), repeat=len(sizes)))

    assert (
        fullest(sizes, largest_first(sizes, bins), bins) <= best * (4 / 3 - 1 / (3 * bins)) + 1e-9
    )


@given(st.lists(st.integers(0, 1 << 30), max_size=50), st.integers(1, 16))
def test_every_variable_is_placed_and_no_move_improves_the_balance(
    sizes: list[int], bins: int
) -> None:
    chosen = largest_first(sizes, bins)

    assert len(chosen) == len(sizes) and set(chosen) <= set(range(bins))
    assert len(set(chosen)) == min(len(sizes), bins)


def created(plan: PlacementPlan, sizes: list[int]) -> list[int]:
    """Return the ps of each of these variables, created in this order."""
    chosen = []
    for size in sizes:
        chosen.append(plan.next_place())
        plan.record_size(chosen[-1], size)
    return chosen


@given(st.lists(st.integers(0, 1 << 30), max_size=30), st.integers(1, 8))
def test_known_variables_are_placed_largest_first(sizes: list[int], bins: int) -> None:
    assert created(PlacementPlan(sizes, bins), sizes) == largest_first(sizes, bins)


def test_new_variables_go_to_the_emptiest_ps() -> None:
    assert created(PlacementPlan([100, 60], 2), [100, 60, 30, 30, 1]) == [0, 1, 1, 1, 0]


def test_after_a_new_variable_the_others_keep_their_places() -> None:
    sizes = [1000, 10, 1000, 10]

    assert created(PlacementPlan(sizes, 2), [7, *sizes])[1:] == largest_first(sizes, 2)


def test_after_a_missing_variable_the_others_keep_their_places() -> None:
    sizes = [10, 1000, 20, 900]

    assert created(PlacementPlan(sizes, 2), [1000, 20, 900])[1:] == largest_first(sizes, 2)[2:]


@given(
    st.lists(st.integers(0, 50), max_size=12),
    st.lists(st.integers(0, 50), max_size=12),
    st.integers(1, 4),
)
def test_any_variable_gets_a_place(expected: list[int], sizes: list[int], bins: int) -> None:
    assert all(0 <= place < bins for place in created(PlacementPlan(expected, bins), sizes))


@pytest.mark.parametrize(
    ("accumulated", "batch", "most", "several"),
    [(1, 32, None, False), (1, 32, 32, False), (1, 33, 32, True), (2, 32, None, True)],
)
def test_several_passes_are_predicted(
    accumulated: int, batch: int, most: int | None, several: bool
) -> None:
    assert has_several_passes(accumulated, batch, most) is several


def diverges(rate: float, delay: int) -> bool:
    """Return whether x' = x - rate * x[-delay] diverges."""
    past = [1.0] * (delay + 1)
    for _ in range(20_000):
        past.append(past[-1] - rate * past[-1 - delay])
        if abs(past[-1]) > 1e3:
            return True
    return False


@pytest.mark.parametrize("workers", [1, 2, 3, 6, 12])
def test_the_stability_bound_separates_convergence_from_divergence(workers: int) -> None:
    assert not diverges(stability_bound(workers) * 0.97, workers - 1)
    assert diverges(stability_bound(workers) * 1.03, workers - 1)


def test_the_rate_is_the_users_up_to_the_starting_number_of_workers() -> None:
    assert rate_for_workers("stable", 4, 4) == rate_for_workers("stable", 2, 4) == 1.0


def test_the_rate_falls_with_more_workers_unless_the_rule_is_keep() -> None:
    assert rate_for_workers("stable", 6, 1) == pytest.approx(0.142, abs=0.001)
    assert rate_for_workers("keep", 6, 1) == 1.0


def test_the_rate_follows_the_batch_by_its_rule() -> None:
    assert [rate_for_batch(rule, 64, 16) for rule in ("keep", "linear", "sqrt")] == [1.0, 4.0, 2.0]
