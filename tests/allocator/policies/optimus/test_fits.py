"""Tests of the two models of Optimus, of speed and of convergence."""

from __future__ import annotations

import numpy as np
import pytest

from services.allocator.policies.contract import Size
from services.allocator.policies.optimus.fits import (
    Quiet,
    converged_epoch,
    loss_fit,
    speed_model,
    speed_models,
)

EIGHT = [Size(n, n) for n in (1, 2, 3, 4, 6, 7, 9, 10)]
OTHERS = [Size(1, 5), Size(4, 8), Size(8, 3), Size(2, 12)]
EPOCHS = np.arange(1.0, 31.0)


def sync(size: Size, batch: int = 64) -> float:
    p, w = size.ps, size.workers
    return batch / (0.01 * batch / w + 0.05 + 0.02 * w / p + 0.004 * w + 0.003 * p)


def asynchronous(size: Size, batch: int = 64) -> float:
    p, w = size.ps, size.workers
    return w * batch / (0.8 + 0.1 * w / p + 0.02 * w + 0.01 * p)


@pytest.mark.parametrize("true", [sync, asynchronous])
def test_planted_speeds_are_recovered_for_every_kind_of_job(true):
    off_the_diagonal = [Size(1, 4), Size(6, 2)]
    rate = speed_model({size: true(size) for size in [*EIGHT, *off_the_diagonal]}, batch=64)
    assert [rate(size) for size in OTHERS] == pytest.approx(
        [true(size) for size in OTHERS], rel=0.02
    )


def test_a_measured_speed_precedes_the_fitted_one():
    points = {size: sync(size) for size in EIGHT} | {Size(3, 3): 12.5}
    assert speed_model(points, batch=64)(Size(3, 3)) == 12.5


def test_programs_fitted_together_equal_those_fitted_alone():
    some = {size: sync(size) for size in EIGHT}
    more = {size: asynchronous(size) for size in [*EIGHT, Size(1, 4), Size(6, 2)]}
    cases = [(some, 64), ({}, 64), (more, 64), ({Size(0, 2): 7.0, Size(1, 2): 9.0}, 32)]
    for (points, batch), model in zip(cases, speed_models(cases), strict=True):
        alone = speed_model(points, batch)
        assert [model(size) for size in OTHERS] == pytest.approx([alone(size) for size in OTHERS])


def test_a_program_is_synchronous_if_its_request_says_so():
    points = {size: asynchronous(size) for size in [*EIGHT, Size(1, 4), Size(6, 2)]}
    free, bound = speed_models([(points, 64), (points, 64)], {1})
    assert (free.synchronous, bound.synchronous) == (False, True)


def test_without_measurements_the_speed_is_unknown():
    assert speed_model({}, batch=64)(Size(1, 1)) == 0.0


def test_all_reduce_jobs_are_fitted_in_workers_only():
    points = {Size(0, w): 64 / (0.64 / w + 0.02 + 0.001 * w) for w in (1, 2, 4, 8, 16)}
    assert speed_model(points, batch=64)(Size(0, 12)) == pytest.approx(
        64 / (0.64 / 12 + 0.02 + 0.012), rel=1e-3
    )


def test_a_planted_loss_curve_is_recovered_despite_noise():
    losses = 1 / (0.3 * EPOCHS + 0.5) + 0.2
    assert loss_fit(EPOCHS, losses) == pytest.approx((0.3, 0.5, 0.2), rel=1e-3)
    noisy = losses * (1 + 0.02 * np.random.default_rng(3).normal(size=len(EPOCHS)))
    a, b, c = loss_fit(EPOCHS, noisy)
    assert 1 / (a * 60 + b) + c == pytest.approx(1 / 18.5 + 0.2, rel=0.1)


def test_later_losses_have_more_weight():
    losses = 1 / (0.3 * EPOCHS + 0.5) + 0.2
    losses[:5] += 1.0
    a, b, c = loss_fit(EPOCHS, losses)
    assert 1 / (a * 30 + b) + c == pytest.approx(losses[-1], rel=0.05)
    assert abs(1 / (a * 30 + b) + c - losses[-1]) < 0.1 * abs(1 / (a * 5 + b) + c - losses[4])


def test_no_coefficient_is_negative_for_a_rising_loss():
    assert min(loss_fit(EPOCHS, 0.1 + 0.05 * EPOCHS)) >= 0


def test_convergence_is_a_small_fitted_decrease_over_ten_epochs():
    losses = (1 / (0.3 * EPOCHS + 0.5) + 0.2).tolist()
    end = converged_epoch(EPOCHS.tolist(), losses, progress=5, quiet=Quiet())
    assert end is not None

    def fall(epoch: float) -> float:
        return 1 / (0.3 * (epoch - 9) + 0.5) - 1 / (0.3 * epoch + 0.5)

    assert fall(end) <= 0.05 < fall(end - 1)


def test_uncertain_convergence_is_unknown():
    slow = (300 / (EPOCHS + 100)).tolist()
    assert converged_epoch(EPOCHS.tolist(), slow, progress=30, quiet=Quiet()) is None
    assert converged_epoch([1.0, 2.0], [3.0, 2.0], progress=2, quiet=Quiet()) is None
