"""Tests of the pure parts of `make bench-histories`."""

from __future__ import annotations

import random

from shared.messages import ProgressReported
from tests.bench.histories import INTERVALS, UPDATES, mean_losses, random_history


def report(step: int, loss: float | None) -> ProgressReported:
    return ProgressReported(
        job="tiny",
        uid=1,
        generation=1,
        step=step,
        epoch=0,
        samples=step,
        total_samples=UPDATES,
        samples_per_second=1.0,
        loss=loss,
    )


def test_a_history_is_a_function_of_its_seed_and_keeps_a_worker() -> None:
    for seed in range(50):
        history = random_history(random.Random(seed), 144, 4, 4)

        assert history == random_history(random.Random(seed), 144, 4, 4)
        assert [each.update for each in history] == sorted({each.update for each in history})
        assert min(each.workers for each in history) >= 1


def test_a_loss_counts_for_the_updates_since_the_last_one() -> None:
    length = UPDATES // INTERVALS
    reports = [report(length // 2, 4.0), report(length // 2 + 1, None), report(UPDATES, 1.0)]

    losses = mean_losses(reports)

    assert losses[0] == (4.0 * (length // 2) + 1.0 * (length - length // 2)) / length
    assert losses[1:] == [1.0] * (INTERVALS - 1)


def test_updates_that_are_made_again_count_once() -> None:
    reports = [report(10, 4.0), report(UPDATES, 9.0), report(20, 2.0), report(UPDATES, 1.0)]
    length = UPDATES // INTERVALS

    assert mean_losses(reports)[0] == (4.0 * 10 + 2.0 * 10 + 1.0 * (length - 20)) / length
