"""Bars: where a pause begins and ends on its axis."""

from __future__ import annotations

import re

import pytest

from services.console.board.job_history import GenerationSpan
from services.console.report import charts, drawing
from shared.messages import Phases

EDGE = drawing.WIDE - charts.RIGHT
"""Pixels at which the longest pause ends."""


def paused(pause_s: float, phases: Phases) -> GenerationSpan:
    return GenerationSpan(generation=2, resumed_s=10.0, pause_s=pause_s, phases=phases)


def boxes(drawn: str) -> dict[str, tuple[float, float]]:
    """Left and right edge of each part of a row, by what it says of itself."""
    found = re.findall(
        r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"[^>]*><title>([^:]+):', drawn
    )
    return {said: (float(left), float(left) + float(width)) for left, width, said in found}


def zero(drawn: str) -> float:
    """Where the rule of the last update stands."""
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
