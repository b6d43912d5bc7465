"""Tests of a job's history: generations, pauses, lost examples, held cores, steps of a start."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from services.console.board.board import initial_board, with_reason
from services.console.board.job_history import (
    GenerationSpan,
    Held,
    StartProgress,
    awaited_step,
    fold_start,
    view_while_starting,
)
from shared.messages import (
    CheckpointSaved,
    ClusterSpecPublished,
    GenerationPrepared,
    HandOverOrdered,
    Message,
    Phases,
    TaskExited,
    TaskReady,
    TaskStarted,
)
from tests.allocator.builders import UID, accepted, request, resumed
from tests.console.board.builders import Log, decided, finished, holding, progress

JOB = "default.mnist"


def handed_over() -> Log:
    """Return the log of a job that grew once: a pause of 0.5 s, and 40 unsaved examples lost."""
    log = Log()
    log.say(holding(), request(), accepted(), decided(), holding(pods=3), resumed(1))
    log.say(progress(100), progress(240), decided(2, workers=3), holding(pods=5))
    log.say(
        resumed(2, samples=200, previous=1, pause_s=0.5, phases=Phases(drain_s=0.1, save_s=0.4))
    )
    log.say(progress(300, generation=2), progress(600, generation=2))
    return log


def stretches(log: Log) -> tuple[GenerationSpan, ...]:
    return log.board.jobs[JOB].generation_spans


def test_each_generation_has_its_times_size_and_reports() -> None:
    first, second = stretches(handed_over())

    assert (
        first.generation,
        first.gives and first.gives.workers,
        second.gives and second.gives.workers,
    ) == (1, 1, 3)
    assert first.ended_s == second.resumed_s - 0.5, "it ended when the pause began"
    assert second.ended_s is None and second.previous == 1
    assert first.first and first.last and (first.first.samples, first.last.samples) == (100, 240)


def test_a_pause_is_split_into_phases_and_summed() -> None:
    log = handed_over()

    assert (
        stretches(log)[1].phases == Phases(drain_s=0.1, save_s=0.4)
        and stretches(log)[0].pause_s is None
    )
    assert log.board.jobs[JOB].paused_s == 0.5


def test_applied_but_unsaved_examples_are_lost() -> None:
    log = handed_over()

    assert stretches(log)[1].lost == log.board.jobs[JOB].lost == 40


def test_a_checkpoint_beyond_the_last_report_counts_as_applied() -> None:
    log = Log()
    log.say(request(), accepted(), decided(), resumed(1), progress(100))
    log.say(
        CheckpointSaved(
            job="mnist",
            uid=UID,
            generation=1,
            step=15,
            samples=150,
            path="p",
            seconds=0.1,
            cost_s=0.2,
        )
    )
    story = log.say(decided(2), resumed(2, samples=120, pause_s=1.0)).jobs[JOB]

    assert (story.lost, story.saves, story.save_cost_s) == (30, 1, 0.2)


def test_held_cores_are_steps_of_the_node_facts_and_sum_to_core_seconds() -> None:
    log = handed_over()
    log.say(finished())
    story = log.say(holding(), after_s=10.0).jobs[JOB]

    assert story.held[-3:] == (Held(5.0, 3.0, 3.0), Held(10.0, 5.0, 5.0), Held(24.0, 0.0))
    assert story.core_s == 3.0 * (10.0 - 5.0) + 5.0 * (24.0 - 10.0)


def test_used_core_seconds_are_reported_cores_times_their_interval() -> None:
    story = handed_over().board.jobs[JOB]

    reports = 4  # each 1 s after the resumption or the previous report
    assert story.used_core_s == pytest.approx(reports * 1.5 * 1.0)


def test_reports_of_a_superseded_generation_are_ignored() -> None:
    log = handed_over()
    board = log.say(progress(900, generation=1), resumed(1, samples=0))

    assert board.jobs[JOB].reports[-1].samples == 600 and len(board.jobs[JOB].generation_spans) == 2


def test_a_late_or_repeated_revision_is_no_new_decision() -> None:
    log = handed_over()
    board = log.say(decided(2, workers=3), decided(1))

    assert [d.revision for d in board.jobs[JOB].decisions] == [1, 2] and len(board.decisions) == 2


CHIEF, PS, WORKER = ("chief", 0), ("ps", 1), ("worker", 2)
ABOUT: dict[str, Any] = {"job": "mnist", "uid": UID}


def of(pod: tuple[str, int], **more: Any) -> dict[str, Any]:
    role, serial = pod
    name = f"mnist-{role}-{serial}"
    return {**ABOUT, "pod": name, "pod_uid": f"u{serial}", "role": role, "serial": serial, **more}


def runs(pod: tuple[str, int]) -> TaskStarted:
    return TaskStarted(**of(pod, node="n1"))


def stands(pod: tuple[str, int]) -> TaskReady:
    return TaskReady(**of(pod, node="n1", host="10.0.0.1", ports=(1, 2)))


def prepared(pod: tuple[str, int], **more: Any) -> GenerationPrepared:
    return GenerationPrepared(**of(pod, generation=1, **more))


SPEC = ClusterSpecPublished(
    **ABOUT, generation=1, revision=1, request=request(), tasks=(), batch=32
)
BEGINS = HandOverOrdered(**ABOUT, generation=1)
STEPS: list[tuple[str, list[Message]]] = [
    ("waits for 3 pods: 0 of 3 run, 0 ready", []),
    ("waits for 3 pods: 2 of 3 run, 0 ready", [runs(CHIEF), runs(PS)]),
    ("waits for 3 pods: 3 of 3 run, 2 ready", [runs(WORKER), stands(CHIEF), stands(PS)]),
    ("all 3 pods are ready; waits for its cluster spec", [stands(WORKER)]),
    (
        "all 3 pods are ready; the chief connects, builds the model and traces a step",
        [SPEC, prepared(PS)],
    ),
    ("waits for tasks: 2 of 3 prepared", [prepared(CHIEF)]),
    ("all tasks are prepared; waits for the first update", [prepared(WORKER), BEGINS]),
]


def after(*said: Message) -> StartProgress:
    known = StartProgress()
    for each in said:
        known = fold_start(known, each)
    return known


def test_each_step_of_a_start_is_shown_until_it_is_done() -> None:
    log = Log()
    log.say(request(), accepted(), decided())
    for told, said in STEPS:
        assert log.say(*said).jobs[JOB].view.why == told

    running = log.say(resumed(1)).jobs[JOB].view
    assert (running.phase, running.why) == ("Running", "")


def test_the_allocators_reason_does_not_hide_the_steps_of_a_start() -> None:
    log = Log()
    board = with_reason(
        log.say(request(), accepted(), decided(), runs(CHIEF)),
        JOB,
        "generation 1 is in flight: first size",
    )

    assert board.jobs[JOB].view.why == "waits for 3 pods: 1 of 3 run, 0 ready"


def test_orders_and_facts_may_arrive_in_any_order() -> None:
    for said in permutations([decided(), runs(CHIEF), stands(PS)]):
        assert awaited_step(after(*said)) == "waits for 3 pods: 2 of 3 run, 1 ready"


def test_an_ended_pod_does_not_count_as_running() -> None:
    gone = TaskExited(**of(WORKER, node="n1"))

    assert awaited_step(after(decided(), runs(CHIEF), stands(WORKER), gone)).endswith(
        "1 of 3 run, 0 ready"
    )


@pytest.mark.parametrize(
    "stale", [prepared(CHIEF, error="no"), GenerationPrepared(**of(CHIEF), generation=0)]
)
def test_a_failed_or_other_generations_preparation_does_not_count(
    stale: Message,
) -> None:
    known = after(decided(), *map(stands, (CHIEF, PS, WORKER)), SPEC, stale)

    assert awaited_step(known).endswith("traces a step")


def test_a_job_without_its_first_messages_has_no_invented_step() -> None:
    log = Log()
    state = log.say(request(), accepted(), decided()).state
    view = initial_board(state).jobs[JOB].view

    assert view.phase == "Starting" and view.why == "" and view_while_starting(view, None) is view
