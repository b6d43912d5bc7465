"""Quantities in every notation that Kubernetes knows."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.kube.objects import parse_quantity, whole_units


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("250m", Fraction(1, 4)),
        ("1.5Gi", 3 << 29),
        ("1e3", 1000),
        ("1E3", 1000),
        ("2E", 2 * 10**18),
        ("2Ei", 2 << 60),
        ("128974848", 128974848),
        ("129M", 129_000_000),
        ("123Mi", 123 << 20),
        ("16Ki", 16384),
        (".5k", 500),
        ("5.", 5),
        ("100n", Fraction(1, 10**7)),
        ("7u", Fraction(7, 10**6)),
        ("1e-3", Fraction(1, 1000)),
        (0.5, Fraction(1, 2)),
        (4, 4),
    ],
)
def test_a_quantity_is_parsed(text, value):
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text", ["", "Gi", "1 Gi", "1.2.3", "1GiB", "0x10", "1e", "x", "1KI", "--1", [], None]
)
def test_an_invalid_quantity_is_refused(text):
    with pytest.raises(ValueError, match="quantities must match"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("resource", "text", "wanted"),
    [
        ("cpu", "100m", 100),
        ("cpu", "0.5", 500),
        ("cpu", 2, 2000),
        ("cpu", "1u", 1),
        ("memory", "1Gi", 2**30),
        ("memory", "1500m", 2),
        ("nvidia.com/gpu", "1", 1),
    ],
)
def test_a_quantity_becomes_a_whole_number(resource, text, wanted):
    assert whole_units(resource, text) == wanted


@given(st.integers(0, 10**6), st.sampled_from(["", "m", "k", "Ki", "M", "Mi", "G", "Gi"]))
def test_a_larger_number_in_the_same_unit_is_a_larger_quantity(number, unit):
    assert parse_quantity(f"{number}{unit}") < parse_quantity(f"{number + 1}{unit}")
