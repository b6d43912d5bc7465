"""Tests of intakes: messages of outside credentials pass through one for each namespace.

The server enforces the limits of an intake.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from shared.auth.permissions import JOB, LEDGER_LETTERS, OPERATOR, SETUP, SUBMITTER
from shared.bus import intake, streams
from shared.bus.bus import Bus
from shared.bus.intake import intake_stream, reports_stream
from shared.bus.subjects import DEAD, FACTS, ORDERS, subject_of
from shared.messages import CancelRequested, JobFinished, TrainingResumed
from tests.conftest import NatsServer
from tests.shared.sample_messages import abandoned
from tests.shared.secured_server import Visitor, credentials, guarded, visitor

WITHIN_S = 60.0
CANCEL = CancelRequested(job="mine", namespace="team-a", request_id="1")
RESUMED = TrainingResumed(job="mine", namespace="team-a", uid=1, generation=1, step=7, samples=1)
FINISHED = JobFinished(job="mine", namespace="team-a", uid=1, generation=1, outcome="succeeded")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with guarded(tmp_path) as running:
        yield running


@pytest.fixture
async def operator(server: NatsServer) -> AsyncIterator[Bus]:
    async with visitor(server.url, credentials(OPERATOR)) as person:
        yield person.bus


async def size(bus: Bus, stream: str) -> tuple[int, int]:
    """Return the number of messages and of bytes in a stream."""
    state = (await bus.js.stream_info(stream)).state
    return state.messages, state.bytes


async def until_stored(
    bus: Bus, stream: str, count: int
) -> list[tuple[str, bytes, dict[str, str]]]:
    """Wait until a stream has this many messages. Return them all."""
    async with asyncio.timeout(WITHIN_S):
        while (await size(bus, stream))[0] < count:
            await asyncio.sleep(0.02)
    found = []
    for sequence in range(1, count + 1):
        raw = await bus.js.get_msg(stream, sequence)
        found.append((str(raw.subject), raw.data or b"", dict(raw.headers or {})))
    return found


async def flood(guest: Visitor, subjects: list[str], body: bytes, seconds: float) -> int:
    """Publish as fast as the server accepts messages. Return their number."""
    end_s, published = time.monotonic() + seconds, 0
    while time.monotonic() < end_s:
        for subject in subjects:
            await guest.client.publish(subject, body)
        published += len(subjects)
        await guest.client.flush(WITHIN_S)
    return published


async def test_messages_of_the_outside_account_are_stored_under_the_same_subjects(
    server: NatsServer, operator: Bus
) -> None:
    letter = f"{LEDGER_LETTERS}.team-a.mine"
    async with (
        visitor(server.url, credentials(SUBMITTER)) as person,
        visitor(server.url, credentials(JOB)) as trainer,
    ):
        assert await person.bus.request(CANCEL) == 1
        await trainer.bus.publish(FINISHED)
        await trainer.bus.publish(RESUMED)
        await trainer.client.request(letter, b"{}", timeout=WITHIN_S)

        orders = await until_stored(operator, ORDERS, 2)
        facts = await until_stored(operator, FACTS, 1)
        letters = await until_stored(operator, DEAD, 1)

    assert [subject for subject, _, _ in orders] == [
        "weir.job.cancel.team-a.mine",
        "weir.job.finished.team-a.mine",
    ]
    assert [(subject, headers["ce-id"]) for subject, _, headers in facts] == [
        ("weir.training.resumed.team-a.mine", RESUMED.id())
    ]
    assert [subject for subject, _, _ in letters] == [letter]


async def test_a_request_of_any_nats_client_is_acknowledged_by_its_intake_stream(
    server: NatsServer,
) -> None:
    async with visitor(server.url, credentials(SUBMITTER)) as person:
        assert await person.asked("weir.job.requested.team-a.digits", {}) == {
            "stream": "weir-intake-team-a",
            "seq": 1,
        }


async def test_a_flood_of_requests_is_refused_at_the_intake_and_affects_no_other_namespace(
    server: NatsServer, operator: Bus
) -> None:
    seconds, body = 3.0, b"x" * 10_000
    names = [f"weir.job.requested.team-a.flood-{number}" for number in range(1_000)]
    async with (
        visitor(server.url, credentials(SUBMITTER)) as hostile,
        visitor(server.url, credentials(SUBMITTER, "team-b.any")) as peaceful,
    ):
        flooding = asyncio.ensure_future(flood(hostile, names, body, seconds))
        await asyncio.sleep(seconds / 2)
        for number in range(10):
            cancel = msgspec.structs.replace(CANCEL, namespace="team-b", request_id=str(number))
            assert await peaceful.bus.request(cancel) > 0
        published = await flooding
        full = await hostile.asked(names[0], {"text": "x" * 200_000})

    _, stored = await size(operator, ORDERS)
    rate = intake.DEFAULT_RATES.requests * intake.KIB
    assert published * len(body) > 4 * intake.INTAKE_BYTES, "the flood was too weak to say anything"
    assert stored < 2 * intake.LARGEST_MESSAGE + 3 * seconds * rate
    assert "maximum" in full["error"]["description"]
    assert (await size(operator, DEAD))[0] == 0


async def test_a_flood_of_facts_is_forwarded_at_a_limited_rate_and_keeps_the_newest(
    server: NatsServer, operator: Bus
) -> None:
    seconds, body = 3.0, b"x" * 1_000
    subjects = [
        f"weir.training.{fact}.team-a.mine" for fact in ("progress", "saved", "resumed")
    ] * 200
    async with visitor(server.url, credentials(JOB)) as hostile:
        published = await flood(hostile, subjects, body, seconds)
        other = TrainingResumed(
            job="mine", namespace="team-b", uid=2, generation=1, step=1, samples=1
        )
        async with visitor(server.url, credentials(JOB, "team-b.mine")) as peaceful:
            began_s = time.monotonic()
            await peaceful.bus.publish(other)
            async with asyncio.timeout(WITHIN_S):
                while await operator.last_message(TrainingResumed, "team-b.mine") is None:
                    await asyncio.sleep(0.01)
            waited_s = time.monotonic() - began_s

    _, stored = await size(operator, FACTS)
    rate = intake.DEFAULT_RATES.reports * intake.KIB
    assert published * len(body) > 4 * (seconds * rate + intake.LARGEST_MESSAGE), (
        "the flood was too weak"
    )
    assert stored < 2 * (2 * intake.LARGEST_MESSAGE + (seconds + waited_s + 2) * rate)
    assert waited_s < 10.0


@pytest.mark.parametrize("user", [SUBMITTER, JOB])
async def test_a_message_that_is_too_large_is_refused(server: NatsServer, user: str) -> None:
    kind = "weir.job.requested" if user == SUBMITTER else "weir.training.saved"
    async with visitor(server.url, credentials(user)) as guest:
        answer = await guest.asked(f"{kind}.team-a.mine", "x" * intake.LARGEST_MESSAGE)
    assert "message size" in answer["error"]["description"]


HEADERS = (
    {"Nats-Expected-Last-Sequence": "0"},
    {"Nats-Expected-Stream": "weir-intake-team-a"},
    {"Nats-Rollup": "all"},
    {"Nats-Stream-Source": "weir-intake-team-a 99 > > x"},
    {"Nats-Msg-Id": RESUMED.id()},
)


async def test_no_header_stops_an_intake(server: NatsServer, operator: Bus) -> None:
    async with visitor(server.url, credentials(SUBMITTER)) as hostile:
        for number, headers in enumerate(HEADERS):
            subject = f"weir.job.requested.team-a.odd-{number}"
            await hostile.client.request(subject, b"{}", headers=headers, timeout=WITHIN_S)
        assert (
            await hostile.bus.request(CANCEL) == (await size(operator, ORDERS))[0]
        )  # it is stored after them


async def test_each_message_is_forwarded_once_although_the_server_is_killed(
    server: NatsServer,
) -> None:
    ids = [str(number) for number in range(200)]
    async with visitor(server.url, credentials(SUBMITTER)) as person:
        for number in ids:
            await person.asked(f"weir.job.cancel.team-a.job-{number}", {"number": number})
    await server.kill()
    await server.start()
    async with asyncio.timeout(WITHIN_S), visitor(server.url, credentials(OPERATOR)) as person:
        found = await until_stored(person.bus, ORDERS, len(ids))
        while (await person.bus.js.stream_info(ORDERS)).state.messages < len(ids):
            await asyncio.sleep(0.05)
        await asyncio.sleep(2 * intake.HEARTBEAT_S)  # duplicates would arrive now
        assert (await size(person.bus, ORDERS))[0] == len(ids)
    assert sorted(msgspec.json.decode(body)["number"] for _, body, _ in found) == sorted(ids)


async def test_a_namespace_is_provisioned_again_without_a_loss_and_keeps_or_changes_its_rates(
    server: NatsServer, operator: Bus
) -> None:
    async with visitor(server.url, credentials(SETUP)) as setup:
        js = setup.bus.js

        async def rate(stream: str, target: str) -> int:
            return int((await js.consumer_info(stream, target)).config.rate_limit_bps or 0)

        await streams.create_namespace(js, "team-a", rates=intake.Rates(requests=32, reports=512))
        for _ in range(2):
            await setup.bus.create(namespaces=("team-a", "team-b", "team-c"))

        assert await rate(intake_stream("team-a"), ORDERS) == 8 * 32 * intake.KIB
        assert await rate(reports_stream("team-a"), FACTS) == 8 * 512 * intake.KIB
        assert (
            await rate(intake_stream("team-b"), ORDERS)
            == 8 * intake.DEFAULT_RATES.requests * intake.KIB
        )
        sources = (await js.stream_info(ORDERS)).config.sources or []
        assert sorted(each.name for each in sources) == [
            intake_stream(namespace) for namespace in ("default", "team-a", "team-b", "team-c")
        ]
    async with visitor(server.url, credentials(SUBMITTER)) as person:
        assert await person.bus.request(CANCEL) == 1


async def test_a_guessed_message_id_does_not_block_another_namespace(
    bus: Bus,
) -> None:
    """The server drops a message whose id its stream has seen; a copy from an intake counts too."""
    guessed, before = abandoned(), int((await bus.js.stream_info(ORDERS)).state.last_seq)
    await bus.js.publish(
        "weir-intake.job.requested.default.flood",
        b"{}",
        headers={"Nats-Msg-Id": guessed.id(), "ce-id": guessed.id()},
    )
    async with asyncio.timeout(WITHIN_S):
        while (await bus.js.stream_info(ORDERS)).state.last_seq == before:
            await asyncio.sleep(0.02)

    stored = await bus.publish(guessed)

    raw = await bus.js.get_msg(ORDERS, stored)
    assert stored > before + 1 and raw.subject == subject_of(guessed)


async def test_a_message_sent_twice_through_the_intake_is_stored_once(bus: Bus) -> None:
    assert await bus.publish(abandoned()) == await bus.publish(abandoned())
