"""Tests of a pod's messages on a real bus that contain more than the event of its child."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from services.trainer.pod.fence import Entry
from services.trainer.pod.publisher import Publisher
from services.trainer.protocol import Progress, Resumed
from services.trainer.settings import Settings
from shared.bus.bus import Bus
from shared.messages import (
    CheckpointSaved,
    GenerationPrepared,
    JobFinished,
    Message,
    TrainingResumed,
)
from tests.trainer.builders import JOB, spec

WORD = Resumed(
    step=11, samples=352, pause_s=0.9, restore_s=0.2, first_step_s=0.1, learning_rate=0.05
)
FAR = Progress(
    step=90, epoch=1, samples=2880, total_samples=9000, samples_per_second=5.0, loss=None
)


def voice(bus: Bus, uid: int = 7) -> Publisher:
    return Publisher(
        bus, Settings(job="digits", uid=uid, pod="chief-0", pod_uid="u", role="chief", serial=0)
    )


async def said(bus: Bus, kind: type[Message]) -> Any:
    last = await bus.last_message(kind, "default.digits")
    assert last is not None
    return last.message


async def test_a_pause_has_phases_with_drain_and_save_of_the_previous_generation(
    bus: Bus,
) -> None:
    before = CheckpointSaved(
        **JOB, generation=1, step=10, samples=320, path="/c", seconds=0.4, drain_s=0.2, final=True
    )

    fact = await voice(bus).training_resumed(spec(2, previous=1), WORD, before)

    assert (fact.phases.drain_s, fact.phases.save_s) == (0.2, 0.4)
    assert (fact.phases.restore_s, fact.phases.first_step_s) == (0.2, 0.1)
    assert fact.learning_rate == 0.05
    assert await said(bus, TrainingResumed) == fact


async def test_the_time_with_the_cluster_off_is_published_beside_the_pause(bus: Bus) -> None:
    fact = await voice(bus).training_resumed(replace(spec(2), off_s=600.0), WORD, None)

    assert (fact.pause_s, fact.off_s) == (WORD.pause_s, 600.0)


async def test_without_a_previous_generation_nothing_was_drained_or_saved(bus: Bus) -> None:
    fact = await voice(bus).training_resumed(spec(1), WORD, None)

    assert (fact.previous, fact.phases.drain_s, fact.phases.save_s) == (None, 0.0, 0.0)


async def test_a_generation_that_cannot_save_names_the_ledgers_checkpoint(bus: Bus) -> None:
    await voice(bus).last_is_final(
        1, 2, Entry(uid=7, generation=1, step=10, samples=320, paths=("/c/new", "/c/old"))
    )
    named = await said(bus, CheckpointSaved)
    await voice(bus).last_is_final(3, 4, Entry(uid=7, generation=3))
    none = await said(bus, CheckpointSaved)

    assert (named.path, named.step, named.final, named.successor) == ("/c/new", 10, True, 2)
    assert (none.path, none.step, none.final, none.successor) == ("", 0, True, 4)


async def test_a_preparation_failure_has_the_pod_and_the_cause(bus: Bus) -> None:
    await voice(bus).generation_not_prepared(2, "no room")

    heard = await said(bus, GenerationPrepared)

    assert (heard.pod, heard.generation, heard.error) == ("chief-0", 2, "no room")


async def test_a_failed_job_has_the_progress_of_the_last_report(bus: Bus) -> None:
    await voice(bus).progress_reported(1, FAR, ())
    await voice(bus).job_failed(1, "net.py:3: ValueError")

    over = await said(bus, JobFinished)

    assert (over.outcome, over.cause, over.step, over.samples) == (
        "failed",
        "net.py:3: ValueError",
        90,
        2880,
    )


async def test_a_failed_job_has_no_progress_of_an_earlier_job(bus: Bus) -> None:
    await voice(bus, uid=6).progress_reported(1, FAR, ())
    await voice(bus).job_failed(1, "net.py:3: ValueError")

    over = await said(bus, JobFinished)

    assert (over.uid, over.step, over.samples) == (7, 0, 0)


async def test_a_long_exception_keeps_its_beginning_and_end(
    bus: Bus,
) -> None:
    why = f"net.py:3: ValueError: {'x' * 300_000}\nat the end"
    await voice(bus).job_failed(1, why)
    await voice(bus).generation_not_prepared(2, why)

    told = [(await said(bus, JobFinished)).cause, (await said(bus, GenerationPrepared)).error]
    assert all(
        each.startswith("net.py:3: ValueError") and each.endswith("at the end") for each in told
    )
