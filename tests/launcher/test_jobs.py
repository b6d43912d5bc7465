"""Tests of the launcher's fold of a job: repeated, late and lost messages."""

from __future__ import annotations

from services.launcher.jobs import Job, fold, is_paused
from services.launcher.steps.generations import pending_generation, predecessor, wanted_tasks
from services.launcher.view import View, fold_message
from shared.messages import (
    ABANDONED_KEPT,
    CheckpointSaved,
    GenerationAbandoned,
    JobFinished,
    ProgressReported,
    TaskReady,
    TrainingResumed,
)
from tests.launcher.builders import JOB, UID, decided, names
from tests.launcher.world import World


def job(*messages: object) -> Job:
    made = Job(namespace="default", job=JOB, uid=UID)
    for at_s, message in enumerate(messages):
        made = fold(made, message, float(at_s))  # type: ignore[arg-type]
    return made


def resumed(generation: int) -> TrainingResumed:
    return TrainingResumed(job=JOB, uid=UID, generation=generation, step=1, samples=1)


def saved(generation: int, final: bool = True) -> CheckpointSaved:
    about = {"path": "x", "seconds": 0.1, "final": final}
    return CheckpointSaved(job=JOB, uid=UID, generation=generation, step=1, samples=1, **about)


def progress(generation: int) -> ProgressReported:
    amounts = {"step": 2, "epoch": 0, "samples": 1, "total_samples": 9, "samples_per_second": 1.0}
    return ProgressReported(job=JOB, uid=UID, generation=generation, **amounts)


def abandoned(generation: int) -> GenerationAbandoned:
    return GenerationAbandoned(job=JOB, uid=UID, generation=generation, reason="no")


def test_every_message_of_a_job_may_be_delivered_twice() -> None:
    world = World()
    world.train(decided(1, "c0 p1 w2"))
    world.hand_over(decided(2, "c0 p1"))
    once, twice = View(), View()
    for at_s, message in world.log:
        once = fold_message(once, message, at_s)
        twice = fold_message(fold_message(twice, message, at_s), message, at_s + 1)
    assert once.bus_state == twice.bus_state


def test_an_older_decision_changes_nothing() -> None:
    assert job(decided(2, "c0"), decided(1, "c0 p1")) == job(decided(2, "c0"))
    assert job(decided(1, "c0", revision=5), decided(1, "c0", revision=4)) == job(
        decided(1, "c0", revision=5)
    )


def test_a_new_revision_of_a_generation_keeps_its_time() -> None:
    generation = job(decided(1, "c0", revision=1), decided(1, "c0", revision=2)).generations[1]
    assert (generation.decision.revision, generation.decided_s) == (2, 0.0)


def test_generations_before_the_running_one_are_removed() -> None:
    assert list(job(decided(1, "c0"), decided(2, "c0 p1"), resumed(2)).generations) == [2]


def test_a_checkpoint_proves_that_a_generation_runs_without_its_resumption() -> None:
    assert job(decided(1, "c0"), saved(1, final=False)).running == 1


def test_a_report_proves_that_a_generation_runs_without_its_resumption() -> None:
    assert job(decided(1, "c0"), progress(1)).running == 1
    assert (
        job(decided(1, "c0"), resumed(1), decided(2, "c0"), progress(2), progress(1)).running == 2
    )
    assert job(decided(1, "c0"), progress(2)).running is None


def test_a_report_of_the_running_generation_leaves_the_view_unchanged(
    world: World,
) -> None:
    world.train(decided(1, "c0"))

    assert fold_message(world.view, progress(1), world.now + 1) is world.view


def test_a_generation_with_a_final_checkpoint_is_no_previous_generation() -> None:
    assert predecessor(job(decided(1, "c0"), resumed(1))) == 1
    assert predecessor(job(decided(1, "c0"), resumed(1), saved(1))) is None


def test_only_the_latest_abandoned_generations_are_kept() -> None:
    newest = ABANDONED_KEPT + 5
    lived = job(
        *(message for g in range(1, newest + 1) for message in (decided(g, f"c{g}"), abandoned(g)))
    )
    assert list(lived.generations) == list(range(6, newest + 1))
    assert pending_generation(lived) is None and wanted_tasks(lived) == {}


def test_a_paused_job_has_no_tasks_until_the_next_decision() -> None:
    lived = job(decided(1, "c0"), resumed(1), decided(2, ""))
    assert is_paused(lived) and wanted_tasks(lived) == {}
    after = fold(lived, decided(3, "c1"), 9.0)
    assert (after.running, pending_generation(after), list(wanted_tasks(after))) == (
        None,
        3,
        names("c1"),
    )


def test_facts_of_unknown_and_finished_jobs_are_ignored() -> None:
    fact = TaskReady(
        job=JOB,
        uid=UID,
        pod="p",
        pod_uid="u",
        role="ps",
        serial=0,
        node="n",
        host="h",
        ports=(1, 2),
    )
    assert fold_message(View(), fact, 0.0).bus_state.jobs == {}
    over = fold_message(
        fold_message(View(), decided(1, "c0"), 0.0),
        JobFinished(job=JOB, uid=UID, outcome="failed"),
        1.0,
    )
    assert fold_message(fold_message(over, decided(2, "c0"), 2.0), fact, 3.0).bus_state.jobs == {}
