"""Tests of the speed model, which predicts a job's speed at sizes that it never had.

The speeds of a whole grid equal those of each size by itself.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.allocator.models.fitting import Prior, UsableObservation, fit_closest_form, fit_model
from services.allocator.models.speed import (
    TERMS,
    Fit,
    Form,
    Grid,
    Points,
    grid_log_speeds,
    pad_rows,
)
from services.allocator.policies.contract import Observed

BATCH = 64
PRIORS: tuple[Prior, ...] = (Prior(form="synchronous"), Prior(form="asynchronous"))
SIZES = [(p, w) for p in range(1, 9) for w in range(1, 11)]
SPREAD_OUT = [(1, 1), (2, 6), (6, 2), (4, 4), (8, 8), (1, 4), (8, 1), (3, 9)]
COMPUTE = (0.9, 0.05, 0.0, 0.05, 0.0, 0.0, 0.0, 0.0)
TRANSFER = (0.2, 0.05, 0.1, 0.6, 0.05, 0.0, 0.0, 0.0)

anything = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from(
    [0.0, -1.0, 1e-6, 1e12, 1.0, 100.0]
)


def truth(
    shares: tuple[float, ...], sizes: list[tuple[int, int]], form: Form = "synchronous"
) -> np.ndarray:
    """Return samples/s by the formula; a step of one ps and one worker takes 1 s."""
    rows = np.array([(p, w, BATCH, 1.0, 1.0, 1.0) for p, w in sizes], dtype=float)
    one = Points(np.array([[1.0, 1.0, BATCH, 1.0, 1.0, 1.0]])).columns(form)[0]
    one[-1] = 1.0  # one worker is never spread
    return BATCH / (Points(rows).columns(form) / one @ np.array(shares))


def observed(
    shares: tuple[float, ...],
    sizes: list[tuple[int, int]],
    form: Form = "synchronous",
    noise: float = 0.0,
    seed: int = 0,
) -> list[Observed]:
    luck = 1.0 + noise * np.random.default_rng(seed).standard_normal(len(sizes))
    return [
        Observed(p, w, BATCH, float(v))
        for (p, w), v in zip(sizes, truth(shares, sizes, form) * luck, strict=True)
    ]


def errors(fitted: Fit, shares: tuple[float, ...], form: Form = "synchronous") -> np.ndarray:
    """Return the relative error at every size."""
    return np.abs(
        np.exp(fitted.predict(fitted.points(SIZES))[0]) / truth(shares, SIZES, form) - 1.0
    )


# ---------------------------------------------------------------- recovery of a known formula


@pytest.mark.parametrize("form", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("shares", [COMPUTE, TRANSFER])
def test_eight_observed_sizes_predict_eighty(shares, form):
    fitted = fit_model(observed(shares, SPREAD_OUT, form), Prior(form=form))
    assert np.median(errors(fitted, shares, form)) < 0.02
    assert errors(fitted, shares, form).max() < 0.1


def test_a_few_per_cent_of_noise_do_little_harm():
    wrong = [
        errors(fit_model(observed(TRANSFER, SPREAD_OUT, noise=0.03, seed=n)), TRANSFER)
        for n in range(20)
    ]
    assert np.median(wrong) < 0.05


def test_one_more_worker_helps_compute_bound_and_harms_transfer_bound_models():
    """By the formula 6 ps and 8 workers compute 1.34 times as fast as 6 ps and 4 workers."""
    quick, slow = (
        fit_model(observed(COMPUTE, SPREAD_OUT)),
        fit_model(observed(TRANSFER, SPREAD_OUT)),
    )
    assert 1.15 < quick.speed(6, 8) / quick.speed(6, 4) < 1.45
    assert slow.speed(1, 8) < slow.speed(1, 2) < slow.speed(6, 2)


def test_all_reduce_jobs_use_the_same_model_without_ps():
    seen = [
        Observed(0, w, BATCH, BATCH / (0.9 / w + 0.1 * (w - 1) / w + 0.05)) for w in (1, 2, 4, 8)
    ]
    fitted = fit_model(seen)
    assert fitted.speed(0, 6) == pytest.approx(BATCH / (0.9 / 6 + 0.1 * 5 / 6 + 0.05), rel=0.06)
    assert fitted.seconds(0, 6)["ps"] == fitted.seconds(0, 6)["update"] == 0.0


def test_the_step_time_is_the_sum_of_its_terms():
    seconds = fit_model(observed(TRANSFER, SPREAD_OUT)).seconds(1, 1)
    assert tuple(seconds) == TERMS
    assert sum(seconds.values()) == pytest.approx(1.0, rel=0.1)
    assert max(seconds, key=lambda term: seconds[term]) == "link"


# ---------------------------------------------------------------- few observations


@pytest.mark.parametrize("form", ["synchronous", "asynchronous"])
def test_without_observations_the_prior_is_used(form):
    fitted = fit_model([], Prior(step_s=2.0, form=form, batch=BATCH))
    assert fitted.speed(1, 1, BATCH) == pytest.approx(BATCH / 2.0)
    assert fitted.speed(4, 4, BATCH) > fitted.speed(1, 1, BATCH) > fitted.speed(1, 1, 1)


def test_one_observation_sets_the_level():
    fitted = fit_model([Observed(2, 2, BATCH, 500.0)])
    assert fitted.speed(2, 2) == pytest.approx(500.0, rel=1e-6)
    assert 400.0 < fitted.speed(4, 4) < 1000.0


def test_a_profile_improves_the_prediction_from_one_observation():
    seen = observed(TRANSFER, [(1, 1)])
    knowing, ignorant = fit_model(seen, Prior(shares=TRANSFER)), fit_model(seen)
    assert errors(knowing, TRANSFER).mean() < errors(ignorant, TRANSFER).mean()


def test_a_slowdown_with_more_workers_identifies_a_shared_batch():
    seen = observed(TRANSFER, [(1, 1), (1, 4), (1, 8)])
    assert [one.form for one in fit_closest_form([(seen, PRIORS), (seen, PRIORS[::-1])])] == [
        "synchronous"
    ] * 2


@pytest.mark.parametrize("form", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("shares", [COMPUTE, TRANSFER])
def test_if_both_forms_fit_their_predictions_are_close(shares, form):
    seen = observed(shares, SPREAD_OUT, form)
    assert np.median(errors(*fit_closest_form([(seen, PRIORS)]), shares, form)) < 0.06


# ---------------------------------------------------------------- uncertainty


def test_uncertainty_grows_with_the_distance_from_observed_sizes():
    fitted = fit_model(observed(TRANSFER, [(1, 1), (2, 2), (2, 4)]))
    assert fitted.speed_std(2, 2) < fitted.speed_std(3, 3) < fitted.speed_std(12, 12)
    assert fitted.speed_std(2, 2) < 0.05


def test_every_observation_reduces_the_uncertainty():
    seen = observed(TRANSFER, SPREAD_OUT)
    spreads = [fit_model(seen[:n]).speed_std(5, 5) for n in (1, 3, 5, 8)]
    assert spreads == sorted(spreads, reverse=True) and spreads[-1] < spreads[0] / 2


def test_two_standard_deviations_cover_the_expected_share():
    """The models are random, and the speed at each size deviates from the formula."""
    chance, inside = np.random.default_rng(3), []
    for _ in range(40):
        shares = (*chance.dirichlet([1.5, 0.8, 0.5, 0.8, 0.3, 0.1, 0.3]), 0.0)
        quirks = np.exp(0.05 * chance.standard_normal(len(SIZES)))
        real = truth(shares, SIZES) * quirks
        seen = [
            Observed(*SIZES[n], BATCH, float(real[n]))
            for n in chance.choice(len(SIZES), 6, replace=False)
        ]
        mean, spread = (fitted := fit_model(seen)).predict(fitted.points(SIZES))
        inside.append(np.mean(np.abs(np.log(real) - mean) < 2.0 * spread))
    assert 0.85 < np.mean(inside) < 1.0


def test_a_batch_of_several_passes_is_not_faster():
    """A worker computes 64 samples at once, in 0.6 s, so a batch of 6,400 is no faster.

    A model that does not know this limit predicts a higher speed.
    """
    seen = [Observed(0, 1, 64, 64 / 0.6)]
    knows, not_told = (
        fit_model(seen, Prior(batch=64, device=device)) for device in (64.0, math.inf)
    )
    assert knows.speed(0, 1, 6400) == pytest.approx(64 / 0.6, rel=0.02)
    assert not_told.speed(0, 1, 6400) > 1.5 * 64 / 0.6


def test_the_cost_of_spread_devices_is_separated_from_that_of_their_number():
    """A step of 64 samples per device takes 1 s, and 2 s more if the devices are on two nodes."""
    seen = [
        Observed(0, w, 64 * w, 64 * w / (1.0 + 2.0 * (n > 1)), nodes=n)
        for w, n in ((1, 1), (2, 2), (4, 1), (8, 2))
    ]
    fitted = fit_model(seen, Prior(batch=64))
    rows = [(0.0, w, 64.0 * w, 1.0, 1.0, apart) for w, apart in ((2.0, 0.0), (4.0, 1.0))]
    together, apart = np.exp(fitted.predict(Points(np.array(rows)))[0]).tolist()
    assert together == pytest.approx(128.0, rel=0.2) and apart == pytest.approx(256 / 3, rel=0.2)


def test_shares_refer_to_the_first_batch_and_not_the_last():
    """The prior's fixed cost refers to the first batch, 32, so it is little of a step of 3,200."""
    fitted = fit_model([Observed(0, 1, 3200, 100.0)], Prior(batch=32))
    assert 80.0 < fitted.speed(0, 1, 320) <= 100.0
    assert fit_model([Observed(0, 1, 3200, 100.0)]).speed(0, 1, 320) < 40.0


