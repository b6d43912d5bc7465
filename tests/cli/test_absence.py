"""A job without pods: unknown, over, or not started."""

from __future__ import annotations

from typing import Any

from services.allocator.job_views import JobView
from services.cli.absence import LISTED, absent


def views(*jobs: str, **fields: Any) -> dict[str, JobView]:
    common = {"namespace": "default", "uid": 7, "phase": "Pending", **fields}
    return {f"default.{job}": JobView(job=job, **common) for job in jobs}


def test_an_unknown_job_is_answered_with_those_that_there_are() -> None:
    told = absent("default.digit", views("digits", "clicks"))

    assert told == "there is no job default/digit; there are default/clicks, default/digits"
    assert "there are none; `weir submit FILE`" in absent("default.digit", {})


def test_of_many_jobs_some_are_named() -> None:
    told = absent("red.x", views(*(f"job-{n:02}" for n in range(LISTED + 5))))

    assert "default/job-09 and 5 more (`weir jobs`)" in told and "job-10" not in told


def test_the_logs_of_a_job_that_is_over_went_with_its_pods() -> None:
    told = absent("default.digits", views("digits", phase="Failed"))

    assert "is over (failed), and its logs went with its pods" in told
    assert "`weir events -n default --job digits`" in told


def test_a_job_that_waits_says_for_what() -> None:
    assert absent("default.digits", views("digits", why="waits for room")).endswith(
        "has no pods yet: waits for room"
    )
