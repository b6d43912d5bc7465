"""Tests of the figures computed from a board, the changes sent to viewers, and the held cores."""

from __future__ import annotations

import pytest

from services.allocator.job_views import JobView
from services.console.board import figures
from services.console.board.board import initial_board
from services.console.board.cluster import MAX_POINTS, Totals
from services.console.board.figures import (
    COLUMNS,
    NAMED,
    NONE,
    Stack,
    board_changes,
    sample_at,
    stack_cores,
)
from services.console.board.job_history import Held
from tests.allocator.builders import accepted, request
from tests.console.board.builders import Log, decided, holding, progress
from tests.console.board.test_board import JOB as BOARD_JOB
from tests.console.board.test_board import running
from tests.console.board.test_job_history import JOB, handed_over


def view(**more: float) -> JobView:
    usual = {"samples": 250, "total_samples": 1000, "samples_per_second": 50.0}
    return JobView(job="mnist", namespace="default", uid=1, phase="Running", **(usual | more))  # type: ignore[arg-type]


def test_the_remaining_time_is_at_the_current_speed() -> None:
    assert figures.share_done(view()) == 0.25 and figures.time_left_s(view()) == 15.0


def test_without_a_speed_the_remaining_time_is_unknown() -> None:
    assert figures.time_left_s(view(samples_per_second=0.0)) is None
    assert (
        figures.time_left_s(view(total_samples=0)) is None
        and figures.share_done(view(total_samples=0)) is None
    )


def test_utilisation_is_the_share_of_all_cores() -> None:
    totals = Totals(allocatable=8.0, ours=6.0, used=3.0)

    assert (figures.utilisation(totals), figures.use(totals)) == (0.75, 0.375)
    assert figures.utilisation(Totals()) is figures.use(Totals()) is None


def test_cpu_hours_increase_while_pods_hold_cores() -> None:
    story = handed_over().board.jobs[JOB]

    assert figures.core_seconds(story, now_s=20.0) == 3.0 * 5.0 + 5.0 * 10.0
    assert figures.cpu_hours(story, now_s=20.0) == pytest.approx(65.0 / 3600)


def test_a_decision_is_compared_with_its_outcome() -> None:
    log = handed_over()
    first, second = figures.decision_outcomes(log.board.jobs[JOB])

    assert (first.before, first.after, first.pause_s) == (None, 140.0, None)
    assert (second.before, second.after, second.pause_s, second.reaction_s) == (
        140.0,
        300.0,
        0.5,
        2.0,
    )


def test_a_pending_outcome_has_no_figures() -> None:
    log = handed_over()
    log.say(decided(3, workers=4))
    *_, last = figures.decision_outcomes(log.board.jobs[JOB])

    assert (last.resumed_s, last.reaction_s, last.after) == (None, None, None)


def test_the_small_curve_has_the_last_losses() -> None:
    story = handed_over().board.jobs[JOB]

    assert figures.recent_losses(story, 2) == [0.5, 0.5] and len(figures.recent_losses(story)) == 4
    assert figures.loss_curve(story.reports)[0] == (story.reports[0].at_s, 0.5)


def test_only_changes_are_returned() -> None:
    log = running()
    before = log.say(holding("n2"), holding("n3"))
    after = log.say(progress(300), holding("n2", others=1))

    told = board_changes(before, after)
    assert [node.name for node in told.nodes] == ["n2"] and [job.key for job in told.jobs] == [
        BOARD_JOB
    ]
    assert told.cluster == after.cluster[len(before.cluster) :] and told.decisions == ()


def test_deleted_nodes_are_named_and_decisions_returned_once() -> None:
    log = running()
    before = log.say(holding("n2"))
    after = log.say(holding("n2", gone=True), decided(2))

    told = board_changes(before, after)
    assert told.gone_nodes == ("n2",) and [d.revision for d in told.decisions] == [2]


def test_an_unchanged_board_has_no_changes() -> None:
    board = running().board

    assert board_changes(board, board) is NONE
    assert board_changes(initial_board(), board) != NONE


def test_a_thinned_series_is_sent_completely() -> None:
    log = Log()
    for _ in range(MAX_POINTS):
        log.say(holding())
    before = log.board

    assert board_changes(before, log.say(holding())).cluster is None


def test_held_and_free_sum_to_allocatable_at_any_time() -> None:
    log = running()
    board = log.say(holding(pods=5, others=1), holding("n2", pods=2, job="unknown"))
    read = stack_cores(board, 0.0, log.now_s)

    assert len(read.times) == COLUMNS and (read.times[0], read.times[-1]) == (1.0, log.now_s)
    (band,) = read.jobs
    assert band.job == BOARD_JOB and band.cores[-1] == 5.0 and read.rest[-1] == 2.0, (
        "the rest is of no job that we know"
    )
    for column in range(COLUMNS):
        held = band.cores[column] + read.rest[column] + read.others[column]
        assert abs(held + read.free[column] - read.allocatable[column]) < 1e-9


def test_between_two_facts_the_earlier_one_holds() -> None:
    points = (Held(1.0, 2.0), Held(3.0, 4.0))

    assert [p and p.cpu for p in sample_at(points, [0.0, 1.0, 2.9, 3.0, 9.0])] == [
        None,
        2.0,
        2.0,
        4.0,
        4.0,
    ]


def test_the_largest_jobs_are_named_and_the_others_summed() -> None:
    log = Log()
    for number in range(NAMED + 2):
        name = f"job{number}"
        log.say(
            accepted(request(name), uid=number + 1),
            holding(f"n{number}", pods=number + 1, job=name, cpu=20),
        )
    log.say(holding("idle"), after_s=1000.0)  # so long that the order of arrival does not matter
    read = stack_cores(log.board, 0.0, log.now_s)

    assert len(read.jobs) == NAMED and "default.job0" not in [band.job for band in read.jobs]
    whole = sum(range(1, NAMED + 3))
    assert sum(band.cores[-1] for band in read.jobs) + read.rest[-1] == whole


def test_without_nodes_the_stack_is_empty() -> None:
    assert stack_cores(initial_board(), 0.0, 10.0) == Stack()
