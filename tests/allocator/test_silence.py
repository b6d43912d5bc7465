"""A job that trains and reports nothing is shown as one whose program may hang."""

from __future__ import annotations

from math import inf

from services.allocator.job import Job
from services.allocator.silence import next_silence_s, silent_jobs, silent_s
from services.allocator.view import job_view
from tests.allocator.builders import Story, abandoned, accepted, node, progress, resumed

LIMIT_S = 10.0


def trained(gap_s: float = 1.0) -> Story:
    """A job that reported twice."""
    story = Story().hear(node(), accepted())
    story.decided()
    return story.hear(resumed(1), progress(1, 50, 400, 25.0)).hear(
        progress(1, 60, 400, 25.0, step=2), after_s=gap_s
    )


def job(story: Story) -> Job:
    return story.state.jobs["default.mnist"]


def test_a_job_that_reports_is_not_silent_until_ten_seconds_after_its_last_report() -> None:
    story = trained()

    assert silent_s(job(story), LIMIT_S) == story.now + LIMIT_S
    assert silent_jobs(story.state.jobs, story.now + 9.9, LIMIT_S) == {}
    assert next_silence_s(story.state.jobs.values(), story.now, LIMIT_S) == story.now + LIMIT_S


def test_a_silent_job_says_since_which_step_and_where_to_look() -> None:
    story = trained()

    said = silent_jobs(story.state.jobs, story.now + LIMIT_S, LIMIT_S)["default.mnist"]

    assert (
        said
        == "no report since step 2: its program may hang; `weir logs mnist` shows what it prints"
    )
    assert next_silence_s(story.state.jobs.values(), story.now + LIMIT_S, LIMIT_S) == inf
    view = job_view(job(story), said, silent=True)
    assert (view.phase, view.shown_phase, view.samples_per_second) == ("Running", "Silent", 0.0)


def test_a_job_with_slow_updates_is_given_twice_its_usual_time() -> None:
    story = trained(gap_s=30.0)

    assert silent_s(job(story), LIMIT_S) == story.now + 60.0


def test_what_has_not_begun_stands_still_or_is_trained_is_not_silent() -> None:
    waiting = Story().hear(node(), accepted())
    starting = Story().hear(node(), accepted())
    starting.decided()
    given_up = Story().hear(node(), accepted())
    given_up.decided()
    given_up.hear(abandoned(1))
    trained_out = trained().hear(progress(1, 400, 400, 25.0, step=3))

    for story in (waiting, starting, given_up, trained_out):
        assert silent_s(job(story), LIMIT_S) == inf


def test_no_job_is_silent_where_the_limit_is_zero() -> None:
    assert silent_s(job(trained()), 0.0) == inf
