"""Tests of the view of a job, while it runs and after its end.

A job that trains without reporting is shown as one whose program may hang.
"""

from __future__ import annotations

from math import inf
from typing import Any

from services.allocator.job_views import (
    JobView,
    closed_view,
    job_view,
    next_silence_s,
    silent_jobs,
    silent_s,
)
from services.allocator.state.job import Job
from services.allocator.state.state import ClosedJob
from services.console.board.figures import time_left_s
from shared.messages import JobFinished
from tests.allocator.builders import (
    Story,
    abandoned,
    accepted,
    exited,
    node,
    progress,
    request,
    resumed,
)


def job(epochs: int = 4) -> Any:
    """Return a job that trained 50 of 400 examples."""
    story = Story().hear(node(), accepted(request(epochs=epochs)))
    story.decided()
    story.hear(resumed(1), progress(1, 50, 400, 25.0))
    return story.state.jobs["default.mnist"]


def closed(outcome: str, **fields: Any) -> JobView:
    finished = JobFinished(job="mnist", uid=1, outcome=outcome, finished_s=2000.0, **fields)
    return closed_view(ClosedJob(job(), finished))


def test_a_running_jobs_view_has_the_reason_of_its_size() -> None:
    view = job_view(job(), "no node is free")

    assert (view.phase, view.reason, view.why) == ("Running", "the first size", "no node is free")
    assert (view.epoch, view.samples, view.total_samples) == (0, 50, 400)


def test_a_job_that_succeeded_has_all_its_epochs_and_samples_and_its_metrics() -> None:
    view = closed("succeeded", samples=400, metrics={"accuracy": 0.9})

    assert (view.phase, view.epoch, view.samples, view.total_samples) == ("Succeeded", 4, 400, 400)
    assert view.metrics == {"accuracy": 0.9} and view.finished_s == 2000.0


def test_a_finished_jobs_view_has_no_outdated_values() -> None:
    succeeded, failed = (
        closed("succeeded", samples=400),
        closed("failed", samples=60, cause="ValueError: no"),
    )

    assert (succeeded.reason, succeeded.why, succeeded.samples_per_second) == ("", "", 0.0)
    assert (failed.reason, failed.why) == ("", "ValueError: no")
    assert (failed.epoch, failed.samples, failed.total_samples) == (0, 60, 400)


def test_a_job_of_a_stopped_cluster_shows_no_old_speed() -> None:
    story = Story().hear(node(), accepted())
    first = story.decided()
    story.hear(resumed(1), progress(1, 50, 400, 25.0)).hear(
        *(exited(t, 0, "Terminated") for t in first.tasks)
    )
    stopped = job_view(story.state.jobs["default.mnist"])
    again = story.decided().generation
    begins = job_view(story.state.jobs["default.mnist"])
    story.hear(resumed(again), progress(again, 60, 400, 20.0))
    trains = job_view(story.state.jobs["default.mnist"])

    assert (stopped.phase, stopped.samples_per_second, stopped.samples) == ("Pending", 0.0, 50)
    assert (begins.phase, begins.samples_per_second) == ("Resuming", 0.0)
    assert (trains.phase, trains.samples_per_second) == ("Running", 20.0)


def test_the_remaining_time_is_smoothed() -> None:
    story = Story().hear(node(), accepted())
    story.decided()
    story.hear(resumed(1), progress(1, 50, 400, 40.0), progress(1, 60, 400, 20.0, step=2))
    view = job_view(story.state.jobs["default.mnist"])

    assert (view.samples_per_second, view.mean_samples_per_second) == (20.0, 30.0)
    assert time_left_s(view) == (400 - 60) / 30.0


LIMIT_S = 10.0


def trained(gap_s: float = 1.0) -> Story:
    """Return a job that reported twice."""
    story = Story().hear(node(), accepted())
    story.decided()
    return story.hear(resumed(1), progress(1, 50, 400, 25.0)).hear(
        progress(1, 60, 400, 25.0, step=2), after_s=gap_s
    )


def job_test_silence(story: Story) -> Job:
    return story.state.jobs["default.mnist"]


def test_a_job_is_silent_ten_seconds_after_its_last_report() -> None:
    story = trained()

    assert silent_s(job_test_silence(story), LIMIT_S) == story.now + LIMIT_S
    assert silent_jobs(story.state.jobs, story.now + 9.9, LIMIT_S) == {}
    assert next_silence_s(story.state.jobs.values(), story.now, LIMIT_S) == story.now + LIMIT_S


def test_a_silent_job_has_its_last_step_and_a_hint() -> None:
    story = trained()

    said = silent_jobs(story.state.jobs, story.now + LIMIT_S, LIMIT_S)["default.mnist"]

    assert (
        said
        == "no report since step 2: its program may hang; `weir logs mnist` shows what it prints"
    )
    assert next_silence_s(story.state.jobs.values(), story.now + LIMIT_S, LIMIT_S) == inf
    view = job_view(job_test_silence(story), said, silent=True)
    assert (view.phase, view.shown_phase, view.samples_per_second) == ("Running", "Silent", 0.0)


def test_a_job_with_slow_updates_is_silent_after_twice_its_usual_time() -> None:
    story = trained(gap_s=30.0)

    assert silent_s(job_test_silence(story), LIMIT_S) == story.now + 60.0


def test_waiting_pausing_and_finished_jobs_are_not_silent() -> None:
    waiting = Story().hear(node(), accepted())
    starting = Story().hear(node(), accepted())
    starting.decided()
    given_up = Story().hear(node(), accepted())
    given_up.decided()
    given_up.hear(abandoned(1))
    trained_out = trained().hear(progress(1, 400, 400, 25.0, step=3))

    for story in (waiting, starting, given_up, trained_out):
        assert silent_s(job_test_silence(story), LIMIT_S) == inf


def test_a_limit_of_zero_disables_silence() -> None:
    assert silent_s(job_test_silence(trained()), 0.0) == inf
