"""Where time and cores went: every core-second that was held is in one part, and every part is
traced to facts.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from services.console.board.derived import core_seconds
from services.console.report.account import account, cluster_shares
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
    of_digits,
    pods,
    report,
    resumed,
    whole,
)


def test_the_completion_time_is_from_submission_to_the_end_and_splits_into_waiting_pauses_and_training() -> (
    None
):
    log = whole()
    found = account(log.board, of_digits(log.board))

    assert (found.over, found.from_s, found.to_s, found.completion_s) == (True, ASKED_S, 116, 106)
    assert (found.waited_s, found.pauses) == (10, 2)
    assert found.paused_s == pytest.approx(0.71 + 7.6)
    assert found.trained_s == pytest.approx(106 - 10 - 8.31)


def test_while_the_whole_cluster_was_off_nothing_was_trained_and_nothing_paused() -> None:
    log = (
        begun_at_ten()
        .say(30, report(1, 900, 34.0, 0.5))
        .say(700, resumed(2, 1000, pause_s=8.0, off_s=600.0))
    )
    found = account(log.board, of_digits(log.board))

    assert (found.pauses, found.paused_s, found.off_s) == (1, 8.0, 600.0)
    assert found.completion_s == 690 and found.trained_s == 690 - 10 - 8 - 600
    assert of_digits(log.board).stretches[0].ended_s == 700 - 608


def test_the_parts_of_what_was_held_are_all_of_it() -> None:
    log = whole()
    story = of_digits(log.board)

    assert account(log.board, story).parts.held == pytest.approx(
        core_seconds(story, log.board.at_s)
    )
    assert account(log.board, story).parts.held == pytest.approx(1.5 * (42 - 12) + 3.5 * (118 - 42))


def test_each_part_is_what_its_time_and_cores_say() -> None:
    log = whole()
    found = account(log.board, of_digits(log.board)).parts

    assert found.starting == pytest.approx(
        1.5 * (20 - 12)
    )  # held since second 12, first update at 20
    assert found.beside == pytest.approx(
        2.0 * (50 - 0.71 - 42)
    )  # the pods of generation 2 while 1 trained on
    assert found.paused == pytest.approx(3.5 * (0.71 + 7.6))
    assert found.ending == pytest.approx(3.5 * 2)
    assert found.training == pytest.approx(
        found.held - found.starting - found.beside - found.paused - found.ending
    )


def test_what_was_used_is_the_sum_of_what_reports_measured() -> None:
    log = begun_at_ten().say(22, report(1, 100, 34.0, 0.5)).say(25, report(1, 200, 33.0, 1.0))
    found = account(log.board, of_digits(log.board))

    assert found.used_core_s == pytest.approx(0.5 * 2 + 1.0 * 3)
    assert found.utilisation == pytest.approx(4.0 / (1.5 * (25 - 12)))


def test_work_done_again_is_what_was_lost_at_the_speed_of_before_by_the_cores_of_before() -> None:
    log = whole()
    story = of_digits(log.board)
    found = account(log.board, story)
    second = story.stretches[1]
    speed = (second.last.samples - second.first.samples) / (second.last.at_s - second.first.at_s)

    assert found.lost == 500
    assert found.done_again_core_s == pytest.approx(500 / speed * 3.5)


def test_examples_a_second_are_those_that_count_over_all_the_time_since_the_first() -> None:
    log = whole()
    assert account(log.board, of_digits(log.board)).examples_per_second == pytest.approx(
        EXAMPLES / (116 - 20)
    )


def test_a_job_that_trains_is_told_up_to_the_newest_word() -> None:
    log = begun_at_ten().say(30, report(1, 500, 60.0, 1.0))
    found = account(log.board, of_digits(log.board))

    assert (found.over, found.to_s, found.completion_s) == (False, 30, 20)


def test_a_job_that_waits_has_trained_nothing() -> None:
    asked = request("digits", epochs=EPOCHS)
    log = (
        Log()
        .say(0, pods(0))
        .say(ASKED_S, asked, accepted(asked, uid=UID))
        .say(30, pods(0, others=1.0))
    )
    found = account(log.board, of_digits(log.board))

    assert (found.waited_s, found.trained_s, found.examples_per_second, found.utilisation) == (
        None,
        0.0,
        None,
        None,
    )


def test_the_cluster_s_shares_are_integrals_over_the_job_s_time() -> None:
    log = Log().say(0, pods(0)).say(50, pods(4, others=1.0)).say(75, pods(0, others=2.0))

    assert cluster_shares(log.board.cluster, 0, 100) == pytest.approx(
        (2 * 25 / 400, (3 * 25 + 2 * 25) / 400)
    )
    assert cluster_shares(log.board.cluster, 60, 70) == pytest.approx((0.5, 0.75))
    assert cluster_shares((), 0, 100) is None


def test_cores_that_a_generation_is_given_in_place_train_too() -> None:
    more = Resources(cpu=1.0)
    grown = decided(1, 1, 1, 25.0, revision=5)
    own = tuple(replace(pod, resources=more) for pod in pods(3).own)
    log = begun_at_ten().say(
        25, replace(grown, tasks=tuple(replace(task, resources=more) for task in grown.tasks))
    )
    log.say(25, replace(pods(3), own=own, seen="1")).say(30, report(1, 500, 60.0))

    assert account(log.board, of_digits(log.board)).parts.training == pytest.approx(
        1.5 * 5 + 3.0 * 5
    )
