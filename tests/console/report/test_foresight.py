"""What was foreseen is as the decision said; what came is measured, by the same formula."""

from __future__ import annotations

import pytest

from services.console.report.foresight import foresights
from tests.console.report.story import (
    EXAMPLES,
    begun_at_ten,
    decided,
    even,
    of_digits,
    report,
    resumed,
    whole,
)


def test_a_growth_is_held_against_the_speeds_that_were_measured() -> None:
    story = of_digits(whole().board)
    came = list(foresights(story))[1]
    first, second = story.stretches[:2]
    decided = next(r for r in reversed(story.reports) if r.at_s <= 41)
    before = (decided.samples - first.first.samples) / (decided.at_s - first.first.at_s)
    after = (second.last.samples - second.first.samples) / (second.last.at_s - second.first.at_s)
    remaining, left = EXAMPLES - decided.samples, EXAMPLES - first.last.samples

    assert (came.outcome.decision.gain_s, came.outcome.decision.cost_s, came.outcome.pause_s) == (
        95.0,
        1.0,
        0.71,
    )
    assert (came.remaining, came.left) == (remaining, left)
    assert came.saved_s == pytest.approx(left / before - left / after)
    assert came.foreseen_speed == pytest.approx(remaining / (remaining / before - 95.0))


def test_what_slows_while_the_next_is_prepared_is_a_cost_and_not_the_speed_before() -> None:
    """100 examples/s, 40 in the minute of preparation, 110 after a pause of 2 s: of 12,000 too few
    are left.
    """
    log = begun_at_ten()
    at = even(log, 1, 20, 20, 32, 100)
    log.say(40.5, decided(2, 1, 2, 40.5, gain_s=30.0, cost_s=2.0))
    at = even(log, 1, 40, 60, at, 40)
    log.say(102, resumed(2, at, previous=1, pause_s=2.0))
    even(log, 2, 102, 10, at, 110)
    came = list(foresights(of_digits(log.board)))[1]

    assert came.outcome.before == pytest.approx(100.0)
    assert came.outcome.slowed_s == pytest.approx(60 - 60 * 40 / 100)
    assert came.saved_s == pytest.approx(came.left / 100 - came.left / 110)
    assert (
        came.in_all_s == pytest.approx(came.saved_s - 36.0 - 2.0)
        and came.in_all_s < 0 < came.saved_s
    )


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
