"""Tests of the check of the drain story: it accepts a hand-over and nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shared.bus.subjects import ORDERS, pattern, stream_holding, tag_of
from shared.messages import (
    CheckpointSaved,
    GenerationAbandoned,
    Message,
    ProgressReported,
    TaskExited,
    TrainingResumed,
)
from tests.cluster.cluster import Event
from tests.cluster.handover import handover_faults

JOB: dict[str, Any] = {"job": "digits", "uid": 7}
PAUSE_S = 10.0


def told(*messages: Message) -> list[Event]:
    """Return the events as `weir events --json` prints them, numbered in each stream."""
    places, events = {ORDERS: 1000}, list[Event]()  # the sequences of orders and of facts differ
    for message in messages:
        stream = stream_holding(pattern(type(message)))
        places[stream] = places.get(stream, 0) + 1
        events.append(Event(tag_of(type(message)), places[stream], msgspec.to_builtins(message)))
    return events


def progress(generation: int, samples: int) -> ProgressReported:
    about = {"step": samples // 32, "epoch": 0, "total_samples": 99_999, "samples_per_second": 9.0}
    return ProgressReported(**JOB, generation=generation, samples=samples, **about)


def saved(generation: int, samples: int, **fields: Any) -> CheckpointSaved:
    about = {"step": samples // 32, "path": f"/c/gen-{generation}/ckpt", "seconds": 0.1}
    return CheckpointSaved(**JOB, generation=generation, samples=samples, **about, **fields)


def resumed(generation: int, samples: int, **fields: Any) -> TrainingResumed:
    return TrainingResumed(
        **JOB, generation=generation, step=samples // 32, samples=samples, **fields
    )


def exited(generation: int) -> TaskExited:
    about: dict[str, Any] = {
        "pod": "digits-worker-0",
        "pod_uid": "u1",
        "role": "worker",
        "serial": 0,
        "node": "n1",
    }
    return TaskExited(**JOB, generation=generation, reason="Evicted", **about)


def abandoned(generation: int, reason: str) -> GenerationAbandoned:
    return GenerationAbandoned(**JOB, generation=generation, reason=reason)


BEGUN = (resumed(1, 32), saved(1, 320), progress(1, 480))
FINAL = saved(1, 640, final=True, successor=2)
TOOK_OVER = resumed(2, 672, previous=1, pause_s=1.2)


def faults(*messages: Message) -> list[str]:
    return handover_faults(told(*messages), before=1, pause_s=PAUSE_S)


def test_a_hand_over_passes() -> None:
    assert faults(*BEGUN, FINAL, TOOK_OVER, exited(1), progress(2, 900), saved(2, 900)) == []


def test_a_hand_over_that_skips_a_superseded_generation_passes() -> None:
    final, took_over = (
        saved(1, 640, final=True, successor=3),
        resumed(3, 672, previous=1, pause_s=1.2),
    )
    assert faults(*BEGUN, abandoned(2, "superseded by generation 3"), final, took_over) == []


def test_tasks_that_exited_before_the_generation_began_do_not_count() -> None:
    assert faults(exited(0), *BEGUN, FINAL, TOOK_OVER) == []


def test_a_restart_from_a_checkpoint_fails_every_check() -> None:
    found = faults(
        *BEGUN, exited(1), abandoned(1, "digits-worker-0 is gone"), resumed(2, 352, pause_s=42.0)
    )
    assert found == [
        "generation 2 took over from None, and not from 1",
        "the pause of generation 2 was 42 s, above 10 s",
        "generation 1 saved no last checkpoint for generation 2",
        "examples were repeated: it resumed at 352, and 480 had been applied",
        "generation 1 was abandoned: digits-worker-0 is gone",
        "digits-worker-0 exited before generation 2 resumed",
    ]


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ((*BEGUN, FINAL), "nothing resumed after generation 1"),
        ((*BEGUN, FINAL, resumed(2, 672, pause_s=1.2)), "took over from None"),
        ((*BEGUN, FINAL, resumed(2, 672, previous=1)), "pause of generation 2 is not known"),
        ((*BEGUN, FINAL, resumed(2, 672, previous=1, pause_s=10.5)), "10.5 s, above 10 s"),
        ((*BEGUN, TOOK_OVER), "saved no last checkpoint"),
        ((*BEGUN, TOOK_OVER, FINAL), "saved no last checkpoint"),
        ((*BEGUN, saved(1, 640), TOOK_OVER), "saved no last checkpoint"),
        ((*BEGUN, saved(1, 640, final=True, successor=3), TOOK_OVER), "saved no last checkpoint"),
        ((*BEGUN, FINAL, progress(1, 660), TOOK_OVER), "holds 640 of 660"),
        ((*BEGUN, FINAL, resumed(2, 640, previous=1, pause_s=1.2)), "were repeated"),
        (
            (*BEGUN, FINAL, abandoned(2, "not prepared in 60 s"), TOOK_OVER),
            "2 was abandoned: not prepared",
        ),
        ((*BEGUN, exited(1), FINAL, TOOK_OVER), "worker-0 exited"),
    ],
)
def test_each_part_of_a_hand_over_is_required(messages: tuple[Message, ...], fault: str) -> None:
    (found,) = faults(*messages)
    assert fault in found
