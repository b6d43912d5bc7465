"""The time for which a whole cluster was off is told with the decision after it, and is in no
pause.
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


def test_it_lasts_from_the_last_shut_down_to_the_decision_that_goes_on() -> None:
    story, tasks = trained()
    story.hear(*(exited(task, 0, "Terminated") for task in tasks))

    assert story.decided(after_s=OFF_S).off_s == OFF_S


def test_who_overtakes_a_decision_of_after_it_tells_the_same() -> None:
    story, tasks = trained()
    story.hear(*(exited(task, 0, "Terminated") for task in tasks))
    again = story.decided(after_s=OFF_S)
    lost = story.hear(exited(again.tasks[0], None, "NodeLost")).decided(after_s=9.0)

    assert (lost.generation, lost.off_s) == (again.generation + 1, OFF_S)


def test_it_is_over_once_training_has_resumed() -> None:
    story, tasks = trained()
    story.hear(*(exited(task, 0, "Terminated") for task in tasks))
    story.hear(
        resumed(story.decided(after_s=OFF_S).generation, previous=None, pause_s=9.0, off_s=OFF_S)
    )

    assert downtime_s(story.state.jobs[JOB], story.now) == 0.0


def test_what_a_resize_has_to_pay_for_is_told_by_hand_overs_and_not_by_cold_starts() -> None:
    story, _ = trained()
    story.hear(resumed(story.decided().generation, pause_s=0.5))
    runs = story.state.jobs[JOB].active_decision
    story.hear(*(exited(task, 0, "Terminated") for task in (runs.tasks if runs else ())))
    story.hear(
        resumed(story.decided(after_s=OFF_S).generation, previous=None, pause_s=9.0, off_s=OFF_S)
    )

    assert story.state.jobs[JOB].pauses == (0.5,)


def test_what_a_resize_has_to_pay_for_is_not_the_time_for_which_all_lay_killed() -> None:
    story, tasks = trained()
    story.hear(*(exited(task, None, "Deleted") for task in tasks))
    story.hear(resumed(story.decided(after_s=OFF_S).generation, previous=None, pause_s=OFF_S))
    job = story.state.jobs[JOB]

    assert job.pauses == () and view_of_job(job, AT_ONCE).pause_s is None


def test_a_loss_is_a_pause_however_long_nobody_sees_to_it() -> None:
    story, tasks = trained()
    story.hear(*(exited(task, 137, "NodeLost") for task in tasks))

    assert story.decided(after_s=OFF_S).off_s == 0.0


def test_a_job_that_trains_on_is_not_off_for_one_task_that_was_shut_down() -> None:
    story = Story().hear(node(), accepted())
    first = story.decided()
    story.hear(resumed(1)).decided()
    story.hear(resumed(2))
    runs = story.state.jobs[JOB].active_decision
    assert runs is not None and len(runs.tasks) > len(first.tasks)
    story.hear(exited(next(t for t in runs.tasks if t.role == "worker"), 0, "Terminated"))

    assert downtime_s(story.state.jobs[JOB], story.now + OFF_S) == 0.0
