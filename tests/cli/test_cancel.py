"""Tests of `weir cancel`, and of a job's state: unknown, open or over."""

from __future__ import annotations

from services.cli.connection import job_standing
from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage
from shared.messages import CancelRequested, JobAccepted, JobFinished
from tests.cli.conftest import Prompt, closed
from tests.conftest import connected
from tests.shared.sample_messages import request


async def running(bus: Bus) -> JobAccepted:
    uid = await bus.publish(request())
    accepted = JobAccepted(job="digits", uid=uid, request=request(), accepted_s=1.0)
    await bus.publish(accepted)
    return accepted


async def ending(bus: Bus, uid: int, outcome: str) -> None:
    """Publish the end of the job when its cancellation is requested."""

    async def on_cancel(heard: StoredMessage) -> None:
        await bus.publish(JobFinished(job="digits", uid=uid, outcome=outcome))  # type: ignore[arg-type]

    await bus.follow([CancelRequested], on_cancel, {})


async def test_a_running_job_is_cancelled(nats_url: str, prompt: Prompt) -> None:
    world = await connected(nats_url, "world")
    await ending(world, (await running(world)).uid, "cancelled")

    said = await prompt("cancel", "digits", "--nats", nats_url)
    await closed(world)

    assert (said.code, said.out) == (0, "job default/digits is cancelled\n")


async def test_a_job_that_succeeds_meanwhile_is_not_reported_as_cancelled(
    nats_url: str, prompt: Prompt
) -> None:
    world = await connected(nats_url, "world")
    await ending(world, (await running(world)).uid, "succeeded")

    said = await prompt("cancel", "digits", "--nats", nats_url)
    await closed(world)

    assert said.code == 1 and "succeeded before it could be cancelled" in said.err


async def test_cancelling_an_unknown_job_sends_nothing(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await running(bus)

    said = await prompt("cancel", "digit", "--nats", nats_url)

    assert said.code == 1 and "there is no job default/digit" in said.err
    assert await bus.last_message(CancelRequested, "default.digit") is None


async def test_a_job_that_is_over_cannot_be_cancelled(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    uid = (await running(bus)).uid
    await bus.publish(JobFinished(job="digits", uid=uid, outcome="failed"))

    said = await prompt("cancel", "digits", "--nats", nats_url)

    assert said.code == 1 and "is over already" in said.err


async def test_cancel_without_an_allocator_is_an_error(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await running(bus)

    said = await prompt("cancel", "digits", "--nats", nats_url, "--timeout", "0.2")

    assert said.code == 1 and "is the allocator running?" in said.err


def test_a_job_that_was_never_requested_is_unknown() -> None:
    assert job_standing(requested=0, accepted=0, rejected=0, finished=0) == "unknown"


def test_a_request_without_an_answer_is_open() -> None:
    assert job_standing(requested=4, accepted=0, rejected=0, finished=0) == "open"


def test_an_accepted_job_is_open_until_it_is_finished() -> None:
    assert job_standing(requested=4, accepted=4, rejected=0, finished=0) == "open"
    assert job_standing(requested=4, accepted=4, rejected=0, finished=4) == "over"


def test_a_rejected_request_is_over() -> None:
    assert job_standing(requested=4, accepted=0, rejected=4, finished=0) == "over"


def test_a_running_job_stays_open_after_a_rejected_request_for_its_name() -> None:
    assert job_standing(requested=9, accepted=4, rejected=9, finished=0) == "open"


def test_a_new_request_for_a_finished_name_is_open() -> None:
    assert job_standing(requested=9, accepted=4, rejected=0, finished=4) == "open"
    assert job_standing(requested=9, accepted=9, rejected=0, finished=4) == "open"


def test_an_accepted_job_with_a_purged_request_is_open() -> None:
    assert job_standing(requested=0, accepted=4, rejected=0, finished=0) == "open"
