"""Tests of charts: bars, scales, ticks and lines."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.console.board.job_history import GenerationSpan
from services.console.report import charts, drawing
from services.console.report.drawing import Panel, Scale
from shared.messages import Phases

EDGE = drawing.WIDE - charts.RIGHT
"""The x position in pixels at which the longest pause ends."""


def paused(pause_s: float, phases: Phases) -> GenerationSpan:
    return GenerationSpan(generation=2, resumed_s=10.0, pause_s=pause_s, phases=phases)


def boxes(drawn: str) -> dict[str, tuple[float, float]]:
    """Return the left and right edge of each part of a row, by the name in its title."""
    found = re.findall(
        r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"[^>]*><title>([^:]+):', drawn
    )
    return {said: (float(left), float(left) + float(width)) for left, width, said in found}


def zero(drawn: str) -> float:
    """Return the x position of the vertical line at the last update."""
    rule = re.search(r'<path d="M([\d.]+) 24.0V', drawn)
    assert rule
    return float(rule[1])


def test_a_pause_is_drawn_as_long_as_its_duration() -> None:
    drawn = charts.draw_pauses(
        [paused(1.3, Phases(drain_s=0.63, save_s=0.3, restore_s=0.4, first_step_s=0.3))]
    )
    drain, last = boxes(drawn)["drain"], boxes(drawn)["first step"]

    a_second = (EDGE - charts.LEFT) / 1.63
    assert drain[0] == pytest.approx(charts.LEFT, abs=0.2) and last[1] == pytest.approx(
        EDGE, abs=0.2
    )
    assert zero(drawn) == pytest.approx(charts.LEFT + 0.33 * a_second, abs=0.2)
    assert ">1.30 s<" in drawn and "seconds since the last update" in drawn


def test_a_pause_longer_than_its_phases_starts_with_the_remainder() -> None:
    drawn = charts.draw_pauses([paused(2.0, Phases(restore_s=0.4, first_step_s=1.1))])
    rest, restore = boxes(drawn)["waiting"], boxes(drawn)["restore"]

    assert (
        zero(drawn) == charts.LEFT == rest[0]
        and "waiting: decision, tasks, connect, trace" in drawn
    )
    assert restore[0] == pytest.approx(charts.LEFT + (EDGE - charts.LEFT) * 0.25, abs=0.2)


PANEL = Panel(Scale(0, 10, 100, 200), Scale(0, 5, 50, 0))


@pytest.mark.parametrize(
    ("high", "found"),
    [
        (10, [0, 2, 4, 6, 8, 10]),
        (106, [0, 20, 40, 60, 80, 100]),
        (0.71, [0, 0.2, 0.4, 0.6]),
        (3, [0, 1, 2, 3]),
        (0, [0]),
    ],
)
def test_ticks_are_round_and_lie_within(high: float, found: list[float]) -> None:
    assert drawing.ticks(high, 5) == found


@given(st.floats(1e-3, 1e9), st.integers(2, 9))
def test_the_number_of_ticks_is_bounded(high: float, about: int) -> None:
    found = drawing.ticks(high, about)

    assert 2 <= len(found) <= about + 2 and found == sorted(found)
    assert found[0] == 0 and found[-1] <= high * (1 + 1e-9)


def test_a_value_is_drawn_at_its_scaled_position() -> None:
    assert drawing.line(PANEL, [(0, 0), (5, 5), (10, 2.5)], "blue") == (
        '<polyline points="100.0,50.0 150.0,0.0 200.0,25.0" class="line blue"/>'
    )


def test_a_step_lasts_until_the_next_and_the_last_to_the_end() -> None:
    assert drawing.step_points([(0, 1), (4, 3)], 10) == [(0, 1), (4, 1), (4, 3), (10, 3)]
    assert drawing.step_points([], 10) == []


def test_a_single_point_is_a_dot() -> None:
    assert (
        drawing.line(PANEL, [(5, 5)], "blue")
        == '<circle cx="150.0" cy="0.0" r="2.5" class="dot blue"/>'
    )
    assert drawing.line(PANEL, [], "blue") == ""


def test_a_short_pause_has_a_minimum_width() -> None:
    assert 'width="1.5"' in drawing.band(PANEL, 4, 4.001, "pause")


def test_external_text_is_escaped() -> None:
    assert "<b>" not in drawing.words(0, 0, "<b>") and "&lt;b&gt;" in drawing.rectangle(
        0, 0, 1, 1, "x", "<b>"
    )


@pytest.mark.parametrize(
    ("seconds", "name"), [(106, "seconds"), (3_000, "minutes"), (40_000, "hours")]
)
def test_time_has_a_fitting_unit(seconds: float, name: str) -> None:
    assert drawing.unit_of(seconds).name == name
