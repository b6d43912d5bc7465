"""The learning rate follows the batch by rule, and the workers by stability."""

from __future__ import annotations

import pytest

from services.trainer.rate import bound, of_batch, of_workers


def diverges(rate: float, delay: int) -> bool:
    """Whether x' = x - rate * x[-delay] runs away."""
    past = [1.0] * (delay + 1)
    for _ in range(20_000):
        past.append(past[-1] - rate * past[-1 - delay])
        if abs(past[-1]) > 1e3:
            return True
    return False


@pytest.mark.parametrize("workers", [1, 2, 3, 6, 12])
def test_the_bound_parts_what_settles_from_what_runs_away(workers: int) -> None:
    assert not diverges(bound(workers) * 0.97, workers - 1)
    assert diverges(bound(workers) * 1.03, workers - 1)


def test_the_rate_is_the_users_with_as_many_workers_as_at_the_start_or_fewer() -> None:
    assert of_workers("stable", 4, 4) == of_workers("stable", 2, 4) == 1.0


def test_the_rate_falls_with_more_workers_unless_it_is_to_be_kept() -> None:
    assert of_workers("stable", 6, 1) == pytest.approx(0.142, abs=0.001)
    assert of_workers("keep", 6, 1) == 1.0


def test_the_rate_follows_the_batch_by_its_rule() -> None:
    assert [of_batch(rule, 64, 16) for rule in ("keep", "linear", "sqrt")] == [1.0, 4.0, 2.0]
