"""Variables go largest first to the emptiest ps."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from services.trainer.placing import PlacementPlan, largest_first


def fullest(sizes: list[int], chosen: tuple[int, ...] | list[int], bins: int) -> int:
    return max(sum(s for s, c in zip(sizes, chosen, strict=True) if c == b) for b in range(bins))


def test_kernels_and_biases_in_turn_do_not_end_on_one_ps_each() -> None:
    assert largest_first([1000, 10, 1000, 10], 2) == [0, 0, 1, 1]


def test_one_large_variable_has_a_ps_for_itself() -> None:
    assert largest_first([10, 10, 1000, 10], 2) == [1, 1, 0, 1]


def test_ties_go_to_the_lower_index_so_that_everybody_agrees() -> None:
    assert largest_first([5, 5, 5, 5], 3) == [0, 1, 2, 0]


def test_empty_variables_are_spread_as_well() -> None:
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
def test_every_variable_has_a_place_and_no_ps_is_spared_what_another_could_give(
    sizes: list[int], bins: int
) -> None:
    chosen = largest_first(sizes, bins)

    assert len(chosen) == len(sizes) and set(chosen) <= set(range(bins))
    assert len(set(chosen)) == min(len(sizes), bins)


def created(plan: PlacementPlan, sizes: list[int]) -> list[int]:
    """Where variables of these sizes go, created in this order."""
    chosen = []
    for size in sizes:
        chosen.append(plan.next_place())
        plan.record_size(chosen[-1], size)
    return chosen


@given(st.lists(st.integers(0, 1 << 30), max_size=30), st.integers(1, 8))
def test_variables_that_are_created_as_before_go_largest_first(sizes: list[int], bins: int) -> None:
    assert created(PlacementPlan(sizes, bins), sizes) == largest_first(sizes, bins)


def test_variables_that_were_not_there_before_go_to_the_emptiest_ps() -> None:
    assert created(PlacementPlan([100, 60], 2), [100, 60, 30, 30, 1]) == [0, 1, 1, 1, 0]


def test_after_one_that_was_not_there_before_the_others_have_their_places() -> None:
    sizes = [1000, 10, 1000, 10]

    assert created(PlacementPlan(sizes, 2), [7, *sizes])[1:] == largest_first(sizes, 2)


def test_after_one_that_is_missing_the_others_have_their_places() -> None:
    sizes = [10, 1000, 20, 900]

    assert created(PlacementPlan(sizes, 2), [1000, 20, 900])[1:] == largest_first(sizes, 2)[2:]


@given(
    st.lists(st.integers(0, 50), max_size=12),
    st.lists(st.integers(0, 50), max_size=12),
    st.integers(1, 4),
)
def test_whatever_is_created_there_is_a_place(
    expected: list[int], sizes: list[int], bins: int
) -> None:
    assert all(0 <= place < bins for place in created(PlacementPlan(expected, bins), sizes))
