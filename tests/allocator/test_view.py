"""A job at a glance, while it runs and when it is over."""

from __future__ import annotations

from typing import Any

from services.allocator.state import Closed
from services.allocator.view import JobView, closed_view, job_view
from services.console.board.derived import left_s
from shared.messages import JobFinished
from tests.allocator.builders import Story, accepted, exited, node, progress, request, resumed


def job(epochs: int = 4) -> Any:
    """One that trained 50 of 400 examples."""
    story = Story().hear(node(), accepted(request(epochs=epochs)))
    story.decided()
    story.hear(resumed(1), progress(1, 50, 400, 25.0))
    return story.state.jobs["default.mnist"]


def closed(outcome: str, **fields: Any) -> JobView:
    finished = JobFinished(job="mnist", uid=1, outcome=outcome, finished_s=2000.0, **fields)
    return closed_view(Closed(job(), finished))


def test_a_running_job_says_why_it_has_its_size() -> None:
    view = job_view(job(), "no node is free")

    assert (view.phase, view.reason, view.why) == ("Running", "the first size", "no node is free")
    assert (view.epoch, view.samples, view.total_samples) == (0, 50, 400)


def test_a_job_that_succeeded_has_all_its_epochs_and_samples_and_its_metrics() -> None:
    view = closed("succeeded", samples=400, metrics={"accuracy": 0.9})

    assert (view.phase, view.epoch, view.samples, view.total_samples) == ("Succeeded", 4, 400, 400)
    assert view.metrics == {"accuracy": 0.9} and view.finished_s == 2000.0


def test_of_a_job_that_is_over_nothing_is_told_that_was_only_true_before() -> None:
    succeeded, failed = (
        closed("succeeded", samples=400),
        closed("failed", samples=60, cause="ValueError: no"),
    )

    assert (succeeded.reason, succeeded.why, succeeded.samples_per_second) == ("", "", 0.0)
    assert (failed.reason, failed.why) == ("", "ValueError: no")
    assert (failed.epoch, failed.samples, failed.total_samples) == (0, 60, 400)


def test_a_job_whose_cluster_was_stopped_shows_no_old_speed_and_resumes_or_waits_until_it_trains_again() -> (
    None
):
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


def test_the_time_that_is_left_does_not_jump_with_one_report() -> None:
    story = Story().hear(node(), accepted())
    story.decided()
    story.hear(resumed(1), progress(1, 50, 400, 40.0), progress(1, 60, 400, 20.0, step=2))
    view = job_view(story.state.jobs["default.mnist"])

    assert (view.samples_per_second, view.mean_samples_per_second) == (20.0, 30.0)
    assert left_s(view) == (400 - 60) / 30.0
