"""Tests of cells: the letter of a job and its contrast, bars, and curves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.console.text.cells import (
    MANY,
    OKABE_ITO,
    Part,
    badge,
    bar,
    curve,
    letters,
    progress,
    style,
)

JOBS = st.lists(st.sampled_from([f"default.job-{n}" for n in range(40)]), unique=True, max_size=40)


@given(st.lists(JOBS, min_size=1, max_size=6))
def test_jobs_keep_their_unique_letters(rounds: list[list[str]]) -> None:
    known: dict[str, str] = {}
    for there in rounds:
        now = letters(known, there)
        assert set(now) == set(there)
        own = [letter for letter in now.values() if letter != MANY]
        assert len(set(own)) == len(own) == min(len(there), 26) or MANY in known.values()
        assert all(now[job] == known[job] for job in there if job in known)
        known = now


def luminance(colour: str) -> float:
    """Return the relative luminance, as the Web Content Accessibility Guidelines define it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(
        weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
    )


def test_every_letter_has_enough_contrast() -> None:
    for ink, ground in OKABE_ITO:
        dark, light = sorted((luminance(ink), luminance(ground)))
        assert (light + 0.05) / (dark + 0.05) > 4.5, (ink, ground)


def test_neighbouring_letters_have_different_colours() -> None:
    assert style("A") != style("B") and badge("A").plain == " A "


AMOUNTS = st.lists(st.floats(0, 1e6), min_size=1, max_size=8).filter(
    lambda amounts: sum(amounts) > 0
)


@given(AMOUNTS, st.integers(1, 120))
def test_a_bar_has_the_given_width_and_proportional_parts(amounts: list[float], width: int) -> None:
    drawn = bar([Part(amount, chr(65 + at)) for at, amount in enumerate(amounts)], width).plain

    assert len(drawn) == width
    for at, amount in enumerate(amounts):
        assert abs(drawn.count(chr(65 + at)) - amount / sum(amounts) * width) <= 1 + 1e-9


def test_an_empty_bar_is_empty() -> None:
    assert bar([], 10).plain == bar([Part(0.0, "A")], 10).plain == ""


def test_a_curve_spans_its_minimum_and_maximum() -> None:
    assert curve([9.0, 3.0, 2.0, 1.0], 3) == "█▅▁" or curve([9.0, 3.0, 2.0, 1.0], 3) == "█▄▁"
    assert curve([1.0, 1.0], 8) == "▁▁" and curve([], 8) == ""


def test_a_progress_bar_is_proportional() -> None:
    assert (
        progress(0.5, 10) == "█████─────" and progress(1.2, 4) == "████" and progress(None, 4) == ""
    )
