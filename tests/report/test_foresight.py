"""What was foreseen is as the decision said; what came is measured, by the same formula."""

from __future__ import annotations

import pytest

from services.report.foresight import foresights
from tests.report.story import EXAMPLES, begun_at_ten, of_digits, report, whole


def test_a_growth_is_held_against_the_speeds_that_were_measured() -> None:
    story = of_digits(whole().board)
    came = list(foresights(story))[1]
    first, second = story.stretches[:2]
    before = (first.last.samples - first.first.samples) / (first.last.at_s - first.first.at_s)
    after = (second.last.samples - second.first.samples) / (second.last.at_s - second.first.at_s)
    left = EXAMPLES - next(r.samples for r in reversed(story.reports) if r.at_s <= 41)

    assert (came.outcome.decision.gain_s, came.outcome.decision.cost_s, came.outcome.pause_s) == (95.0, 1.0, 0.71)
    assert came.remaining == left
    assert came.saved_s == pytest.approx(left / before - left / after)
    assert came.foreseen_speed == pytest.approx(left / (left / before - 95.0))


def test_of_a_start_nothing_was_foreseen() -> None:
    first = next(iter(foresights(of_digits(whole().board))))

    assert (first.number, first.foreseen_speed, first.saved_s) == (1, None, None)
    assert first.outcome.resumed_s == 20


def test_what_did_not_come_to_be_has_saved_nothing() -> None:
    last = list(foresights(of_digits(whole().board)))[-1]

    assert last.outcome.decision.abandoned == "digits-worker-7 is unschedulable"
    assert last.saved_s is None and last.outcome.pause_s is None


def test_before_the_first_report_nothing_is_known_of_what_is_left() -> None:
    log = begun_at_ten()
    assert [one.remaining for one in foresights(of_digits(log.board))] == [None]
    log.say(30, report(1, 500, 60.0))
    assert [one.remaining for one in foresights(of_digits(log.board))] == [None]
