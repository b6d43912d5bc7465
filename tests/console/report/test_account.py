"""Tests of the account: every core-second that the job held is in one part.

The ends of epochs lie between two reports, in proportion to the examples; a pause is not divided. A
predicted result is that of the decision; the measured one follows the same formula.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from services.console.board.figures import core_seconds
from services.console.report.account import (
    Passes,
    account_job,
    cluster_shares,
    decision_results,
    fold_epochs,
)
from shared.messages import Resources
from tests.allocator.builders import accepted, request
from tests.console.report.story import (
    ASKED_S,
    EPOCHS,
    EXAMPLES,
    UID,
    Log,
    begun_at_ten,
    decided,
    even,
    of_digits,
    pods,
    report,
    resumed,
    whole,
)


def test_completion_time_is_waiting_plus_pauses_plus_training() -> None:
    log = whole()
    found = account_job(log.board, of_digits(log.board))

    assert (found.over, found.from_s, found.to_s, found.completion_s) == (True, ASKED_S, 116, 106)
    assert (found.waited_s, found.pauses) == (10, 2)
    assert found.paused_s == pytest.approx(0.71 + 7.6)
    assert found.trained_s == pytest.approx(106 - 10 - 8.31)


def test_time_with_the_cluster_off_is_neither_training_nor_pause() -> None:
    log = (
        begun_at_ten()
        .say(30, report(1, 900, 34.0, 0.5))
        .say(700, resumed(2, 1000, pause_s=8.0, off_s=600.0))
    )
    found = account_job(log.board, of_digits(log.board))

    assert (found.pauses, found.paused_s, found.off_s) == (1, 8.0, 600.0)
    assert found.completion_s == 690 and found.trained_s == 690 - 10 - 8 - 600
    assert of_digits(log.board).generation_spans[0].ended_s == 700 - 608


def test_the_parts_of_held_time_sum_to_the_total() -> None:
    log = whole()
    story = of_digits(log.board)

    assert account_job(log.board, story).parts.held_total == pytest.approx(
        core_seconds(story, log.board.at_s)
    )
    assert account_job(log.board, story).parts.held_total == pytest.approx(
        1.5 * (42 - 12) + 3.5 * (118 - 42)
    )


def test_each_part_is_time_multiplied_by_cores() -> None:
    log = whole()
    found = account_job(log.board, of_digits(log.board)).parts

    assert found.starting == pytest.approx(1.5 * (20 - 12))  # held from 12 s, first update at 20 s
    assert found.beside == pytest.approx(
        2.0 * (50 - 0.71 - 42)
    )  # the pods of generation 2 while generation 1 still trained
    assert found.paused == pytest.approx(3.5 * (0.71 + 7.6))
    assert found.ending == pytest.approx(3.5 * 2)
    assert found.training == pytest.approx(
        found.held_total - found.starting - found.beside - found.paused - found.ending
    )


def test_used_time_is_the_sum_of_the_reports() -> None:
    log = begun_at_ten().say(22, report(1, 100, 34.0, 0.5)).say(25, report(1, 200, 33.0, 1.0))
    found = account_job(log.board, of_digits(log.board))

    assert found.used_core_s == pytest.approx(0.5 * 2 + 1.0 * 3)
    assert found.utilisation == pytest.approx(4.0 / (1.5 * (25 - 12)))


def test_redone_work_is_lost_examples_at_the_earlier_speed_and_cores() -> None:
    log = whole()
    story = of_digits(log.board)
    found = account_job(log.board, story)
    second = story.generation_spans[1]
    speed = (second.last.samples - second.first.samples) / (second.last.at_s - second.first.at_s)

    assert found.lost == 500
    assert found.done_again_core_s == pytest.approx(500 / speed * 3.5)


def test_throughput_is_counted_examples_over_all_time_since_the_first() -> None:
    log = whole()
    assert account_job(log.board, of_digits(log.board)).examples_per_second == pytest.approx(
        EXAMPLES / (116 - 20)
    )


def test_a_running_job_is_reported_up_to_its_last_message() -> None:
    log = begun_at_ten().say(30, report(1, 500, 60.0, 1.0))
    found = account_job(log.board, of_digits(log.board))

    assert (found.over, found.to_s, found.completion_s) == (False, 30, 20)


def test_a_waiting_job_has_no_training() -> None:
    asked = request("digits", epochs=EPOCHS)
    log = (
        Log()
        .say(0, pods(0))
        .say(ASKED_S, asked, accepted(asked, uid=UID))
        .say(30, pods(0, others=1.0))
    )
    found = account_job(log.board, of_digits(log.board))

    assert (found.waited_s, found.trained_s, found.examples_per_second, found.utilisation) == (
        None,
        0.0,
        None,
        None,
    )


def test_cluster_shares_are_integrals_over_the_jobs_time() -> None:
    log = Log().say(0, pods(0)).say(50, pods(4, others=1.0)).say(75, pods(0, others=2.0))

    assert cluster_shares(log.board.cluster, 0, 100) == pytest.approx(
        (2 * 25 / 400, (3 * 25 + 2 * 25) / 400)
    )
    assert cluster_shares(log.board.cluster, 60, 70) == pytest.approx((0.5, 0.75))
    assert cluster_shares((), 0, 100) == (None, None)


def test_cores_added_in_place_count_as_training() -> None:
    more = Resources(cpu=1.0)
    grown = decided(1, 1, 1, 25.0, revision=5)
    own = tuple(replace(pod, resources=more) for pod in pods(3).own)
    log = begun_at_ten().say(
        25, replace(grown, tasks=tuple(replace(task, resources=more) for task in grown.tasks))
    )
    log.say(25, replace(pods(3), own=own, seen="1")).say(30, report(1, 500, 60.0))

    assert account_job(log.board, of_digits(log.board)).parts.training == pytest.approx(
        1.5 * 5 + 3.0 * 5
    )


def test_the_end_of_an_epoch_is_interpolated_between_two_reports() -> None:
    log = (
        begun_at_ten()
        .say(30, report(1, 1_900, 60))
        .say(32, report(1, 2_100, 60))
        .say(40, report(1, 4_000, 60))
    )

    assert log.passes.seconds == [11, 9]  # from the first update at 20 s to 31 s, then to 40 s


def test_epochs_between_two_reports_have_equal_durations() -> None:
    log = begun_at_ten().say(20, report(1, 100, 60)).say(40, report(1, 8_100, 60))

    assert log.passes.seconds == pytest.approx([4.75, 5, 5, 5])


def test_a_pause_belongs_to_its_epoch() -> None:
    log = (
        begun_at_ten()
        .say(30, report(1, 1_900, 60))
        .say(90, resumed(2, 1_950))
        .say(92, report(2, 2_050, 60))
    )

    assert log.passes.seconds == [71]


def test_an_epoch_that_ended_after_the_last_report_ended_before_the_pause() -> None:
    log = begun_at_ten().say(30, report(1, 1_900, 60)).say(50, resumed(2, 2_100, pause_s=18.0))

    assert log.passes.seconds == [11]  # at 31 s, halfway from 30 s to 32 s, when the pause began


def test_a_rolled_back_epoch_ends_when_it_is_complete_again() -> None:
    log = begun_at_ten().say(30, report(1, 2_100, 60)).say(35, resumed(2, 1_800))
    assert log.passes.seconds == []

    assert log.say(37, report(2, 2_200, 60)).passes.seconds == [16]


def test_all_epochs_are_between_the_first_update_and_the_last_report() -> None:
    seconds = whole().passes.seconds

    assert len(seconds) == EPOCHS and min(seconds) > 0
    assert 20 + sum(seconds) <= 115


def test_epochs_of_a_later_job_start_anew_and_those_of_an_earlier_one_are_ignored() -> None:
    log = (
        begun_at_ten()
        .say(30, report(1, 2_100, 60))
        .say(50, accepted(request("digits", epochs=3), uid=9))
    )
    log.say(51, replace(report(1, 2_200, 60), uid=UID))
    assert log.passes == Passes(9, 3)

    assert log.say(60, replace(resumed(1, 32), uid=9)).passes.began_s == 60


def test_no_epoch_is_counted_before_the_job_is_known() -> None:
    assert fold_epochs(Passes(), Log().say(0, resumed(1, 32)).told[0]) == Passes()


def test_a_growth_is_compared_with_measured_speeds() -> None:
    story = of_digits(whole().board)
    result = list(decision_results(story))[1]
    first, second = story.generation_spans[:2]
    decided = next(r for r in reversed(story.reports) if r.at_s <= 41)
    before = (decided.samples - first.first.samples) / (decided.at_s - first.first.at_s)
    after = (second.last.samples - second.first.samples) / (second.last.at_s - second.first.at_s)
    remaining, left = EXAMPLES - decided.samples, EXAMPLES - first.last.samples

    assert (
        result.outcome.decision.gain_s,
        result.outcome.decision.cost_s,
        result.outcome.pause_s,
    ) == (
        95.0,
        1.0,
        0.71,
    )
    assert (result.remaining, result.left) == (remaining, left)
    assert result.saved_s == pytest.approx(left / before - left / after)
    assert result.forecast_speed == pytest.approx(remaining / (remaining / before - 95.0))


def test_a_slowdown_during_preparation_is_a_cost_and_not_the_earlier_speed() -> None:
    """100 examples/s, 40 in the minute of preparation, 110 after a pause of 2 s.

    Of the 12,000 examples too few are left for the growth to pay off.
    """
    log = begun_at_ten()
    at = even(log, 1, 20, 20, 32, 100)
    log.say(40.5, decided(2, 1, 2, 40.5, gain_s=30.0, cost_s=2.0))
    at = even(log, 1, 40, 60, at, 40)
    log.say(102, resumed(2, at, previous=1, pause_s=2.0))
    even(log, 2, 102, 10, at, 110)
    result = list(decision_results(of_digits(log.board)))[1]

    assert result.outcome.before == pytest.approx(100.0)
    assert result.outcome.slowed_s == pytest.approx(60 - 60 * 40 / 100)
    assert result.saved_s == pytest.approx(result.left / 100 - result.left / 110)
    assert (
        result.total_saved_s == pytest.approx(result.saved_s - 36.0 - 2.0)
        and result.total_saved_s < 0 < result.saved_s
    )


def test_a_start_has_no_predicted_speed() -> None:
    first = next(iter(decision_results(of_digits(whole().board))))

    assert (first.number, first.forecast_speed, first.saved_s) == (1, None, None)
    assert first.outcome.resumed_s == 20


def test_an_abandoned_generation_saved_nothing() -> None:
    last = list(decision_results(of_digits(whole().board)))[-1]

    assert last.outcome.decision.abandoned == "digits-worker-7 is unschedulable"
    assert last.saved_s is None and last.outcome.pause_s is None


def test_before_the_first_report_the_remaining_work_is_unknown() -> None:
    log = begun_at_ten()
    assert [one.remaining for one in decision_results(of_digits(log.board))] == [None]
    log.say(30, report(1, 500, 60.0))
    assert [one.remaining for one in decision_results(of_digits(log.board))] == [None]
