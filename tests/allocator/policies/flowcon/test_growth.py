"""Tests of growth efficiency, the three lists, limits and backoff, computed by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.allocator.policies.flowcon.growth import (
    Container,
    Rules,
    Sample,
    Timing,
    after_pass,
    growth_efficiency,
    run_pass,
    timing_after_change,
)

CORES = 8.0
RULES = Rules(alpha=0.03, interval_s=10.0)


# ---------------------------------------------------------------- growth efficiency


def samples(*losses: float | None, every_s: float = 5.0, share: float = 0.5) -> list[Sample]:
    """Return samples with these losses, every `every_s` seconds."""
    return [Sample((i + 1) * every_s, loss, share) for i, loss in enumerate(losses)]


def test_growth_is_the_normalised_loss_change_per_second_and_cpu_share():
    assert growth_efficiency(samples(4.0, 2.0, 1.0, 1.0), now=20, interval_s=10) == pytest.approx(
        (3 - 1) / 4 / 10 / 0.5
    )


def test_a_rising_loss_counts_as_progress_too():
    assert growth_efficiency(samples(1.0, 1.0, 2.0, 2.0), now=20, interval_s=10) == pytest.approx(
        0.5 / 10 / 0.5
    )


def test_the_largest_earlier_loss_normalises_too():
    assert growth_efficiency(
        samples(4.0, 2.0, 1.0, 1.0), now=20, interval_s=10, largest=8.0
    ) == pytest.approx(2 / 8 / 10 / 0.5)


@pytest.mark.parametrize(
    "losses", [(), (1.0,), (None, None, 1.0, 1.0), (1.0, 1.0, math.nan, math.inf), (0.0,) * 4]
)
def test_without_two_intervals_of_usable_losses_there_is_no_growth(losses):
    assert growth_efficiency(samples(*losses), now=20, interval_s=10) == 0.0


@pytest.mark.parametrize("share", [0.0, math.nan, None])
def test_without_cpu_there_is_no_growth(share):
    assert growth_efficiency(samples(4.0, 2.0, 1.0, 1.0, share=share), now=20, interval_s=10) == 0.0


@given(st.lists(st.one_of(st.none(), st.floats()), max_size=12), st.floats(), st.floats(0, 100))
@example([None] * 5 + [0.0, 1.0], 5e-324, 40.0)
def test_growth_is_finite_for_any_readings(losses, share, now):
    assert 0 <= growth_efficiency(samples(*losses, share=share), now, 10.0) < math.inf


# ---------------------------------------------------------------- Algorithm 1


def container(
    name: str = "a", growth: float = 0.0, limit: float = CORES, list_: str = "NL"
) -> Container:
    return Container(
        name=name, limit=limit, growth=growth, watching=list_ == "WL", completing=list_ == "CL"
    )


def lists(containers: tuple[Container, ...]) -> list[str]:
    return ["WL" if c.watching else "CL" if c.completing else "NL" for c in containers]


def limits(containers: tuple[Container, ...]) -> list[float]:
    return [round(c.limit, 4) for c in containers]


@pytest.mark.parametrize(
    ("growth", "before", "after"),
    [
        (0.02, "NL", "WL"),
        (0.02, "WL", "CL"),
        (0.02, "CL", "CL"),
        (0.03, "NL", "NL"),
        (0.03, "WL", "NL"),
        (0.03, "CL", "NL"),
    ],
)
def test_a_low_reading_moves_a_container_one_list_and_a_high_one_back(growth, before, after):
    others = container("b", 0.05)
    assert lists(run_pass([container("a", growth, list_=before), others], CORES, RULES)) == [
        after,
        "NL",
    ]


def test_growing_containers_share_the_cores_by_their_growth():
    assert limits(run_pass([container("a", 0.06), container("b", 0.03)], CORES, RULES)) == [
        5.3333,
        2.6667,
    ]


def test_a_watched_container_keeps_its_limit_and_counts_in_the_sum():
    judged = run_pass([container("a", 0.02, limit=5.0), container("b", 0.06)], CORES, RULES)
    assert lists(judged) == ["WL", "NL"] and limits(judged) == [5.0, 6.0]


def test_a_completing_container_gets_one_of_n_plus_one_parts():
    judged = run_pass(
        [container("a", 0.001, list_="WL"), container("b", 0.05), container("c", 0.05)],
        CORES,
        RULES,
    )
    assert lists(judged) == ["CL", "NL", "NL"]
    assert limits(judged)[0] == CORES / 4  # 1 / (beta n), beta = 1 + 1/3
    assert sum(limits(judged)) > CORES  # soft limits, no partition


def test_limits_are_fractions_of_a_core_with_a_floor():
    assert (
        limits(run_pass([container("a", 0.04), container("b", 90.0)], CORES, RULES))[0]
        == RULES.floor_cpu
    )


def test_without_growth_no_limit_changes():
    judged = run_pass(
        [container("a", limit=3.0, list_="WL"), container("b", limit=5.0, list_="CL")], CORES, RULES
    )
    assert limits(judged) == [3.0, 5.0]


def test_limits_are_removed_in_the_pass_after_all_are_completing():
    first = run_pass(
        [container("a", 0.01, 2.0, "CL"), container("b", 0.01, 3.0, "WL")], CORES, RULES
    )
    assert lists(first) == ["CL", "CL"] and limits(first) == [4.0, 4.0]
    assert limits(run_pass(first, CORES, RULES)) == [CORES, CORES]


# ---------------------------------------------------------------- Algorithm 2


def test_the_interval_doubles_while_all_are_completing():
    timing, flat = (
        Timing(interval_s=10, due_s=0, names=frozenset("ab")),
        [container("a", list_="CL")],
    )
    for now, interval in ((0, 20), (20, 40), (60, 80)):
        timing = after_pass(timing, flat, now, RULES)
        assert (timing.interval_s, timing.due_s) == (interval, now + interval)
    assert after_pass(timing, [*flat, container("b")], 140, RULES).interval_s == 80


@pytest.mark.parametrize("names", ["abc", "a"], ids=["arrival", "departure"])
def test_an_arrival_or_departure_resets_the_interval(names):
    resting = Timing(interval_s=80, due_s=500, names=frozenset("ab"))
    assert timing_after_change(resting, frozenset("ab"), 105, RULES) == resting
    assert timing_after_change(resting, frozenset(names), 105, RULES) == Timing(
        interval_s=10, due_s=105, names=frozenset(names)
    )
