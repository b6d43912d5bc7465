"""Each step of a first start, in words, from the facts alone."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from services.console.board.beginning import Beginning, awaited, heard, shown
from services.console.board.board import begun, why
from shared.messages import (
    ClusterSpecPublished,
    GenerationPrepared,
    HandOverOrdered,
    Message,
    TaskExited,
    TaskReady,
    TaskStarted,
)
from tests.allocator.builders import UID, accepted, request, resumed
from tests.console.board.builders import Log, decided

JOB = "default.mnist"
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
    ("all is prepared; waits for its first update", [prepared(WORKER), BEGINS]),
]


def after(*said: Message) -> Beginning:
    known = Beginning()
    for each in said:
        known = heard(known, each)
    return known


def test_each_step_is_told_until_it_is_done() -> None:
    log = Log()
    log.say(request(), accepted(), decided())
    for told, said in STEPS:
        assert log.say(*said).jobs[JOB].view.why == told

    running = log.say(resumed(1)).jobs[JOB].view
    assert (running.phase, running.why) == ("Running", "")


def test_a_word_of_the_allocator_on_a_job_that_starts_hides_nothing() -> None:
    log = Log()
    board = why(
        log.say(request(), accepted(), decided(), runs(CHIEF)),
        JOB,
        "generation 1 is in flight: first size",
    )

    assert board.jobs[JOB].view.why == "waits for 3 pods: 1 of 3 run, 0 ready"


def test_orders_and_facts_may_overtake_each_other() -> None:
    for said in permutations([decided(), runs(CHIEF), stands(PS)]):
        assert awaited(after(*said)) == "waits for 3 pods: 2 of 3 run, 1 ready"


def test_a_pod_that_ended_runs_no_more() -> None:
    gone = TaskExited(**of(WORKER, node="n1"))

    assert awaited(after(decided(), runs(CHIEF), stands(WORKER), gone)).endswith(
        "1 of 3 run, 0 ready"
    )


@pytest.mark.parametrize(
    "stale", [prepared(CHIEF, error="no"), GenerationPrepared(**of(CHIEF), generation=0)]
)
def test_who_could_not_prepare_or_did_for_another_generation_is_not_prepared(
    stale: Message,
) -> None:
    known = after(decided(), *map(stands, (CHIEF, PS, WORKER)), SPEC, stale)

    assert awaited(known).endswith("traces a step")


def test_of_a_job_whose_first_messages_are_gone_nothing_is_made_up() -> None:
    log = Log()
    state = log.say(request(), accepted(), decided()).state
    view = begun(state).jobs[JOB].view

    assert view.phase == "Starting" and view.why == "" and shown(view, None) is view
