"""Many models are fitted side by side as each is alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.allocator.models.fitting import Prior, UsableObservation, fit_model, fit_models
from services.allocator.policies.contract import Observed

SHARES = (0.6, 0.1, 0.0, 0.3, 0.0, 0.0, 0.0, 0.1)
CORES = st.none() | st.sampled_from([0.5, 1.0, 4.0])
SEEN = st.builds(
    UsableObservation,
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from([32, 64]),
    st.floats(-1.0, 1e4),
    CORES,
    CORES,
)
PRIORS = st.builds(
    Prior,
    shares=st.sampled_from([SHARES, Prior().shares]),
    step_s=st.none() | st.floats(0.01, 10.0),
    form=st.sampled_from(["synchronous", "asynchronous"]),
    batch=st.sampled_from([None, 1, 64]),
    device=st.sampled_from([16.0, float("inf")]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.lists(SEEN, max_size=20), PRIORS), max_size=5))
def test_models_fitted_together_equal_those_fitted_alone(cases):
    for together, (seen, prior) in zip(fit_models(cases), cases, strict=True):
        alone = fit_model(seen, prior)
        assert (together.form, together.usual) == (alone.form, alone.usual)
        assert together.coefficients == pytest.approx(alone.coefficients, rel=1e-6, abs=1e-12)
        assert together.gp_weights == pytest.approx(alone.gp_weights, rel=1e-5, abs=1e-6)
        assert together.factor == pytest.approx(alone.factor, rel=1e-5, abs=1e-9)
        assert together.misfit == pytest.approx(alone.misfit, rel=1e-6, abs=1e-6)
        assert (together.speed(2, 3), together.speed_std(2, 3)) == pytest.approx(
            (alone.speed(2, 3), alone.speed_std(2, 3))
        )


def test_an_observation_equal_to_the_prediction_changes_no_coefficient():
    prior = Prior(shares=SHARES, step_s=2.0, batch=64)
    seen, unseen = fit_models([([Observed(1, 1, 64, 32.0)], prior), ([], prior)])
    assert seen.coefficients == pytest.approx(unseen.coefficients)
    assert np.abs(seen.gp_weights).max() < 1e-6


def test_nothing_to_fit_is_no_error():
    assert fit_models([]) == []
