"""Tests of bounds: a message with measured numbers can be read, whatever was measured.

Also tests of which early facts are kept, if more arrive than may wait.
"""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from services.allocator.state.state import EarlyFact
from shared.bounds import (
    LONGEST_TEXT,
    MOST_OF_JOB,
    MOST_OF_NAMESPACE,
    add_early_fact,
    shorten_texts,
    within_bounds,
)
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.messages import (
    LONGEST_S,
    MOST_AMOUNT,
    CheckpointSaved,
    JobFinished,
    Message,
    Phases,
    ProgressReported,
    TaskUsage,
    TrainingResumed,
)
from tests.shared.sample_messages import JOB, one_of_each

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


def test_a_number_beyond_its_bounds_is_clamped() -> None:
    kept = within_bounds(ODD)

    assert subjects.decode_message(subjects.subject_of(kept), subjects.encode_message(kept)) == kept
    assert (kept.samples, kept.total_samples, kept.samples_per_second) == (2**53 - 1, 0, 1e12)
    assert (kept.loss, kept.gradient_noise) == (None, 1e39)
    assert kept.usage == (TaskUsage(task="ps-0", cpu=MOST_AMOUNT, memory_gib=0.0),)


LONG = "beginning " + "x" * 100_000 + " end"
WORDY = JobFinished(
    **JOB, outcome="failed", cause=LONG, metrics={f"{n} {LONG}": 1.0 for n in range(1_000)}
)


def test_a_long_text_loses_its_middle_and_a_long_list_its_end() -> None:
    kept = within_bounds(WORDY)

    assert subjects.decode_message(subjects.subject_of(kept), subjects.encode_message(kept)) == kept
    assert (
        kept.cause.startswith("beginning")
        and kept.cause.endswith("end")
        and len(kept.cause) == 32_768
    )
    assert len(kept.metrics) == 256 and next(iter(kept.metrics)).startswith("0 beginning")


def test_long_texts_in_a_list_are_cut() -> None:
    kept = within_bounds(
        replace(ODD, usage=(TaskUsage(task="t" * 300, cpu=1.0, memory_gib=1.0),) * 20_000)
    )

    assert len(kept.usage) == 10_000 and {len(each.task) for each in kept.usage} == {253}


@pytest.mark.parametrize("message", one_of_each(), ids=lambda message: type(message).__name__)
def test_a_message_within_its_bounds_is_returned_unchanged(message: Message) -> None:
    assert within_bounds(message) is message


async def test_a_trainers_report_of_an_infinite_pause_is_readable(bus: Bus) -> None:
    phases = Phases(restore_s=1e308)
    await bus.publish(
        TrainingResumed(**JOB, step=1, samples=1, previous=1, pause_s=1e308, phases=phases)
    )
    heard = await bus.last_message(TrainingResumed, "default.digits")

    assert heard is not None and isinstance(heard.message, TrainingResumed)
    assert (heard.message.pause_s, heard.message.phases.restore_s) == (LONGEST_S, LONGEST_S)


def resumed(step: int, job: str = "digits", namespace: str = "team-a") -> EarlyFact:
    fact = TrainingResumed(job=job, namespace=namespace, uid=7, generation=1, step=step, samples=0)
    return EarlyFact(fact, float(step))


def waiting(*facts: EarlyFact) -> tuple[EarlyFact, ...]:
    kept: tuple[EarlyFact, ...] = ()
    for each in facts:
        kept = add_early_fact(kept, each, lambda early: early.fact)
    return kept


def test_a_noisy_job_displaces_only_its_own_oldest_facts() -> None:
    flood = [resumed(step) for step in range(10 * MOST_OF_JOB)]
    quiet = resumed(1, "letters")

    assert waiting(quiet, *flood) == (quiet, *flood[-MOST_OF_JOB:])


def test_a_namespace_with_many_jobs_displaces_no_fact_of_another_namespace() -> None:
    flood = [resumed(1, f"job-{number}") for number in range(3 * MOST_OF_NAMESPACE)]
    quiet = resumed(1, namespace="team-b")

    assert waiting(quiet, *flood) == (quiet, *flood[-MOST_OF_NAMESPACE:])


def test_waiting_facts_have_shortened_texts() -> None:
    saved = CheckpointSaved(
        job="digits", uid=7, generation=1, step=1, samples=1, path="/c" * 2_000, seconds=1.0
    )

    assert len(shorten_texts(saved).path) == LONGEST_TEXT and shorten_texts(saved).step == 1
    assert shorten_texts(resumed(1).fact) == resumed(1).fact
