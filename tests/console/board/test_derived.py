"""What follows from a board: each number by the formula that stands beside it."""

from __future__ import annotations

import pytest

from services.allocator.job_views import JobView
from services.console.board import derived
from services.console.board.nodes import Totals
from tests.console.board.builders import decided
from tests.console.board.test_story import JOB, handed_over


def view(**more: float) -> JobView:
    usual = {"samples": 250, "total_samples": 1000, "samples_per_second": 50.0}
    return JobView(job="mnist", namespace="default", uid=1, phase="Running", **(usual | more))  # type: ignore[arg-type]


def test_what_is_left_takes_as_long_as_it_does_at_the_present_speed() -> None:
    assert derived.share(view()) == 0.25 and derived.left_s(view()) == 15.0


def test_nobody_knows_when_a_job_ends_that_does_not_say_how_fast_it_is() -> None:
    assert derived.left_s(view(samples_per_second=0.0)) is None
    assert (
        derived.left_s(view(total_samples=0)) is None
        and derived.share(view(total_samples=0)) is None
    )


def test_utilisation_is_the_share_of_the_cores_that_there_are() -> None:
    totals = Totals(allocatable=8.0, ours=6.0, used=3.0)

    assert (derived.utilisation(totals), derived.use(totals)) == (0.75, 0.375)
    assert derived.utilisation(Totals()) is derived.use(Totals()) is None


def test_cpu_hours_go_on_while_its_pods_hold_cores() -> None:
    story = handed_over().board.jobs[JOB]

    assert derived.core_seconds(story, now_s=20.0) == 3.0 * 5.0 + 5.0 * 10.0
    assert derived.cpu_hours(story, now_s=20.0) == pytest.approx(65.0 / 3600)


def test_a_decision_is_held_against_what_came_of_it() -> None:
    log = handed_over()
    first, second = derived.outcomes(log.board.jobs[JOB])

    assert (first.before, first.after, first.pause_s) == (None, 140.0, None)
    assert (second.before, second.after, second.pause_s, second.reaction_s) == (
        140.0,
        300.0,
        0.5,
        2.0,
    )


def test_of_what_has_not_come_nothing_is_told() -> None:
    log = handed_over()
    log.say(decided(3, workers=4))
    *_, last = derived.outcomes(log.board.jobs[JOB])

    assert (last.resumed_s, last.reaction_s, last.after) == (None, None, None)


def test_the_small_curve_is_the_last_losses() -> None:
    story = handed_over().board.jobs[JOB]

    assert derived.losses(story, 2) == [0.5, 0.5] and len(derived.losses(story)) == 4
    assert derived.curve(story.reports)[0] == (story.reports[0].at_s, 0.5)
