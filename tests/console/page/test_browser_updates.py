"""Tests of the updates for browsers: every number comes from a message or from the board."""

from __future__ import annotations

import msgspec

from services.console.board import figures
from services.console.board.board import initial_board
from services.console.page import browser_updates
from services.console.page.browser_updates import job_detail
from services.console.page.service import Browser
from shared.messages import AllocationDecided, CapacityChanged, ProgressReported
from tests.console.board.builders import Log, decided, holding, progress
from tests.console.board.test_board import JOB, running
from tests.console.board.test_job_history import handed_over
from tests.console.page import scene
from tests.console.page.conftest import Still

NOW_S = 1_700_000_000.0


def test_a_nodes_row_is_its_last_fact() -> None:
    last: dict[str, CapacityChanged] = {}
    for told in scene.told(NOW_S):
        if isinstance(told.message, CapacityChanged):
            last[told.message.node] = told.message
    shown = {
        row.name: row for row in map(browser_updates.node_row, scene.board(NOW_S).nodes.values())
    }

    assert shown.keys() == last.keys()
    for name, fact in last.items():
        row, ours = shown[name], sum(pod.resources.cpu for pod in fact.own)
        assert (row.cpu, row.free) == (fact.allocatable.cpu, fact.free.cpu)
        assert abs(sum(row.load.values()) - ours) < 1e-9
        assert abs(row.others - max(fact.allocatable.cpu - fact.free.cpu - ours, 0.0)) < 1e-9


def test_a_jobs_row_is_its_last_report_and_decision() -> None:
    reports: dict[str, ProgressReported] = {}
    decisions: dict[str, AllocationDecided] = {}
    for told in scene.told(NOW_S):
        if isinstance(told.message, ProgressReported):
            reports[told.message.key()] = told.message
        if isinstance(told.message, AllocationDecided):
            decisions[told.message.key()] = told.message
    board = scene.board(NOW_S)
    for row in map(browser_updates.job_row, board.jobs.values()):
        report = reports[row.key]
        if row.phase == "Running":
            assert (row.samples, row.total, row.loss) == (
                report.samples,
                report.total_samples,
                report.loss,
            )
            assert row.speed == report.samples_per_second
            roles = [task.role for task in decisions[row.key].tasks]
            if decisions[row.key].generation == row.generation:
                assert (row.ps, row.workers) == (roles.count("ps"), roles.count("worker"))
        assert row.share == figures.share_done(board.jobs[row.key].view)


def test_points_of_the_time_axis_are_reports_at_their_storage_time() -> None:
    said = {
        (told.at_s, told.message.samples_per_second, told.message.loss)
        for told in scene.told(NOW_S)
        if isinstance(told.message, ProgressReported) and told.message.job == "digits"
    }
    story = scene.board(NOW_S).jobs["default.digits"]
    points = job_detail(None, story, NOW_S).reports.rows

    assert len(points) > 200 and {point[:3] for point in points} <= said


def test_a_browser_that_applies_all_updates_has_the_board() -> None:
    log, browser = Log(), Browser(job=JOB, span_s=60.0)
    jobs: dict[str, browser_updates.JobRow] = {}
    nodes: dict[str, browser_updates.NodeRow] = {}
    points: list[object] = []
    for told in handed_over().told:
        log.say(told.message)
        news = browser.news(Still(log.board), log.now_s)  # type: ignore[arg-type]
        jobs |= {row.key: row for row in news.jobs}
        nodes |= {row.name: row for row in news.nodes}
        if news.detail:
            points = (
                news.detail.reports.rows
                if news.detail.reports.fresh
                else points + news.detail.reports.rows
            )

    assert jobs == {key: browser_updates.job_row(story) for key, story in log.board.jobs.items()}
    assert nodes == {name: browser_updates.node_row(node) for name, node in log.board.nodes.items()}
    assert len(points) == len(log.board.jobs[JOB].reports) == 4


def test_an_update_without_changes_is_short() -> None:
    browser, still = Browser(job=JOB, span_s=60.0), Still(running().board)
    whole, beat = browser.news(still, 10.0), browser.news(still, 10.5)  # type: ignore[arg-type]

    assert whole.whole and not beat.whole and beat.number == 2
    assert len(msgspec.json.encode(beat)) < 100


def test_an_update_has_only_changes() -> None:
    log, browser = running(), Browser(job="", span_s=60.0)
    log.say(holding("n2"))
    browser.news(Still(log.board), 10.0)  # type: ignore[arg-type]
    news = browser.news(Still(log.say(progress(300))), 10.1)  # type: ignore[arg-type]

    assert [row.key for row in news.jobs] == [JOB] and news.nodes == [] and news.decisions == []


def test_a_decisions_row_has_its_cause_as_a_sentence() -> None:
    log = running()
    free = holding("n2")
    log.say(free, decided(2, cause=free.id()))

    assert browser_updates.decision_row(log.board.decisions[-1]).event.startswith("n2 has 8 cpu")


def test_an_update_shows_a_bus_outage_and_reading_in_progress() -> None:
    still = Still(initial_board())
    still.cut_s, still.caught_up = 5.0, False  # type: ignore[assignment]
    news = Browser(job="", span_s=60.0).news(still, 6.0)  # type: ignore[arg-type]

    assert news.cut_s == 5.0 and news.reading


def test_during_a_bus_outage_charts_end_at_the_last_message() -> None:
    still = Still(running().board)
    still.cut_s = 9.0  # type: ignore[assignment]
    news = Browser(job="", span_s=60.0).news(still, 50.0)  # type: ignore[arg-type]

    assert news.stack is not None and news.stack.times[-1] == 9.0
