"""How a loss falls, how much work is left, and what a batch is worth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.allocator.models.learning import CHANGE, Curve, fitted, learned_share, samples_left
from services.allocator.policies.contract import Learned, efficiency

PLANTED = Curve(a=2e-4, b=0.5, c=0.3)

anything = st.floats(allow_nan=True, allow_infinity=True) | st.floats(-10, 10)


def points(
    curve: Curve, until: int, count: int = 40, noise: float = 0.0, seed: int = 0
) -> list[Learned]:
    luck = np.random.default_rng(seed).standard_normal(count) * noise
    samples = np.linspace(0, until, count).astype(int).tolist()
    return [
        Learned(s, curve.loss(s) * (1.0 + e)) for s, e in zip(samples, luck.tolist(), strict=True)
    ]


def test_a_planted_curve_is_found_again():
    found = fitted(points(PLANTED, 100_000))
    assert found is not None
    for samples in (0, 10_000, 100_000, 300_000):
        assert found.loss(samples) == pytest.approx(PLANTED.loss(samples), rel=0.02)


def test_the_future_is_foreseen_through_noise():
    wrong = []
    for seed in range(10):
        found = fitted(points(PLANTED, 50_000, noise=0.03, seed=seed))
        assert found is not None
        wrong.append(abs(found.loss(150_000) / PLANTED.loss(150_000) - 1.0))
    assert np.median(wrong) < 0.15


def test_later_points_weigh_more():
    """The first third falls by another law than the rest."""
    late = [p for p in points(PLANTED, 90_000) if p.samples > 30_000]
    early = [Learned(s, 40.0 - s / 1_000) for s in range(0, 30_000, 3_000)]
    found = fitted([*early, *late])
    assert found is not None and found.loss(90_000) == pytest.approx(PLANTED.loss(90_000), rel=0.15)


def test_one_spike_is_not_learning():
    spiked = points(PLANTED, 100_000)
    spiked[35] = Learned(spiked[35].samples, 50.0)
    found = fitted(spiked)
    assert found is not None and found.loss(100_000) == pytest.approx(
        PLANTED.loss(100_000), rel=0.05
    )


@pytest.mark.parametrize("loss", [0.0, 0.7, 1e6, -3.0])
def test_a_constant_loss_is_a_curve_that_does_not_fall(loss):
    found = fitted([Learned(s, loss) for s in range(0, 1000, 100)])
    assert found is not None
    assert found.loss(5000) == pytest.approx(loss, abs=1e-6 * max(1.0, abs(loss)))
    assert learned_share(found, 250, 1000) == pytest.approx(0.25)


def test_a_rising_loss_teaches_nothing():
    found = fitted([Learned(s, 1.0 + s / 100) for s in range(0, 1000, 50)])
    assert found is not None and found.a == 0.0 and found.learned(10**9) == 0.0


def test_negative_losses_fall_too():
    below = [Learned(p.samples, p.loss - 5.0) for p in points(PLANTED, 100_000)]
    found = fitted(below)
    assert found is not None and found.loss(100_000) == pytest.approx(
        PLANTED.loss(100_000) - 5.0, rel=0.02
    )


def test_too_few_points_are_no_curve():
    assert fitted([]) is None
    assert (
        fitted([Learned(0, 1.0), Learned(10, math.nan), Learned(20, math.inf), Learned(30, 0.5)])
        is None
    )


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.builds(Learned, st.integers(0, 10**9), anything), max_size=64),
    st.integers(0, 10**10),
)
def test_whatever_was_reported_the_curve_falls_or_stays_and_is_finite(reported, samples):
    found = fitted(reported)
    if found is not None:
        assert found.a >= 0.0 and found.b > 0.0
        assert math.isfinite(found.loss(samples)) and found.loss(samples) <= found.loss(0.0)
        assert 0.0 <= found.learned(samples) <= 1.0
    assert 0.0 <= learned_share(found, samples, 10**9) <= 1.0
    assert 0.0 <= samples_left(found, samples, 10**9, window=10**6) <= 10**9


# ---------------------------------------------------------------- what is left


def test_most_is_learned_early():
    shares = [learned_share(PLANTED, s, 100_000) for s in (0, 10_000, 50_000, 100_000)]
    assert shares[0] == 0.0 and shares[1] > 0.5 and shares[2] > 0.9 and shares[3] == 1.0


def test_a_run_is_over_when_a_window_brings_less_than_a_hundredth_of_the_fall():
    window = 5_000.0
    end = PLANTED.converged(window)
    assert PLANTED.loss(end) - PLANTED.loss(end + window) == pytest.approx(CHANGE / PLANTED.b)
    assert samples_left(PLANTED, 1_000, 10**9, window) == pytest.approx(end - 1_000)
    assert samples_left(PLANTED, 1_000, 2_000, window) == 1_000
    assert samples_left(PLANTED, 10**8, 10**9, window) == 0.0


def test_without_a_curve_or_a_window_work_is_counted_in_samples():
    assert samples_left(None, 300, 1000, window=10) == samples_left(PLANTED, 300, 1000) == 700
    assert samples_left(PLANTED, 1500, 1000) == 0.0


# ---------------------------------------------------------------- what a batch is worth


def test_a_batch_far_below_the_noise_scale_loses_nothing_and_far_above_it_nearly_all():
    assert efficiency(64, 32, noise=1e6) == pytest.approx(1.0, abs=1e-3)
    assert efficiency(32_000, 32, noise=0.0) == pytest.approx(1e-3)
    assert efficiency(64, 32, noise=64.0) == pytest.approx((64 + 32) / (64 + 64))


def test_without_a_noise_scale_larger_batches_are_doubted_and_smaller_ones_not_praised():
    assert efficiency(64, 32) == pytest.approx(2 / 3)
    assert efficiency(32, 32) == efficiency(8, 32) == 1.0
    assert efficiency(64, 32, noise=math.nan) == efficiency(64, 32)


@given(st.floats(1, 1e6), st.floats(1, 1e6), anything)
def test_a_sample_is_always_worth_something(batch, start, noise):
    assert 0.0 < efficiency(batch, start, noise) < math.inf
