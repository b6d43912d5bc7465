"""Speeds over whole grids, against each size by itself."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.allocator.models.fitting import Prior, fit
from services.allocator.models.speed import Fit, Points
from services.allocator.policies.contract import Observed
from services.allocator.policies.weir.grid import Grid, filled, log_speeds

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
    lambda seen, form, device: fit(seen, Prior(form=form, device=device)),
    st.lists(SEEN, max_size=6),
    st.sampled_from(["synchronous", "asynchronous"]),
    st.sampled_from([8.0, float("inf")]),
)
AXIS = st.lists(st.integers(1, 12), min_size=1, max_size=4).map(tuple)
PS = st.lists(st.integers(0, 12), min_size=1, max_size=4).map(tuple)
BATCHES = st.lists(st.sampled_from([16, 32, 64]), min_size=1, max_size=3).map(tuple)


TOGETHER = 4


def alone(fitted: Fit, sizes: list[tuple[int, ...]]) -> np.ndarray:
    """Devices side by side leave their node where they are more than it holds."""
    cores, usual = fitted.usual[1:3], fitted.usual[3]
    rows = [(*size, *cores, usual if size[0] else float(size[1] > TOGETHER)) for size in sizes]
    return fitted.mean(Points(np.array(rows, dtype=float), fitted.observed.device))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(FITS, PS, AXIS, BATCHES), min_size=1, max_size=4))
def test_a_speed_on_a_grid_is_the_models_at_that_size(jobs):
    fits, *axes = zip(*jobs, strict=True)
    grid = Grid(*map(filled, axes))
    for n, found in enumerate(log_speeds(fits, grid, grid.sizes(), [TOGETHER] * len(fits))):
        sizes = [tuple(map(int, size)) for size in product(*(axis[n].tolist() for axis in grid))]
        assert grid.sizes()[n].tolist() == [list(size) for size in sizes]
        assert found == pytest.approx(alone(fits[n], sizes), abs=1e-9)


def test_a_short_row_is_filled_up_with_its_last_number():
    assert filled([(1, 2, 3), (5,)]).tolist() == [[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]]