def test_an_outlier_has_little_weight():
    seen = observed(TRANSFER, SPREAD_OUT)
    wrong = [*seen[:3], Observed(4, 4, BATCH, seen[3].samples_per_second / 5), *seen[4:]]
    assert np.median(errors(fit_model(wrong), TRANSFER)) < 0.1


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.builds(
            *(Observed, st.integers(0, 40), st.integers(0, 40), st.integers(-1, 10**6), anything),
            *(st.none() | anything, st.none() | anything),
        ),
        max_size=12,
    ),
    st.sampled_from(PRIORS),
    st.integers(0, 100),
    st.integers(1, 100),
)
def test_predicted_speeds_are_positive_for_any_reports(seen, prior, ps, workers):
    fitted = fit_model(seen, prior)
    assert math.isfinite(fitted.speed(ps, workers, 32)) and fitted.speed(ps, workers, 32) > 0.0
    assert (
        math.isfinite(fitted.speed_std(ps, workers, 32)) and fitted.speed_std(ps, workers, 32) > 0.0
    )


# ---------------------------------------------------------------- cores, placement, batch


def test_twice_the_cores_nearly_double_a_compute_bound_speed():
    seen = [Observed(1, 1, BATCH, 10.0, 1.0, 1.0), Observed(1, 1, BATCH, 19.0, 1.0, 2.0)]
    fitted = fit_model(seen, Prior(shares=COMPUTE))
    one, four = (
        fitted.predict(Points(np.array([[1.0, 1.0, BATCH, 1.0, k, 1.0]])))[0][0] for k in (1.0, 4.0)
    )
    assert 2.5 < math.exp(four - one) < 4.0


