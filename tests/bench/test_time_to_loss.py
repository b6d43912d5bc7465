"""Tests of the time to a loss, on short curves."""

from __future__ import annotations

import pytest

from tests.bench.time_to_loss import (
    TAIL,
    WINDOW,
    Run,
    compare_runs,
    smooth,
    target_loss,
    time_to,
)

FIXED = Run(curve=((1.0, 2.1), (2.0, 1.0), (3.0, 0.1), (4.0, 0.1)), batches=(32,), workers=(1, 3))
GROWING = Run(curve=((1.0, 2.0), (1.5, 0.1), (2.0, 0.05)), batches=(32, 64), workers=(1, 3))


def test_both_jobs_reach_the_target() -> None:
    target = target_loss(FIXED.curve, GROWING.curve)
    assert target == pytest.approx(0.1 + TAIL * (2.1 - 0.1))
    assert time_to(FIXED.curve, target) == 3.0 and time_to(GROWING.curve, target) == 1.5
    assert time_to(FIXED.curve, 0.05) is None


def test_a_growing_batch_that_is_faster_has_a_ratio_below_one() -> None:
    assert compare_runs(FIXED, GROWING)["ratio"] == 0.5
    assert compare_runs(FIXED, FIXED)["ratio"] == 1.0


def test_small_losses_of_fewer_than_half_a_window_do_not_reach_the_target() -> None:
    few = WINDOW // 2
    losses = [2.0] * WINDOW + [0.1] * few + [2.0] * WINDOW
    curve = smooth([(float(second), loss) for second, loss in enumerate(losses)])
    assert min(loss for _, loss in curve) == 2.0
