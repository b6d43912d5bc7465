"""Tests of the fold: repeated and late messages change nothing; the log gives the same state."""

from __future__ import annotations

from msgspec.structs import replace

from services.allocator.decide import decide
from services.allocator.job_views import job_view
from services.allocator.state.job_folds import UNKNOWN_LEAVING_KEPT
from services.allocator.state.state import State, apply
from shared.bounds import MOST_OF_JOB
from shared.messages import JobFinished, Resources, TaskLeaving, TaskPlan
from tests.allocator.builders import (
    UID,
    Story,
    abandoned,
    accepted,
    exited,
    node,
    own,
    progress,
    request,
    resumed,
)


def eventful() -> Story:
    story = Story().hear(request(), node(cpu=3), accepted())
    first = story.decided()
    story.hear(resumed(1, pause_s=None), progress(1, 10, 1000, 5), node("n2", cpu=2)).decided()
    story.hear(abandoned(2)).decided()
    story.hear(resumed(3, pause_s=0.5), exited(first.tasks[2]), accepted(request("other"), uid=7))
    story.decide()
    return story


def test_a_replay_of_the_log_gives_the_same_state():
    story = eventful()
    assert story.replayed() == story.facts


def test_a_report_proves_that_its_generation_runs_without_its_resumption():
    story = Story().hear(node(cpu=3), accepted())
    story.decided()
    job = story.hear(progress(1, 10, 1000, 5)).state.jobs["default.mnist"]
    assert (job.running, job.pending_generation, job.furthest) == (1, None, 10)
    assert job.pauses == ()


def test_a_report_before_its_decision_proves_that_its_generation_runs():
    story = Story().hear(node(cpu=3), accepted())
    decision = Story().hear(node(cpu=3), accepted()).decided()
    assert story.hear(progress(1, 10, 1000, 5), decision).state.jobs["default.mnist"].running == 1


def test_a_report_of_an_older_generation_changes_nothing():
    story = Story().hear(node(cpu=3), accepted())
    story.decided()
    story.hear(resumed(1), node("n2", cpu=2)).decided()
    story.hear(resumed(2), progress(2, 10, 1000, 5))
    job = story.state.jobs["default.mnist"]
    assert story.hear(progress(1, 20, 1000, 5, step=9)).state.jobs["default.mnist"] == job


def test_new_tasks_do_not_reuse_names_of_pods_with_a_lost_decision():
    """The bus was restored to an older state, so only the node's fact has that pod."""
    left = TaskPlan(role="worker", index=0, serial=7, node="n1", resources=Resources(cpu=1))
    story = Story().hear(request(), accepted(), node(cpu=8, own=own("mnist", left)))

    assert min(task.serial for task in story.decided().tasks) == 8
    assert story.replayed() == story.facts


def test_new_generations_do_not_reuse_numbers_of_a_lost_decision():
    story = Story().hear(request(), accepted(), node(cpu=3))
    assert story.decided().generation == 1
    story.hear(resumed(1), resumed(4, pause_s=0.5), node("n2", cpu=8))

    assert story.decided().generation == 5
    assert story.state.jobs["default.mnist"].running == 1


def test_a_repeated_message_changes_nothing():
    story = eventful()
    jobs, nodes = story.state.jobs, story.state.nodes
    for message, *_ in list(story.log[1:]):
        story.hear(message)
    assert story.state.jobs == jobs
    assert set(story.state.nodes) == set(nodes)


def test_a_message_with_an_old_sequence_changes_nothing():
    story = eventful()
    message, stream, _, stored_s = story.log[0]
    assert apply(story.state, message, stream, 1, stored_s) is story.state


def test_a_message_with_the_last_sequence_changes_nothing():
    story = eventful()
    assert all(
        apply(story.state, m, stream, seq, at_s) is story.state
        for m, stream, seq, at_s in story.log
    )


def test_an_acceptance_after_the_jobs_end_opens_nothing():
    story = Story().hear(
        request(), accepted(uid=1), JobFinished(job="mnist", uid=1, outcome="succeeded")
    )
    assert story.hear(accepted(uid=1)).state.jobs == {}
    assert story.hear(accepted(uid=8)).state.jobs["default.mnist"].uid == 8


def test_requests_with_one_request_id_are_one_request():
    story = Story().hear(request(request_id="a"), request(request_id="a"), request(request_id="b"))
    assert list(story.state.asked) == [1, 3]


def test_a_fact_with_another_jobs_uid_does_not_change_that_job():
    story = eventful()
    before = story.state.jobs
    stranger = {"job": "x", "namespace": "team-b"}
    for fact in (
        resumed(3),
        progress(3, 999, 1000, 5, step=99),
        JobFinished(job="mnist", uid=1, outcome="failed"),
    ):
        story.hear(replace(fact, uid=before["default.mnist"].uid, **stranger))
    assert story.state.jobs == before and story.state.closed == {}


