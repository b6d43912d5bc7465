"""The loss after so many samples."""

from __future__ import annotations

import pytest

from services.whatif.simulator.losses import Curve


def test_a_curve_is_straight_between_its_points_and_flat_outside_them() -> None:
    curve = Curve([(300, 1.0), (100, 2.0)])
    assert [curve.at(samples) for samples in (0, 100, 150, 200, 300, 900)] == [
        2.0,
        2.0,
        1.75,
        1.5,
        1.0,
        1.0,
    ]


def test_a_curve_needs_a_point() -> None:
    with pytest.raises(ValueError, match="needs a point"):
        Curve([])
