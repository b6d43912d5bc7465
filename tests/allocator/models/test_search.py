"""Tests of the search for the best size: which one to probe next, and which one to keep."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.allocator.models.fitting import Prior, fit_model
from services.allocator.models.search import (
    best_of,
    certain_gain,
    expected_gain,
    mean_log_speeds,
    next_probe,
    predict_log_speeds,
    search_sizes,
)
from services.allocator.policies.contract import Observed, Size

BATCH = 64
ALL = [Size(p, w) for p in range(1, 24, 2) for w in range(1, 24, 2) if p + w <= 24]


def surface(seed: int, rough: float = 0.04) -> dict[Size, float]:
    """Return the speed at every size, for synchronous training.

    The shares of computation, transfer and barrier are random. `rough` adds noise that no formula
    describes.
    """
    chance = np.random.default_rng(seed)
    compute = chance.uniform(0.05, 0.95)
    fixed, link, workers, ps = (
        (1.0 - compute) * chance.dirichlet([0.8, 0.8, 0.5, 0.3]) * (1.0, 1.0, 0.3, 0.1)
    )
    rugged = np.exp(rough * chance.standard_normal(len(ALL)))
    return {
        s: BATCH
        / (compute / s.workers + fixed + link * s.workers / s.ps + workers * s.workers + ps * s.ps)
        * r
        for s, r in zip(ALL, rugged.tolist(), strict=True)
    }


def noisy(speeds: dict[Size, float], seed: int) -> Callable[[Size], float]:
    chance = np.random.default_rng(seed)
    return lambda size: speeds[size] * (1.0 + 0.03 * float(chance.standard_normal()))


def share(speeds: dict[Size, float], size: Size) -> float:
    return speeds[size] / max(speeds.values())


@pytest.mark.parametrize("probes, least", [(8, 0.97), (4, 0.93)])
def test_a_few_probes_come_close_to_the_best_size(probes, least):
    reached = []
    for seed in range(40):
        speeds = surface(seed)
        reached.append(share(speeds, search_sizes(ALL, BATCH, noisy(speeds, seed), probes).size))
    assert np.mean(reached) > least


def test_probing_beats_every_fixed_size():
    worlds = [surface(seed) for seed in range(40)]
    fixed = max(np.mean([share(speeds, size) for speeds in worlds]) for size in ALL)
    found = np.mean(
        [share(s, search_sizes(ALL, BATCH, noisy(s, n), 8).size) for n, s in enumerate(worlds)]
    )
    assert found > fixed + 0.05


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 10**6), st.integers(1, 9), st.sets(st.sampled_from(ALL), min_size=1, max_size=12)
)
def test_no_size_is_measured_twice_and_never_more_than_allowed(seed, probes, sizes):
    speeds = surface(seed)
    found = search_sizes(
        sorted(sizes, key=lambda s: (s.ps, s.workers)), BATCH, noisy(speeds, seed), probes
    )
    tried = [Size(o.ps, o.workers) for o in found.observed]
    assert len(tried) == len(set(tried)) == min(probes, len(sizes))
    assert found.size in tried and set(tried) <= sizes


def test_the_expected_gain_is_the_mean_improvement():
    draws = np.random.default_rng(0).normal(0.05, 0.2, 400_000)
    (gain,) = expected_gain(np.array([0.05]), np.array([0.2]), 0.1)
    assert gain == pytest.approx(np.maximum(draws - 0.1, 0.0).mean(), rel=0.02)


def test_the_more_uncertain_of_two_equal_means_has_the_larger_expected_gain():
    known, unknown = expected_gain(np.array([0.0, 0.0]), np.array([0.05, 0.3]), 0.1)
    assert unknown > known > 0.0


def test_there_is_no_next_probe_after_all_sizes():
    fitted = fit_model([Observed(1, 1, BATCH, 10.0)])
    assert next_probe(fitted, [Size(1, 1)], [Size(1, 1)], BATCH) is None


def test_the_best_mean_is_kept_and_not_the_best_single_report():
    """The fastest report is of six workers; by all other reports eight workers are faster."""
    sizes = [Size(p, w) for p in (4, 6, 8) for w in (4, 6, 8)]
    speeds = {s: 100.0 * s.workers / (s.workers + 4) for s in sizes} | {Size(6, 6): 67.5}
    assert max(speeds, key=lambda s: speeds[s]) == Size(6, 6)
    seen = [Observed(s.ps, s.workers, BATCH, v) for s, v in speeds.items()]
    assert best_of(fit_model(seen), sizes, BATCH).workers == 8


def test_a_size_is_certain_only_if_uncertainty_cannot_change_the_order():
    seen = [Observed(p, w, BATCH, BATCH * w / 8.0) for p, w in ((8, 1), (8, 2), (8, 4))]
    fitted, tried = (
        fit_model(seen, Prior(shares=(0.94, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.0))),
        [Size(8, w) for w in (1, 2, 4)],
    )
    best = float(mean_log_speeds(fitted, tried, BATCH).max())
    larger, between = certain_gain(
        *predict_log_speeds(fitted, [Size(8, 8), Size(8, 3)], BATCH), best
    ).tolist()
    assert math.isfinite(larger) and larger > 0.0
    assert between < 0.0
