"""What a service says of measured numbers can be read, whatever was measured."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from shared.bounds import clamped
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.messages import (
    LONGEST_S,
    MOST_AMOUNT,
    JobFinished,
    Message,
    Phases,
    ProgressReported,
    TaskUsage,
    TrainingResumed,
)
from tests.shared.words import JOB, one_of_each

ODD = ProgressReported(
    **JOB,
    step=1,
    epoch=0,
    samples=10**30,
    total_samples=-1,
    samples_per_second=math.inf,
    loss=math.nan,
    gradient_noise=1e300,
    usage=(TaskUsage(task="ps-0", cpu=1e9, memory_gib=math.nan, waited=math.inf),),
)


def test_each_number_beyond_its_bounds_is_its_bound_and_the_rest_stays() -> None:
    kept = clamped(ODD)

    assert subjects.decode(subjects.subject_of(kept), subjects.encode(kept)) == kept
    assert (kept.samples, kept.total_samples, kept.samples_per_second) == (2**53 - 1, 0, 1e12)
    assert (kept.loss, kept.gradient_noise) == (None, 1e39)
    assert kept.usage == (TaskUsage(task="ps-0", cpu=MOST_AMOUNT, memory_gib=0.0),)


LONG = "beginning " + "x" * 100_000 + " end"
WORDY = JobFinished(
    **JOB, outcome="failed", cause=LONG, metrics={f"{n} {LONG}": 1.0 for n in range(1_000)}
)


def test_a_text_beyond_its_length_loses_its_middle_and_what_is_beyond_a_lists_length_is_left_out() -> (
    None
):
    kept = clamped(WORDY)

    assert subjects.decode(subjects.subject_of(kept), subjects.encode(kept)) == kept
    assert (
        kept.cause.startswith("beginning")
        and kept.cause.endswith("end")
        and len(kept.cause) == 32_768
    )
    assert len(kept.metrics) == 256 and next(iter(kept.metrics)).startswith("0 beginning")


def test_a_list_within_its_length_has_each_of_its_texts_cut() -> None:
    kept = clamped(
        replace(ODD, usage=(TaskUsage(task="t" * 300, cpu=1.0, memory_gib=1.0),) * 20_000)
    )

    assert len(kept.usage) == 10_000 and {len(each.task) for each in kept.usage} == {253}


@pytest.mark.parametrize("message", one_of_each(), ids=lambda message: type(message).__name__)
def test_what_is_within_its_bounds_is_the_very_same(message: Message) -> None:
    assert clamped(message) is message


async def test_what_a_trainer_says_of_an_endless_pause_can_be_read(bus: Bus) -> None:
    phases = Phases(restore_s=1e308)
    await bus.publish(
        TrainingResumed(**JOB, step=1, samples=1, previous=1, pause_s=1e308, phases=phases)
    )
    heard = await bus.last(TrainingResumed, "default.digits")

    assert heard is not None and isinstance(heard.message, TrainingResumed)
    assert (heard.message.pause_s, heard.message.phases.restore_s) == (LONGEST_S, LONGEST_S)
