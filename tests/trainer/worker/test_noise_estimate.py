"""Tests of the gradient noise scale with made-up gradients of a known noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.worker.noise_estimate import (
    MIN_COMPARISONS,
    Comparison,
    MeasurementTimer,
    NoiseEstimate,
)

BATCHES = 4


def comparison_of(gradients: np.ndarray, sizes: list[int]) -> Comparison:
    """Compare the mean gradients of batches of these sizes. Rows: the gradients of examples."""
    cuts = np.cumsum(sizes)[:-1]
    means = [part.mean(0) for part in np.split(gradients[: sum(sizes)], cuts)]
    return Comparison(
        batches=len(sizes),
        examples=len(sizes) / sum([1.0 / size for size in sizes]),
        mean_square_norm=float(np.mean([np.sum(mean**2) for mean in means])),
        square_norm_of_mean=float(np.sum(np.mean(means, 0) ** 2)),
    )


def gradients(random: np.random.Generator, count: int, phi: float, dimensions: int) -> np.ndarray:
    """Return gradients of examples whose mean has the norm 1 and whose variance is phi."""
    mean = np.zeros(dimensions)
    mean[0] = 1.0
    noise = random.normal(size=(count, dimensions)) * math.sqrt(phi / dimensions)
    return np.asarray(mean + noise)


@pytest.mark.parametrize("sizes", [[8, 8, 8, 8], [8, 8], [12, 4, 9, 1]])
def test_variance_and_mean_square_are_unbiased(sizes: list[int]) -> None:
    random = np.random.default_rng(1)
    made = [comparison_of(gradients(random, sum(sizes), 20.0, 5), sizes) for _ in range(20_000)]

    assert np.mean([each.variance for each in made]) == pytest.approx(20.0, rel=0.02)
    assert np.mean([each.mean_square(0) for each in made]) == pytest.approx(1.0, rel=0.1)


def test_they_are_unbiased_for_the_examples_of_an_epoch() -> None:
    """Batches of an epoch have no example in common, and together they have nearly all of it."""
    random, epoch = np.random.default_rng(2), 40
    examples = gradients(random, epoch, 100.0, 5)
    made = [comparison_of(random.permutation(examples), [8] * 4) for _ in range(20_000)]

    square = np.sum(examples.mean(0) ** 2)
    variance = examples.var(0, ddof=1).sum()
    assert np.mean([each.variance for each in made]) == pytest.approx(variance, rel=0.02)
    assert np.mean([each.mean_square(epoch) for each in made]) == pytest.approx(square, rel=0.1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("phi", "dimensions"), [(0.5, 3), (30.0, 10), (300.0, 50)])
def test_a_reported_noise_scale_is_within_30_percent(
    phi: float, dimensions: int, seed: int
) -> None:
    random, estimate, found = np.random.default_rng(seed), NoiseEstimate(), list[float]()
    for _ in range(800):
        made = gradients(random, BATCHES * 16, phi, dimensions)
        estimate = estimate.add(comparison_of(made, [16] * BATCHES))
        if estimate.phi is not None:
            found.append(estimate.phi)

    assert found
    assert np.mean([abs(each / phi - 1.0) > 0.3 for each in found]) < 0.05
    assert np.mean(found) == pytest.approx(phi, rel=0.15)


def test_nothing_is_reported_before_it_is_sure_enough() -> None:
    random, estimate = np.random.default_rng(3), NoiseEstimate()
    for number in range(200):
        made = gradients(random, BATCHES * 2, 10_000.0, 3)
        estimate = estimate.add(comparison_of(made, [2] * BATCHES))
        assert estimate.phi is None, number


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("phi", [30.0, 3000.0])
def test_a_lower_bound_is_known_before_the_noise_is(phi: float, seed: int) -> None:
    random, estimate = np.random.default_rng(seed), NoiseEstimate()
    for _ in range(60):
        made = gradients(random, BATCHES * 16, phi, 50)
        estimate = estimate.add(comparison_of(made, [16] * BATCHES))

    assert estimate.at_least is not None
    assert min(phi / 2, 200.0) < estimate.at_least <= 1.05 * phi


def test_a_change_of_the_noise_is_followed() -> None:
    random, estimate = np.random.default_rng(4), NoiseEstimate()
    for phi, count in ((4.0, 3000), (64.0, 150)):
        for _ in range(count):
            made = gradients(random, BATCHES * 16, phi, 20)
            estimate = estimate.add(comparison_of(made, [16] * BATCHES))

        assert estimate.phi == pytest.approx(phi, rel=0.3)


def test_the_last_sure_value_stays_until_there_is_another() -> None:
    random, estimate = np.random.default_rng(5), NoiseEstimate()
    for _ in range(100):
        estimate = estimate.add(comparison_of(gradients(random, 64, 4.0, 20), [16] * BATCHES))
    known = estimate.phi
    assert known is not None
    for _ in range(10_000):  # as at the end of training: no mean gradient is left
        noise = random.normal(size=(8, 3))
        estimate = estimate.add(comparison_of(noise, [2] * BATCHES))

    assert estimate.phi is not None and estimate.phi >= known


def test_gradients_without_noise_have_the_scale_0() -> None:
    estimate = NoiseEstimate()
    for _ in range(int(MIN_COMPARISONS) + 5):
        estimate = estimate.add(Comparison(4.0, 8.0, 3.0, 3.0))

    assert estimate.phi == 0.0


@pytest.mark.parametrize(
    "unusable",
    [
        Comparison(4.0, 8.0, math.inf, 1.0),
        Comparison(4.0, 8.0, math.nan, math.nan),
        Comparison(4.0, 0.0, 2.0, 1.0),
        Comparison(1.0, 8.0, 2.0, 1.0),
        Comparison(4.0, 30.0, 2.0, 1.0),  # more examples than an epoch has
    ],
)
def test_an_unusable_comparison_changes_nothing(unusable: Comparison) -> None:
    estimate = NoiseEstimate(examples=100)

    assert estimate.add(unusable) == estimate


positive = st.floats(0.0, 1e30)


@given(st.lists(st.tuples(st.floats(1.0, 1e6), positive, positive), max_size=60))
def test_a_noise_scale_is_a_finite_number_that_is_not_negative(
    found: list[tuple[float, float, float]],
) -> None:
    estimate = NoiseEstimate()
    for examples, squares, square in found:
        estimate = estimate.add(Comparison(4.0, examples, squares, square))
        assert estimate.phi is None or (math.isfinite(estimate.phi) and estimate.phi >= 0.0)


@given(st.floats(0.001, 0.5), st.lists(st.floats(1e-4, 10.0), min_size=2, max_size=30))
def test_measurements_take_their_share_of_the_time(share: float, took: list[float]) -> None:
    timer, now_s, spent_s = MeasurementTimer(share), 100.0, 0.0
    for number, each in enumerate(took):
        assert timer.is_due(now_s)
        timer.record(now_s, now_s + each)
        spent_s += each if number else 0.0
        now_s += each
        if number:
            now_s += each / share * 1.001
    assert spent_s <= share * (now_s - 100.0)


def test_a_timer_without_a_share_is_never_due() -> None:
    stopped = MeasurementTimer(0.5)
    stopped.stop()

    assert not MeasurementTimer(0.0).is_due(1e12)
    assert not stopped.is_due(1e12)