def test_transfers_within_a_node_cost_less():
    apart = UsableObservation(2, 4, BATCH, 100.0, remote=1.0)
    fitted = fit_model([apart], Prior(shares=TRANSFER))
    together = Points(np.array([[2.0, 4.0, BATCH, 1.0, 1.0, 0.0]]))
    assert fitted.predict(together)[0][0] > math.log(110.0)


def test_a_larger_batch_amortises_the_fixed_cost():
    fitted = fit_model([Observed(1, 2, 32, 100.0), Observed(1, 2, 64, 150.0)])
    assert 150.0 < fitted.speed(1, 2, 128) < 260.0


CORES = st.none() | st.sampled_from([0.5, 2.0])
SEEN = st.builds(
    Observed,
    st.integers(0, 9),
    st.integers(1, 9),
    st.sampled_from([32, 64]),
    st.floats(1.0, 1e4),
    CORES,
    CORES,
)
FITS = st.builds(
    lambda seen, form, device: fit_model(seen, Prior(form=form, device=device)),
    st.lists(SEEN, max_size=6),
    st.sampled_from(["synchronous", "asynchronous"]),
    st.sampled_from([8.0, float("inf")]),
)
AXIS = st.lists(st.integers(1, 12), min_size=1, max_size=4).map(tuple)
PS = st.lists(st.integers(0, 12), min_size=1, max_size=4).map(tuple)
BATCHES = st.lists(st.sampled_from([16, 32, 64]), min_size=1, max_size=3).map(tuple)


TOGETHER = 4


def alone(fitted: Fit, sizes: list[tuple[int, ...]]) -> np.ndarray:
    """Return the prediction for each size, computed without a grid.

    Without ps, devices are spread if one node cannot hold them all.
    """
    cores, usual = fitted.usual[1:3], fitted.usual[3]
    rows = [(*size, *cores, usual if size[0] else float(size[1] > TOGETHER)) for size in sizes]
    return fitted.mean(Points(np.array(rows, dtype=float), fitted.observed_points.device))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(FITS, PS, AXIS, BATCHES), min_size=1, max_size=4))
def test_grid_speeds_equal_the_models(jobs):
    fits, *axes = zip(*jobs, strict=True)
    grid = Grid(*map(pad_rows, axes))
    for n, found in enumerate(grid_log_speeds(fits, grid, grid.sizes(), [TOGETHER] * len(fits))):
        sizes = [tuple(map(int, size)) for size in product(*(axis[n].tolist() for axis in grid))]
        assert grid.sizes()[n].tolist() == [list(size) for size in sizes]
        assert found == pytest.approx(alone(fits[n], sizes), abs=1e-9)


def test_a_short_row_is_padded_with_its_last_number():
    assert pad_rows([(1, 2, 3), (5,)]).tolist() == [[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]]
