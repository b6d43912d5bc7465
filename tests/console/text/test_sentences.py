"""Every message can be told in one sentence that a terminal may be trusted with.

A job without pods: unknown, over, or not started.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from services.allocator.job_views import JobView
from services.console.text.sentences import LISTED, SENTENCES, TROUBLES, absent, sentence
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
from shared.runtime.incidents import REMEDIES
from tests.allocator.builders import request
from tests.shared.sample_messages import JOB, TASK, abandoned, one_of_each

DEAD = DeadLetter(
    stream="weir-orders", sequence=3, subject="weir.job.x", error="bad", body="{", said_by="nobody"
)
EACH = pytest.mark.parametrize("said", [*one_of_each(), DEAD], ids=lambda m: type(m).__name__)


def test_there_is_a_sentence_for_every_kind_of_message_and_for_nothing_else() -> None:
    assert set(SENTENCES) == {*MESSAGES, DeadLetter}


@EACH
def test_a_sentence_is_one_line_that_says_something(said: Message | DeadLetter) -> None:
    told = sentence(said)

    assert len(told) > 10
    assert told.isprintable()
    assert "None" not in told and "<" not in told


def test_a_decision_tells_its_size_and_its_reason() -> None:
    decided = next(m for m in one_of_each() if type(m).__name__ == "AllocationDecided")

    assert sentence(decided) == "is to have 1 ps on 1 node, batch 32: grow"


@pytest.mark.parametrize(
    ("workers", "batch", "told"),
    [
        (1, 32, ""),
        (2, 32, "; learning rate 1 -> 0.5 of the program's (stable: 1 -> 2 workers)"),
        (1, 64, "; learning rate 1 -> 1.41 of the program's (sqrt: batch 32 -> 64)"),
        (
            2,
            64,
            "; learning rate 1 -> 0.707 of the program's (sqrt: batch 32 -> 64, stable: 1 -> 2 workers)",
        ),
    ],
)
def test_a_decision_that_changes_the_learning_rate_says_by_which_rule(
    workers: int, batch: int, told: str
) -> None:
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


def test_a_refusal_tells_every_reason() -> None:
    refused = next(m for m in one_of_each() if type(m).__name__ == "JobRejected")

    assert sentence(refused) == "is refused: no name; no program"


def test_a_save_that_failed_tells_its_cause_what_helps_and_what_was_given_up_for_it() -> None:
    failed = next(m for m in one_of_each() if isinstance(m, CheckpointFailed))

    assert sentence(failed) == "generation 2 could not save step 10: it is full; make room"
    told = sentence(msgspec.structs.replace(failed, successor=3))
    assert (
        told
        == "generation 2 could not save step 10: it is full; make room; generation 3 is given up for it"
    )


def test_a_service_in_trouble_tells_what_it_is_its_cause_what_helps_and_how_long_it_was() -> None:
    over = next(m for m in one_of_each() if isinstance(m, ServiceTroubled))

    assert (
        sentence(over)
        == "a stream is full, which is over after 3.0 s: weir-orders is full; make room"
    )
    assert (
        sentence(msgspec.structs.replace(over, seconds=None))
        == "a stream is full: weir-orders is full; make room"
    )
    assert set(TROUBLES) == set(get_args(Trouble)) == set(REMEDIES)


def test_a_checkpoint_that_is_skipped_tells_why_and_what_is_taken_in_its_place() -> None:
    skipped = next(m for m in one_of_each() if isinstance(m, CheckpointSkipped))

    told = "generation 2 does not go on from /c/gen-2/ckpt-10: it is torn; /c/gen-1/ckpt-5 is taken"
    assert sentence(skipped) == told
    assert sentence(msgspec.structs.replace(skipped, instead="")).endswith(
        "; none is left, so it begins anew"
    )


def test_a_save_that_holds_training_up_tells_why_and_is_no_pause() -> None:
    saved = CheckpointSaved(**JOB, step=10, samples=320, path="/c", seconds=0.5, stood="no room")

    assert (
        sentence(saved) == "generation 2 saved step 10 in 0.50 s, and held all training up: no room"
    )
    beside = msgspec.structs.replace(saved, stood="", pause_s=0.02)
    assert (
        sentence(beside)
        == "generation 2 saved step 10 in 0.50 s, of which it held training up for 0.02 s"
    )


def test_a_pause_is_told_in_its_phases_and_a_first_start_has_none() -> None:
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


def test_only_a_chief_has_something_to_prepare_that_takes_time() -> None:
    chief = GenerationPrepared(**{**TASK, "role": "chief", "serial": 0}, seconds=2.5)

    assert sentence(chief) == "chief-0 is prepared for generation 2 after 2.5 s"
    assert sentence(GenerationPrepared(**TASK)) == "ps-3 is prepared for generation 2"


def test_progress_counts_complete_epochs_as_its_message_does() -> None:
    said = next(m for m in one_of_each() if isinstance(m, ProgressReported))

    assert f", {said.epoch} epoch" in sentence(said) and " complete, " in sentence(said)


def test_of_a_traceback_the_last_line_is_told() -> None:
    failed = JobFinished(
        **JOB, outcome="failed", cause="Traceback:\n  File x\nValueError: no data\n\n"
    )

    assert sentence(failed) == "failed after 0 examples: ValueError: no data"


def test_control_characters_of_others_do_not_reach_the_terminal() -> None:
    exited = TaskExited(**TASK, node="n1", exit_code=1, reason="Error", message="\x1b[2Jgone\x07")

    assert sentence(exited) == "ps-3 ended on n1 with code 1, Error, [2Jgone"


def test_who_has_to_leave_is_told_with_who_wants_it_by_when_and_what_is_done_about_it() -> None:
    evicted = TaskLeaving(
        **TASK, node="n1", why="Evicted", leaves_s=3_661.0, message="Eviction API: evicting"
    )
    cordoned = TaskLeaving(**TASK, node="n1", why="NodeCordoned")
    assert sentence(evicted) == (
        "ps-3 has to leave n1, by 01:01:01 UTC at the latest: Kubernetes evicts the pod (Eviction API: evicting); "
        "it works on until another node has its place, and the chief saves in time"
    )
    assert sentence(cordoned) == (
        "ps-3 has to leave n1: the node is cordoned; it moves when all fits elsewhere, and stays if that is taken back"
    )


def test_who_is_told_to_end_may_be_told_so_with_its_whole_job_and_then_nobody_takes_its_place() -> (
    None
):
    assert sentence(TaskLeaving(**TASK, node="n1", why="SIGTERM")) == (
        "ps-3 has to leave n1: it was told to end; it works on until another node has its place or, "
        "where all of its job is told so, until the chief has saved"
    )


def test_a_node_tells_why_nothing_can_be_put_on_it() -> None:
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


def test_of_a_generation_that_will_not_be_it_is_told_what_trains_meanwhile_and_nothing_where_nothing_does() -> (
    None
):
    stopped = abandoned(
        reason="digits-ps-3 ended: Terminated (exit code 143) the cluster was stopped"
    )

    assert (
        sentence(abandoned(goes_on=1))
        == "generation 2 will not be: unschedulable; generation 1 goes on"
    )
    assert sentence(stopped) == f"generation 2 will not be: {stopped.reason}"


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
