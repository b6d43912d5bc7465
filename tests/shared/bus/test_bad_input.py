"""Tests of malformed messages: each is handled, or stored as a dead letter with its error.

The next message is handled in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from nats.js.api import DiscardPolicy
from nats.js.errors import APIError, NotFoundError

from shared.bus import streams, subjects
from shared.bus.bus import Bus
from shared.bus.dead_letters import LETTER_BYTES, TEXT_KEPT, LetterBudget, truncate
from shared.bus.intake import LARGEST_MESSAGE
from shared.messages import MESSAGES, DeadLetter, GenerationAbandoned, TrainingResumed
from tests.conftest import connected
from tests.shared.bus.test_client import put, spoken
from tests.shared.listeners import Ears
from tests.shared.malformed import DEEP, Poison, poison
from tests.shared.sample_messages import abandoned

SUBJECT = "weir.cluster.abandoned.default.digits"
BIG = 1_000_000  # bytes; a server takes 1,048,576


class Listener:
    """A client that follows all messages."""

    def __init__(self, bus: Bus) -> None:
        self.bus, self.ears, self.good = bus, Ears(), 0

    async def next_is_heard(self) -> None:
        """Publish a good message to each stream, and wait until both have arrived.

        The streams are read concurrently.
        """
        self.good += 1
        order = abandoned(job="good", generation=self.good)
        fact = TrainingResumed(job="good", uid=1, generation=self.good, step=1, samples=1)
        await self.bus.publish(order)
        await self.bus.publish(fact)
        async with asyncio.timeout(60):
            while not {order.id(), fact.id()} <= set(self.ears.ids[-4:]):
                await asyncio.sleep(0.001)

    async def letter(self, stream: str, sequence: int) -> DeadLetter | None:
        """The newest dead letter, if it is about this message."""
        try:
            raw = await self.bus.js.get_last_msg(subjects.DEAD, f"{DeadLetter.PREFIX}.>")
        except NotFoundError:
            return None
        letter = msgspec.json.decode(raw.data or b"", type=DeadLetter)
        return letter if (letter.stream, letter.sequence) == (stream, sequence) else None

    def has_heard(self, stream: str, sequence: int) -> bool:
        return any((h.stream, h.sequence) == (stream, sequence) for h in self.ears.heard[-4:])


@pytest.fixture
async def listener(bus: Bus, nats_url: str) -> AsyncIterator[Listener]:
    other = await connected(nats_url, "listener")
    made = Listener(bus)
    await other.follow(MESSAGES, made.ears, {}, strays=True)
    failing = asyncio.ensure_future(other.raise_failure())
    yield made
    if failing.done():
        failing.result()
    failing.cancel()
    await other.close()


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(said=poison())
async def test_any_message_is_handled_or_dead_lettered_and_the_next_is_handled(
    listener: Listener, said: Poison
) -> None:
    subject, body = said
    ack = await listener.bus.js.publish(subject, body)

    await listener.next_is_heard()

    heard, letter = (
        listener.has_heard(ack.stream, ack.seq),
        await listener.letter(ack.stream, ack.seq),
    )
    assert heard != (letter is not None)
    if letter:
        assert (
            letter.error
            and letter.subject == truncate(subject, TEXT_KEPT)
            and letter.said_by == "unknown"
        )


@pytest.mark.parametrize(
    "body",
    [b"x" * BIG, b"\xff" * BIG, b"\x00" * BIG, DEEP],
    ids=["text", "bytes", "control", "deep"],
)
async def test_a_bad_body_of_any_size_and_depth_is_dead_lettered(
    listener: Listener, body: bytes
) -> None:
    ack = await listener.bus.js.publish(SUBJECT, body)

    await listener.next_is_heard()

    letter = await listener.letter(ack.stream, ack.seq)
    assert letter and letter.error and (len(body) < BIG or f"({BIG} bytes in all)" in letter.body)


async def test_a_name_as_long_as_a_message_is_dead_lettered(listener: Listener) -> None:
    body = msgspec.json.encode({"fact": "job.rejected", "job": "x" * BIG, "uid": 1, "reasons": []})
    ack = await listener.bus.js.publish("weir.job.rejected.default.digits", body)

    await listener.next_is_heard()

    letter = await listener.letter(ack.stream, ack.seq)
    assert letter and letter.error.startswith("the body belongs on weir.job.rejected.default.xxx")


async def test_the_longest_possible_subject_is_dead_lettered_on_a_shorter_one(
    listener: Listener, nats_url: str
) -> None:
    subject = "weir.cluster.abandoned.default." + "x" * 4_000
    await spoken(nats_url, put(subject.encode(), b"{"))

    await listener.next_is_heard()

    letter = await listener.letter(subjects.ORDERS, 1)
    assert letter and letter.subject.startswith(subject[:1_000])


async def test_a_message_on_an_unknown_subject_is_dead_lettered(listener: Listener) -> None:
    for sequence, subject in enumerate(
        ["weir.job.wished.default.digits", "weir.cluster.x", "weir.job.requested"], 1
    ):
        await listener.bus.js.publish(subject, b"{}")
        await listener.next_is_heard()
        letter = await listener.letter(subjects.ORDERS, 2 * sequence - 1)
        assert letter and letter.subject == subject and letter.error


STATUS = b"NATS/1.0\r\nStatus: %d\r\n\r\n"
RAW = [
    put(SUBJECT.encode(), b"{", STATUS % 100),
    put(SUBJECT.encode(), b"{", STATUS % 408),
    put(SUBJECT.encode(), b"{", STATUS % 503),
    put(SUBJECT.encode(), b"{", b"NATS/1.0 409 no\r\n\r\n"),
    put(SUBJECT.encode(), b"{", b"NATS/1.0 \xff\xff\xff\r\n\r\n"),
    put(SUBJECT.encode(), b"{", b"NATS/1.0\r\nce-source: \xff\xfe\r\n:\r\nno colon\r\n\r\n"),
    put(b"weir.cluster.\xff\xfe.default.digits", b"{"),
    put(b"weir.cluster.abandoned.default.\xff", b"{"),
]


@pytest.mark.parametrize("raw", RAW)
async def test_odd_headers_and_non_text_subjects_are_dead_lettered(
    listener: Listener, nats_url: str, raw: bytes
) -> None:
    await spoken(nats_url, raw)

    await listener.next_is_heard()

    letter = await listener.letter(subjects.ORDERS, 1)
    assert letter and letter.error and letter.body == "{"


@pytest.mark.parametrize("raw", RAW)
async def test_a_service_starts_although_odd_headers_and_subjects_are_stored(
    bus: Bus, nats_url: str, raw: bytes
) -> None:
    await spoken(nats_url, raw)
    await bus.publish(abandoned())
    ears = Ears()

    async with asyncio.timeout(60):
        await bus.follow([GenerationAbandoned], ears, {}, strays=True)

    assert ears.ids == [abandoned().id()]


OF_NEXT_YEAR = "weir.capacity.licences.default"


@pytest.mark.parametrize("source", ["monitor", "allocator", "launcher", "trainer"])
async def test_a_message_of_a_newer_version_is_skipped(listener: Listener, source: str) -> None:
    """Its kind is unknown here. Dead letters would report an upgrade as if it were a fault."""
    headers = {"ce-source": source, "ce-type": "dev.weir.capacity.licences.v1"}
    ack = await listener.bus.js.publish(
        OF_NEXT_YEAR, b'{"fact":"capacity.licences"}', headers=headers
    )

    await listener.next_is_heard()

    assert await listener.letter(ack.stream, ack.seq) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"ce-source": "weir", "ce-type": "dev.weir.capacity.licences.v1"},
        {"ce-source": "monitor", "ce-type": "dev.weir.capacity.changed.v1"},
    ],
    ids=["by a person", "of another type"],
)
async def test_a_message_on_an_unknown_subject_without_a_version_is_dead_lettered(
    listener: Listener, headers: dict[str, str]
) -> None:
    ack = await listener.bus.js.publish(
        OF_NEXT_YEAR, b'{"fact":"capacity.licences"}', headers=headers
    )

    await listener.next_is_heard()

    assert await listener.letter(ack.stream, ack.seq) is not None


async def test_a_dead_letter_is_known_as_a_duplicate_for_as_long_as_it_is_stored(bus: Bus) -> None:
    """A client that reads the log again finds it again: the server must still know the letter."""
    window = (await bus.js.stream_info(subjects.DEAD)).config.duplicate_window

    assert window == (await bus.js.stream_info(subjects.DEAD)).config.max_age == 30 * streams.DAY_S


async def test_after_a_stream_is_recreated_the_same_sequence_is_a_new_dead_letter(bus: Bus) -> None:
    for _ in range(2):
        await bus.js.publish(SUBJECT, b"{")
        await bus.follow([GenerationAbandoned], Ears(), {})
        await bus.js.delete_stream(subjects.ORDERS)
        await bus.create()

    assert (await bus.js.stream_info(subjects.DEAD)).state.messages == 2


async def test_a_full_dead_letter_stream_stops_no_service(bus: Bus) -> None:
    await bus.js.delete_stream(subjects.DEAD)
    full = next(config for config in streams.stream_configs() if config.name == subjects.DEAD)
    await bus.js.add_stream(full, max_bytes=1, discard=DiscardPolicy.NEW)
    await bus.js.publish(SUBJECT, b"{")
    await bus.publish(abandoned())
    ears = Ears()

    await bus.follow([GenerationAbandoned], ears, {})

    assert ears.ids == [abandoned().id()]


async def test_dead_letters_stay_within_their_limits(bus: Bus, nats_url: str) -> None:
    other = await connected(nats_url, "listener")
    other.dead_letters.budget = LetterBudget(at_once=20, per_day=1)
    for number in range(60):
        await bus.js.publish(f"weir.cluster.abandoned.team-a.job-{number}", b"\x01" * 100_000)
    await bus.js.publish("weir.cluster.abandoned.team-b.other", b"{")
    await bus.publish(abandoned())
    ears = Ears()

    await other.follow([GenerationAbandoned], ears, {})

    info = await bus.js.stream_info(subjects.DEAD, subjects_filter=">")
    assert ears.ids == [abandoned().id()]
    assert info.state.messages == 21 and info.state.bytes < 21 * LETTER_BYTES
    assert "weir-dead.weir.cluster.abandoned.team-b.other" in (info.state.subjects or {})
    assert other.dead_letters.budget.refused == {"team-a": 40}
    await other.close()


async def test_the_server_keeps_the_newest_dead_letters_of_a_subject_and_refuses_a_large_one(
    bus: Bus,
) -> None:
    """A job itself reports that its ledger cannot be read."""
    subject = "weir-dead.$KV.weir-ledger.team-a.mine"
    for _ in range(streams.DEAD_PER_SUBJECT + 20):
        await bus.js.publish(subject, b"{}")
    with pytest.raises(APIError, match="message size"):
        await bus.js.publish(subject, b"x" * (LARGEST_MESSAGE + 1))

    state = (await bus.js.stream_info(subjects.DEAD)).state
    assert state.messages == streams.DEAD_PER_SUBJECT
