"""Tests of downtime: the time for which a whole cluster was off.

The decision after it has the downtime, and no pause includes it.
"""

from __future__ import annotations

from services.allocator.state.policy_view import downtime_s, view_of_job
from shared.messages import TaskPlan
from tests.allocator.builders import AT_ONCE, Story, accepted, exited, node, resumed

JOB = "default.mnist"
OFF_S = 36_000.0


def trained() -> tuple[Story, tuple[TaskPlan, ...]]:
    story = Story().hear(node(), accepted())
    tasks = story.decided().tasks
    return story.hear(resumed(1)), tasks


def test_downtime_is_from_the_last_shutdown_to_the_next_decision() -> None:
    story, tasks = trained()
    story.hear(*(exited(task, 0, "Terminated") for task in tasks))

    assert story.decided(after_s=OFF_S).off_s == OFF_S


def test_a_superseding_decision_has_the_same_downtime() -> None:
    story, tasks = trained()
    story.hear(*(exited(task, 0, "Terminated") for task in tasks))
    again = story.decided(after_s=OFF_S)
    lost = story.hear(exited(again.tasks[0], None, "NodeLost")).decided(after_s=9.0)

    assert (lost.generation, lost.off_s) == (again.generation + 1, OFF_S)


def test_downtime_ends_when_training_resumes() -> None:
    story, tasks = trained()
    story.hear(*(exited(task, 0, "Terminated") for task in tasks))
    story.hear(
        resumed(story.decided(after_s=OFF_S).generation, previous=None, pause_s=9.0, off_s=OFF_S)
    )

    assert downtime_s(story.state.jobs[JOB], story.now) == 0.0


def test_cold_starts_do_not_count_as_pauses() -> None:
    story, _ = trained()
    story.hear(resumed(story.decided().generation, pause_s=0.5))
    runs = story.state.jobs[JOB].active_decision
    story.hear(*(exited(task, 0, "Terminated") for task in (runs.tasks if runs else ())))
    story.hear(
        resumed(story.decided(after_s=OFF_S).generation, previous=None, pause_s=9.0, off_s=OFF_S)
    )

    assert story.state.jobs[JOB].pauses == (0.5,)


def test_downtime_does_not_count_as_a_pause() -> None:
    story, tasks = trained()
    story.hear(*(exited(task, None, "Deleted") for task in tasks))
    story.hear(resumed(story.decided(after_s=OFF_S).generation, previous=None, pause_s=OFF_S))
    job = story.state.jobs[JOB]

    assert job.pauses == () and view_of_job(job, AT_ONCE).pause_s is None


def test_a_lost_task_is_a_pause_and_no_downtime() -> None:
    story, tasks = trained()
    story.hear(*(exited(task, 137, "NodeLost") for task in tasks))

    assert story.decided(after_s=OFF_S).off_s == 0.0


def test_one_stopped_task_of_a_running_job_is_no_downtime() -> None:
    story = Story().hear(node(), accepted())
    first = story.decided()
    story.hear(resumed(1)).decided()
    story.hear(resumed(2))
    runs = story.state.jobs[JOB].active_decision
    assert runs is not None and len(runs.tasks) > len(first.tasks)
    story.hear(exited(next(t for t in runs.tasks if t.role == "worker"), 0, "Terminated"))

    assert downtime_s(story.state.jobs[JOB], story.now + OFF_S) == 0.0
