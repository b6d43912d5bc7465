"""The smallest number that helps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.allocator.placement.amounts import smallest_enough


@given(st.integers(0, 3000), st.integers(0, 2000))
def test_the_smallest_solution_is_found(most: int, edge: int) -> None:
    assert smallest_enough(most, lambda n: n >= edge) == (edge if edge <= most else None)


def test_bisection_needs_a_logarithmic_number_of_calls() -> None:
    asked: list[int] = []

    def holds(n: int) -> bool:
        asked.append(n)
        return n >= 700

    assert smallest_enough(1000, holds) == 700 and len(asked) <= 22 and max(asked) <= 1000


@pytest.mark.parametrize("holes", [{3}, {5, 6}, {9}])
def test_for_a_non_monotonic_predicate_the_result_holds_and_one_less_does_not(
    holes: set[int],
) -> None:
    def holds(n: int) -> bool:
        return n >= 2 and n not in holes

    found = smallest_enough(64, holds)
    assert found is not None and holds(found) and not holds(found - 1)
