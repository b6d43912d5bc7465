"""Variables go largest first to the emptiest ps."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from services.trainer.placing import largest_first


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
def test_the_fullest_ps_holds_at_most_four_thirds_of_the_best_possible(sizes: list[int], bins: int) -> None:
    best = min(fullest(sizes, chosen, bins) for chosen in product(range(bins), repeat=len(sizes)))

    assert fullest(sizes, largest_first(sizes, bins), bins) <= best * (4 / 3 - 1 / (3 * bins)) + 1e-9


@given(st.lists(st.integers(0, 1 << 30), max_size=50), st.integers(1, 16))
def test_every_variable_has_a_place_and_no_ps_is_spared_what_another_could_give(sizes: list[int], bins: int) -> None:
    chosen = largest_first(sizes, bins)

    assert len(chosen) == len(sizes) and set(chosen) <= set(range(bins))
    assert len(set(chosen)) == min(len(sizes), bins)
