"""Tests of the figures of a run, with values computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from services.whatif.simulator.fake_cluster import Amount
from services.whatif.simulator.outcome import (
    JobRecord,
    Run,
    held_and_offered,
    run_figures,
    timeline,
)
from services.whatif.simulator.scenario import Work
from shared.messages import Outcome
from tests.whatif.simulator.worlds import work

NAMED = [
    "jct_mean_s",
    "jct_median_s",
    "jct_p95_s",
    "makespan_s",
    "wait_max_s",
    "utilisation",
    "completed",
    "resizes",
    "paused_s",
    "decision_ms_p50",
    "decision_ms_p99",
]


def ended(
    job: Work, finished_s: float | None, outcome: Outcome | None = "succeeded", **fields: Any
) -> JobRecord:
    return JobRecord(
        job, started_s=job.submitted_s, finished_s=finished_s, outcome=outcome, **fields
    )


def done(
    *records: JobRecord, held: tuple[tuple[float, Amount, Amount], ...] = (), ended_s: float = 100.0
) -> Run:
    return Run(
        policy="static", records=records, held=held, decision_ms=(1.0, 2.0, 3.0), ended_s=ended_s
    )


def test_completion_times_are_of_completed_jobs_and_start_at_submission() -> None:
    told = run_figures(
        done(
            ended(work("a", submitted_s=10.0), 30.0, resizes=2, paused_s=5.0),
            ended(work("b", submitted_s=20.0), 60.0, resizes=1, paused_s=7.5),
            ended(work("c"), 90.0, "failed"),
            ended(work("d"), None, None),
        )
    )
    assert (told["jct_mean_s"], told["jct_median_s"], told["jct_p95_s"]) == (30.0, 30.0, 39.0)
    assert (told["completed"], told["submitted"], told["resizes"], told["paused_s"]) == (
        2,
        4,
        3,
        12.5,
    )
    assert told["makespan_s"] == 90.0 and (told["decision_ms_p50"], told["decision_ms_p99"]) == (
        2.0,
        2.98,
    )


def test_the_longest_wait_is_the_longest_time_without_tasks() -> None:
    late = ended(work("late", submitted_s=10.0), 90.0, sizes=[(25.0, 1, 1, 64), (90.0, 0, 0, 0)])
    stopped = [(10.0, 1, 1, 64), (30.0, 0, 0, 0), (70.0, 1, 2, 64), (90.0, 0, 0, 0)]
    never = ended(work("never", submitted_s=40.0), None, None)
    waits = [run_figures(done(*records))["wait_max_s"] for records in ((late,), (late, never))]
    assert waits == [15.0, 60.0]
    assert (
        run_figures(done(ended(work("suspended", submitted_s=5.0), 90.0, sizes=stopped)))[
            "wait_max_s"
        ]
        == 40.0
    )
    assert run_figures(done())["wait_max_s"] == 0.0


def test_every_figure_of_the_format_is_present() -> None:
    assert set(NAMED) <= set(run_figures(done(ended(work(), 10.0))))


def test_without_completed_jobs_figures_are_null() -> None:
    told = run_figures(done(ended(work(), None, None)))
    assert told["jct_mean_s"] is None and told["makespan_s"] is None and told["completed"] == 0


def test_utilisation_is_held_over_offered_capacity_until_the_last_job_ends() -> None:
    held = (
        (0.0, Amount(0, 0), Amount(8, 0)),
        (10.0, Amount(4, 0), Amount(8, 0)),
        (30.0, Amount(2, 0), Amount(4, 0)),
        (50.0, Amount(0, 0), Amount(8, 0)),
    )
    told = run_figures(done(ended(work(), 50.0), held=held))
    assert told["utilisation"] == pytest.approx((4 * 20 + 2 * 20) / (8 * 30 + 4 * 20))


def test_utilisation_counts_devices_if_jobs_request_them() -> None:
    held = ((0.0, Amount(8, 1), Amount(8, 4)),)
    run = done(ended(work(worker_gpu=1), 100.0), held=held)
    assert held_and_offered(run) == [(0.0, 100.0, 1, 4)] and run_figures(run)["utilisation"] == 0.25


def test_the_timeline_has_each_change_of_each_job() -> None:
    record = ended(work("a"), 9.0, sizes=[(0.0, 1, 2, 64), (9.0, 0, 0, 0)])
    assert timeline(done(record)) == {"a": [[0.0, 1, 2, 64], [9.0, 0, 0, 0]]}