def test_many_facts_of_one_job_displace_no_early_fact_of_another():
    story = Story().hear(resumed(1))
    story.hear(*(resumed(1, job="other", step=step) for step in range(2_000)))
    assert len(story.state.early) <= 1 + MOST_OF_JOB
    decided = Story().hear(node(cpu=20), accepted()).decided()
    story.hear(node(cpu=20), accepted(), decided)
    assert story.state.jobs["default.mnist"].running == 1


def test_notices_of_invented_pods_are_bounded():
    story = Story().hear(node(cpu=20), accepted())
    own = story.decided().tasks[0]
    about = {
        "job": "mnist",
        "uid": UID,
        "generation": 1,
        "role": "chief",
        "serial": 0,
        "node": "n1",
        "why": "SIGTERM",
    }
    names = [f"mnist-{own.name()}", *(f"mnist-chief-{number}" for number in range(100, 2_000))]
    story.hear(*(TaskLeaving(**about, pod=name, pod_uid=name) for name in names))
    leaving = story.state.jobs["default.mnist"].leaving
    assert (
        len(leaving) <= UNKNOWN_LEAVING_KEPT + 20 and names[0] in leaving and names[-1] in leaving
    )


def test_reports_of_a_stale_generation_are_ignored():
    story = eventful()
    before = story.state.jobs["default.mnist"]
    story.hear(progress(1, 999, 1000, 5, step=99), resumed(1), abandoned(1))
    assert story.state.jobs["default.mnist"] == before


def test_a_repeated_generation_may_be_abandoned_again():
    story = Story().hear(node(cpu=20), accepted())
    first = story.decided()
    story.hear(abandoned(1), replace(first, revision=2, reason="said again"), abandoned(1))
    job = story.state.jobs["default.mnist"]
    assert job.pending_generation is None and [said.revision for said in job.given_up.values()] == [
        2
    ]
    assert story.replayed() == story.facts


def test_facts_of_unknown_jobs_are_ignored():
    story = Story().hear(resumed(3), abandoned(3), progress(3, 1, 2, 3))
    assert story.state.jobs == {} and story.decide() == ()


def test_a_superseded_generation_may_still_run():
    story = Story().hear(node(cpu=20), accepted())
    first = story.decided()
    story.hear(exited(first.tasks[2])).decided()
    story.hear(resumed(1))
    job = story.state.jobs["default.mnist"]
    assert (job.running, job.pending_generation) == (1, 2)


def test_a_resumption_read_before_its_decision_counts():
    story = Story().hear(node(cpu=20), accepted())
    (first,) = decide(story.state, story.now, story.rules).actions
    story.hear(resumed(1), first)
    job = story.state.jobs["default.mnist"]
    assert (job.running, job.pending_generation, job.early) == (1, None, None)


def test_reports_during_a_preparation_are_no_speed_of_the_size():
    story = Story().hear(node(cpu=20), accepted())
    story.decided()
    story.hear(resumed(1), progress(1, 10, 1000, 8.0))
    grows = replace(story.state.jobs["default.mnist"].newest_decision, generation=2, revision=2)
    story.hear(grows, progress(1, 20, 1000, 2.0, step=2))
    assert [o.samples_per_second for o in story.state.jobs["default.mnist"].observed] == [8.0]
    story.hear(abandoned(2), progress(1, 30, 1000, 6.0, step=3))
    assert [o.samples_per_second for o in story.state.jobs["default.mnist"].observed] == [7.0]


def test_a_speed_during_a_preparation_counts_if_there_is_no_other():
    story = Story().hear(node(cpu=20), accepted())
    story.decided()
    grows = replace(story.state.jobs["default.mnist"].newest_decision, generation=2, revision=2)
    story.hear(resumed(1), grows, progress(1, 20, 1000, 2.0, step=2))
    assert [o.samples_per_second for o in story.state.jobs["default.mnist"].observed] == [2.0]


def test_a_job_with_a_reused_name_continues_the_task_numbers():
    story = Story().hear(node(), accepted())
    story.decided()
    story.hear(JobFinished(job="mnist", uid=1, outcome="succeeded"), accepted(uid=8))
    assert min(t.serial for t in story.decided().tasks) == 3


def test_a_job_view_has_the_running_size_the_target_and_the_reason():
    story = eventful()
    view = job_view(story.state.jobs["default.mnist"], "because")
    assert (view.phase, view.generation, view.pauses, view.why) == ("Scaling", 3, (0.5,), "because")
    assert (view.samples, view.total_samples, view.samples_per_second) == (10, 1000, 5)


def test_an_empty_state_decides_nothing():
    assert Story().decide() == () and Story().replayed() == State()
