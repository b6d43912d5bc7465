"""Tests of quantities in every notation of Kubernetes, and of evictions.

The tests of evictions cover the taints that close a node to our tasks, and the time that a task may
take to end: the requested one, or the one that its job has needed, within a bound.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.kube import objects
from shared.kube.objects import leaving_reason, parse_quantity, whole_units
from shared.messages import CORDONED, TAINTED, Taint


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


OURS_TO_LEAVE = [Taint(key="karpenter.sh/disrupted"), Taint(key="anything", effect="NoExecute")]
HARMLESS = [
    Taint(key="node.kubernetes.io/not-ready", effect="NoExecute"),
    Taint(key="node.kubernetes.io/unschedulable"),
    Taint(key="nvidia.com/gpu"),
    Taint(key="anything"),
]


@pytest.mark.parametrize("taint", OURS_TO_LEAVE, ids=lambda t: t.key)
def test_an_evicting_taint_has_precedence_over_a_cordon(taint: Taint) -> None:
    assert leaving_reason(True, [taint]) == leaving_reason(False, [*HARMLESS, taint]) == TAINTED


@pytest.mark.parametrize("taint", HARMLESS, ids=lambda t: t.key)
def test_a_taint_that_evicts_no_pod_is_no_reason_to_leave(taint: Taint) -> None:
    assert (leaving_reason(True, [taint]), leaving_reason(False, [taint])) == ("", CORDONED)


@pytest.mark.parametrize(
    ("asked_s", "changes_s", "most_s", "needed_s"),
    [
        (30.0, (), 180.0, 30.0),  # nothing was measured
        (30.0, (10.0,), 180.0, 30.0),  # it needs less
        (30.0, (60.0,), 180.0, 90.0),  # it needs more
        (30.0, (60.0, 5.0), 180.0, 90.0),  # one quick change does not make the next one quick
        (30.0, (600.0,), 180.0, 180.0),  # it needs more than the maximum
        (30.0, (60.0,), 0.0, 30.0),  # the maximum allows nothing beyond the request
        (300.0, (60.0,), 180.0, 300.0),  # the request is longer than it needs
    ],
)
def test_the_grace_period_covers_the_jobs_needs_and_its_request(
    asked_s: float, changes_s: tuple[float, ...], most_s: float, needed_s: float
) -> None:
    assert objects.grace_period(asked_s, changes_s, most_s) == needed_s


def test_only_the_last_known_measurements_count() -> None:
    changes_s: tuple[float, ...] = ()
    for change_s in (90.0, 1.0, 0.0, 2.0, 3.0):
        changes_s = objects.add_measurement(changes_s, change_s)
    assert changes_s == (1.0, 2.0, 3.0)
