"""What a service says of measured numbers can be read, whatever was measured."""

from __future__ import annotations

import math

import pytest

from shared import subjects
from shared.bounds import clamped
from shared.bus import Bus
from shared.messages import LONGEST_S, MOST_AMOUNT, Message, Phases, ProgressReported, TaskUsage, TrainingResumed
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


@pytest.mark.parametrize("message", one_of_each(), ids=lambda message: type(message).__name__)
def test_what_is_within_its_bounds_is_the_very_same(message: Message) -> None:
    assert clamped(message) is message


async def test_what_a_trainer_says_of_an_endless_pause_can_be_read(bus: Bus) -> None:
    phases = Phases(restore_s=1e308)
    await bus.publish(TrainingResumed(**JOB, step=1, samples=1, previous=1, pause_s=1e308, phases=phases))
    heard = await bus.last(TrainingResumed, "default.digits")

    assert heard is not None and isinstance(heard.message, TrainingResumed)
    assert (heard.message.pause_s, heard.message.phases.restore_s) == (LONGEST_S, LONGEST_S)
