"""Tests of sentences: one line for each message, safe for a terminal; and jobs without pods."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from services.allocator.job_views import JobView
from services.console.text.sentences import (
    LISTED,
    SENTENCES,
    TROUBLES,
    describe_missing_log,
    sentence,
)
from shared.messages import (
    MESSAGES,
    AllocationDecided,
    CapacityChanged,
    CheckpointFailed,
    CheckpointSaved,
    CheckpointSkipped,
    DeadLetter,
    GenerationPrepared,
    JobFinished,
    Message,
    Phases,
    ProgressReported,
    Resources,
    ServiceTroubled,
    Span,
    TaskExited,
    TaskLeaving,
    TaskPlan,
    TrainingResumed,
    Trouble,
)
from shared.runtime.log import REMEDIES
from tests.allocator.builders import request
from tests.shared.sample_messages import JOB, TASK, abandoned, one_of_each

DEAD = DeadLetter(
    stream="weir-orders", sequence=3, subject="weir.job.x", error="bad", body="{", said_by="nobody"
)
EACH = pytest.mark.parametrize("said", [*one_of_each(), DEAD], ids=lambda m: type(m).__name__)


def test_exactly_the_message_kinds_have_a_sentence() -> None:
    assert set(SENTENCES) == {*MESSAGES, DeadLetter}


@EACH
def test_a_sentence_is_one_line(said: Message | DeadLetter) -> None:
    told = sentence(said)

    assert len(told) > 10
    assert told.isprintable()
    assert "None" not in told and "<" not in told


def test_a_decision_has_its_size_and_reason() -> None:
    decided = next(m for m in one_of_each() if type(m).__name__ == "AllocationDecided")

    assert sentence(decided) == "gets 1 ps on 1 node, batch 32: grow"


@pytest.mark.parametrize(
    ("workers", "batch", "told"),
    [
        (1, 32, ""),
        (2, 32, "; learning rate 1 -> 0.5 of the program's (stable: 1 -> 2 workers)"),
        (1, 64, "; learning rate 1 -> 1.41 of the program's (sqrt: batch 32 -> 64)"),
        (
            2,
            64,
            (
                "; learning rate 1 -> 0.707 of the program's (sqrt: batch 32 -> 64, stable: 1 -> 2"
                " workers)"
            ),
        ),
    ],
)
def test_a_learning_rate_change_names_its_rule(workers: int, batch: int, told: str) -> None:
    one = Span(start=1, min=1, max=8)
    asked = request(workers=one, batch=Span(start=32, min=32, max=64), learning_rate="sqrt")
    tasks = tuple(
        TaskPlan(role="worker", index=n, serial=n, node="n1", resources=Resources())
        for n in range(workers)
    )
    decided = AllocationDecided(
        **JOB, revision=5, request=asked, tasks=tasks, batch=batch, reason="grow"
    )

    assert sentence(decided).endswith(f", batch {batch}: grow{told}")
    kept = msgspec.structs.replace(asked, learning_rate="keep", rate_with_workers="keep")
    assert "learning rate" not in sentence(msgspec.structs.replace(decided, request=kept))


def test_a_rejection_has_every_reason() -> None:
    refused = next(m for m in one_of_each() if type(m).__name__ == "JobRejected")

    assert sentence(refused) == "is refused: no name; no program"


def test_a_failed_save_has_its_cause_remedy_and_abandoned_generation() -> None:
    failed = next(m for m in one_of_each() if isinstance(m, CheckpointFailed))

    assert sentence(failed) == "generation 2 could not save step 10: it is full; make room"
    told = sentence(msgspec.structs.replace(failed, successor=3))
    assert (
        told
        == "generation 2 could not save step 10: it is full; make room; generation 3 is abandoned"
        " for this reason"
    )


def test_an_incident_has_its_kind_cause_remedy_and_duration() -> None:
    over = next(m for m in one_of_each() if isinstance(m, ServiceTroubled))

    assert sentence(over) == "a stream is full, over after 3.0 s: weir-orders is full; make room"
    assert (
        sentence(msgspec.structs.replace(over, seconds=None))
        == "a stream is full: weir-orders is full; make room"
    )
    assert set(TROUBLES) == set(get_args(Trouble)) == set(REMEDIES)


def test_a_skipped_checkpoint_has_its_cause_and_replacement() -> None:
    skipped = next(m for m in one_of_each() if isinstance(m, CheckpointSkipped))

    told = "generation 2 cannot resume from /c/gen-2/ckpt-10: it is torn; it uses /c/gen-1/ckpt-5"
    assert sentence(skipped) == told
    assert sentence(msgspec.structs.replace(skipped, instead="")).endswith(
        "; no other is left, so it starts again"
    )


def test_a_save_that_delays_training_has_its_reason_and_is_no_pause() -> None:
    saved = CheckpointSaved(**JOB, step=10, samples=320, path="/c", seconds=0.5, stood="no room")

    assert (
        sentence(saved)
        == "generation 2 saved step 10 in 0.50 s; all training stopped meanwhile: no room"
    )
    beside = msgspec.structs.replace(saved, stood="", pause_s=0.02)
    assert sentence(beside) == "generation 2 saved step 10 in 0.50 s; training stopped for 0.02 s"


def test_a_pause_has_its_phases_and_a_first_start_has_none() -> None:
    resumed = TrainingResumed(**JOB, step=11, samples=352, previous=1, pause_s=0.5)

    assert "a pause of 0.50 s (drain 0.00, save" in sentence(resumed)
    phases = Phases(drain_s=0.4, save_s=0.5, restore_s=2.0, first_step_s=2.0)
    stopped = msgspec.structs.replace(resumed, pause_s=60.7, off_s=30.0, phases=phases)
    parts = (
        "drain 0.40, save 0.50, waiting until ready and traced 55.80, restore 2.00, first step 2.00"
    )
    assert f"after a pause of 60.70 s ({parts}), off for 30 s before" in sentence(stopped)
    assert (
        sentence(msgspec.structs.replace(resumed, pause_s=None))
        == "generation 2 trains, from step 11"
    )
    told = sentence(msgspec.structs.replace(resumed, pause_s=None, learning_rate=0.2828427))
    assert told == "generation 2 trains, from step 11, learning rate 0.2828"


def test_only_a_chief_shows_its_preparation_time() -> None:
    chief = GenerationPrepared(**{**TASK, "role": "chief", "serial": 0}, seconds=2.5)

    assert sentence(chief) == "chief-0 is prepared for generation 2 after 2.5 s"
    assert sentence(GenerationPrepared(**TASK)) == "ps-3 is prepared for generation 2"


def test_progress_counts_complete_epochs() -> None:
    said = next(m for m in one_of_each() if isinstance(m, ProgressReported))

    assert f", {said.epoch} epoch" in sentence(said) and " complete, " in sentence(said)


def test_a_traceback_is_shortened_to_its_last_line() -> None:
    failed = JobFinished(
        **JOB, outcome="failed", cause="Traceback:\n  File x\nValueError: no data\n\n"
    )

    assert sentence(failed) == "failed after 0 examples: ValueError: no data"


def test_external_control_characters_are_removed() -> None:
    exited = TaskExited(**TASK, node="n1", exit_code=1, reason="Error", message="\x1b[2Jgone\x07")

    assert sentence(exited) == "ps-3 ended on n1 with code 1, Error, [2Jgone"


def test_a_leaving_task_has_the_cause_the_deadline_and_the_action() -> None:
    evicted = TaskLeaving(
        **TASK, node="n1", why="Evicted", leaves_s=3_661.0, message="Eviction API: evicting"
    )
    cordoned = TaskLeaving(**TASK, node="n1", why="NodeCordoned")
    assert (
        sentence(evicted)
        == "ps-3 has to leave n1, by 01:01:01 UTC at the latest: Kubernetes evicts the pod"
        " (Eviction API: evicting); it runs until another node has its replacement; the chief saves"
        " before it ends"
    )
    assert (
        sentence(cordoned)
        == "ps-3 has to leave n1: the node is cordoned; it moves when all such tasks fit"
        " elsewhere, and stays if the node is uncordoned"
    )


def test_a_task_stopped_with_its_whole_job_is_not_replaced() -> None:
    assert (
        sentence(TaskLeaving(**TASK, node="n1", why="SIGTERM"))
        == "ps-3 has to leave n1: it received SIGTERM; it runs until another node has its"
        " replacement or, if all tasks of its job have to end, until the chief has saved"
    )


def test_a_node_has_the_reason_why_it_takes_no_task() -> None:
    free = Resources(cpu=1.5, memory_gib=4)
    node = CapacityChanged(
        node="n",
        node_uid="u",
        seen="d",
        allocatable=free,
        free=free,
        ready=False,
        schedulable=False,
    )

    assert sentence(node) == "has 1.5 cpu, 4 GiB free of 1.5 cpu, 4 GiB, is not ready, is cordoned"
    assert sentence(msgspec.structs.replace(node, gone=True)) == "is gone"


def test_an_abandoned_generation_names_the_one_that_continues() -> None:
    stopped = abandoned(
        reason="digits-ps-3 ended: Terminated (exit code 143) the cluster was stopped"
    )

    assert (
        sentence(abandoned(goes_on=1))
        == "generation 2 was abandoned: unschedulable; generation 1 continues"
    )
    assert sentence(stopped) == f"generation 2 was abandoned: {stopped.reason}"


def views(*jobs: str, **fields: Any) -> dict[str, JobView]:
    common = {"namespace": "default", "uid": 7, "phase": "Pending", **fields}
    return {f"default.{job}": JobView(job=job, **common) for job in jobs}


def test_an_unknown_job_lists_the_known_ones() -> None:
    told = describe_missing_log("default.digit", views("digits", "clicks"))

    assert told == "there is no job default/digit; there are default/clicks, default/digits"
    assert "there are none; `weir submit FILE`" in describe_missing_log("default.digit", {})


def test_a_long_list_of_jobs_is_cut() -> None:
    told = describe_missing_log("red.x", views(*(f"job-{n:02}" for n in range(LISTED + 5))))

    assert "default/job-09 and 5 more (`weir jobs`)" in told and "job-10" not in told


def test_the_logs_of_a_finished_job_are_gone() -> None:
    told = describe_missing_log("default.digits", views("digits", phase="Failed"))

    assert "is over (failed), its pods and logs are deleted" in told
    assert "`weir events -n default --job digits`" in told


def test_a_waiting_job_has_its_reason() -> None:
    assert describe_missing_log("default.digits", views("digits", why="waits for room")).endswith(
        "has no pods yet: waits for room"
    )
