"""Tests of the bus on a real server: messages are stored once and arrive in order.

Stale messages are refused, and none is lost.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import DeliverPolicy
from nats.js.errors import NotFoundError

from shared.bus import bus as wire
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.publisher import Stale
from shared.messages import (
    CancelRequested,
    DeadLetter,
    GenerationAbandoned,
    HandOverOrdered,
    JobRequested,
    TrainingResumed,
)
from tests.conftest import NatsServer, connected
from tests.shared.bus.silent_server import silent_server
from tests.shared.listeners import Ears, consumers, first
from tests.shared.sample_messages import JOB, abandoned, request

ABANDONED = subjects.pattern(GenerationAbandoned)


def abandonments(count: int, begin: int = 1) -> list[GenerationAbandoned]:
    return [abandoned(generation=g) for g in range(begin, begin + count)]


async def say(bus: Bus, *messages: GenerationAbandoned) -> list[int]:
    return [await bus.publish(m) for m in messages]


async def letters(bus: Bus, count: int) -> list[DeadLetter]:
    reader = await bus.js.pull_subscribe(f"{DeadLetter.PREFIX}.>", stream=subjects.DEAD)
    found = await reader.fetch(count, timeout=60)
    return [msgspec.json.decode(raw.data, type=DeadLetter) for raw in found]


async def stored(bus: Bus, stream: str = subjects.ORDERS) -> int:
    return (await bus.js.stream_info(stream)).state.messages


# ------------------------------------------------------------ publishing


async def test_a_message_published_twice_is_stored_once(bus: Bus) -> None:
    assert await bus.publish(abandoned()) == await bus.publish(abandoned())
    assert await stored(bus) == 1


async def test_cloud_events_attributes_are_headers(bus: Bus) -> None:
    sequence = await bus.publish(abandoned())

    headers = (await bus.js.get_msg(subjects.ORDERS, sequence)).headers or {}

    assert headers["ce-id"] == abandoned().id() and headers["Nats-Msg-Id"].startswith(
        f"{abandoned().id()}."
    )
    assert headers["ce-type"] == "dev.weir.cluster.abandoned.v1"
    assert headers["ce-source"] == "test" and headers["ce-subject"] == "default.digits"


async def test_a_publish_with_the_expected_last_sequence_is_accepted(bus: Bus) -> None:
    first_at = await bus.publish(abandoned(generation=1), expect_last=0)

    assert await bus.publish(abandoned(generation=2), expect_last=first_at) > first_at


async def test_a_publish_with_an_old_last_sequence_is_stale(bus: Bus) -> None:
    await bus.publish(abandoned(generation=1), expect_last=0)

    with pytest.raises(Stale):
        await bus.publish(abandoned(generation=2), expect_last=0)


async def test_repeating_ones_own_message_is_not_stale(bus: Bus) -> None:
    said = await bus.publish(abandoned(), expect_last=0)

    assert await bus.publish(abandoned(), expect_last=0) == said


async def test_a_service_verifies_streams_and_never_creates_them(nats_url: str) -> None:
    alone = await wire.connect(nats_url, "alone")
    try:
        with pytest.raises(NotFoundError):
            await alone.verify()
    finally:
        await alone.close()


async def test_creating_streams_is_idempotent(bus: Bus) -> None:
    await bus.publish(abandoned())

    await bus.create()

    assert await stored(bus) == 1


# ------------------------------------------------------------ following


async def test_messages_of_two_streams_arrive_in_storage_order(bus: Bus, nats_url: str) -> None:
    resumed = [
        TrainingResumed(**(JOB | {"generation": generation}), step=1, samples=1)
        for generation in (1, 2)
    ]
    first, second, third = abandonments(3)
    said = [first, resumed[0], second, resumed[1], third]
    for message in said:
        await bus.publish(message)
    ears = Ears()

    await bus.follow((GenerationAbandoned, TrainingResumed), ears, {})

    assert [heard.message for heard in ears.heard] == said


async def test_stored_messages_are_handled_before_follow_returns(bus: Bus) -> None:
    ears = Ears()
    await say(bus, *abandonments(3))

    await bus.follow([GenerationAbandoned], ears, {})

    assert ears.ids == [m.id() for m in abandonments(3)]


async def test_later_messages_are_handled_in_order(bus: Bus) -> None:
    ears = Ears()
    await bus.follow([GenerationAbandoned], ears, {})

    await say(bus, *abandonments(5))

    assert [h.message for h in await ears.until(5)] == abandonments(5)


async def test_a_subscription_continues_after_a_given_sequence(bus: Bus) -> None:
    ears = Ears()
    sequences = await say(bus, *abandonments(4))

    await bus.follow([GenerationAbandoned], ears, {subjects.ORDERS: sequences[1]})

    assert [h.sequence for h in ears.heard] == sequences[2:]


async def test_only_the_requested_kinds_are_received_from_each_stream(bus: Bus) -> None:
    ears = Ears()
    await bus.publish(HandOverOrdered(**JOB))
    await bus.publish(abandoned())
    await bus.publish(TrainingResumed(**JOB, step=1, samples=32))

    await bus.follow([GenerationAbandoned, TrainingResumed], ears, {})

    assert {type(h.message) for h in ears.heard} == {GenerationAbandoned, TrainingResumed}
    assert {h.stream for h in ears.heard} == {subjects.ORDERS, subjects.FACTS}


async def test_an_unreadable_message_is_dead_lettered_and_the_next_is_handled(bus: Bus) -> None:
    ears = Ears()
    await bus.js.publish("weir.cluster.abandoned.default.digits", b"\xff not json")
    await bus.publish(abandoned())

    await bus.follow([GenerationAbandoned], ears, {})

    (letter,) = await letters(bus, 1)
    assert letter.subject == "weir.cluster.abandoned.default.digits" and letter.sequence == 1
    assert letter.error and letter.body == "\\xff not json" and letter.said_by == "unknown"
    assert ears.ids == [abandoned().id()]


async def test_an_unreadable_message_is_dead_lettered_once_for_all_subscribers(
    bus: Bus, nats_url: str
) -> None:
    await bus.js.publish("weir.cluster.abandoned.default.digits", b"{}")
    other = await connected(nats_url, "other")

    await bus.follow([GenerationAbandoned], Ears(), {})
    await other.follow([GenerationAbandoned], Ears(), {})

    assert await stored(bus, subjects.DEAD) == 1
    await other.close()


async def test_the_handler_of_unreadable_messages_is_called_before_dead_lettering(bus: Bus) -> None:
    asked = []

    async def answer(subject: str, body: bytes, sequence: int, error: str) -> bool:
        asked.append((subject, body, sequence, error))
        return True

    await bus.js.publish("weir.job.requested.default.digits", b"[]")

    await bus.follow([JobRequested], Ears(), {}, unusable=answer)

    assert [(a[0], a[1], a[2]) for a in asked] == [("weir.job.requested.default.digits", b"[]", 1)]
    assert await stored(bus, subjects.DEAD) == 1


async def test_a_handler_that_raises_is_a_bug_and_stops_the_service(bus: Bus) -> None:
    async def broken(_: object) -> None:
        raise ZeroDivisionError

    await bus.follow([GenerationAbandoned], broken, {})
    await bus.publish(abandoned())

    with pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(60):
            await bus.raise_failure()


async def test_a_request_on_the_short_subject_is_received(bus: Bus) -> None:
    ears = Ears()
    await bus.js.publish("weir.job.requested.digits", subjects.encode_message(request()))

    await bus.follow([JobRequested], ears, {})

    assert [h.message for h in ears.heard] == [request()]


# ------------------------------------------------------------ watching


async def test_a_watcher_receives_new_messages(bus: Bus) -> None:
    await bus.publish(abandoned(generation=1))
    watching = asyncio.ensure_future(first(1, bus.tail([ABANDONED])))
    await consumers(bus, 1)

    await bus.publish(abandoned(generation=2))

    assert [h.message for h in await watching] == [abandoned(generation=2)]


async def test_a_watcher_can_start_at_the_beginning_and_skips_unreadable_messages(bus: Bus) -> None:
    await bus.publish(abandoned(generation=1))
    await bus.js.publish("weir.cluster.abandoned.default.digits", b"?")
    await bus.publish(abandoned(generation=2))

    seen = await first(2, bus.tail([ABANDONED], deliver=DeliverPolicy.ALL))

    assert [h.message for h in seen] == abandonments(2)
    assert await stored(bus, subjects.DEAD) == 0


async def test_a_watcher_can_start_with_the_last_message_of_each_subject(bus: Bus) -> None:
    await say(bus, *abandonments(3))
    await bus.publish(abandoned(job="letters", generation=9))

    seen = await first(2, bus.tail([ABANDONED], deliver=DeliverPolicy.LAST_PER_SUBJECT))

    assert [h.message for h in seen] == [
        abandoned(generation=3),
        abandoned(job="letters", generation=9),
    ]


async def test_the_last_message_of_a_subject_can_be_read(bus: Bus) -> None:
    assert await bus.last_message(GenerationAbandoned, "default.digits") is None
    await say(bus, *abandonments(3))

    found = await bus.last_message(GenerationAbandoned, "default.digits")

    assert found and found.message == abandoned(generation=3) and found.sequence == 3


async def test_messages_arrive_without_delay_after_a_quiet_period(bus: Bus) -> None:
    """After five seconds without a message, the library's `fetch` delays the second of two.

    It does so every time. A machine that stalls causes a delay only now and then.
    """
    ears, watched = Ears(), Ears()
    await bus.follow([GenerationAbandoned], ears, {})

    async def watch() -> None:
        async for heard in bus.tail([ABANDONED]):
            await watched(heard)

    async def waited_s(message: GenerationAbandoned) -> float:
        began_s = asyncio.get_running_loop().time()
        await bus.publish(message)
        await ears.until(message.generation)
        await watched.until(message.generation)
        return asyncio.get_running_loop().time() - began_s

    bus.spawn(watch())
    longest = list[float]()
    while min(longest, default=1.0) >= 1.0 and len(longest) < 4:
        await asyncio.sleep(5.5)
        longest.append(
            max([await waited_s(m) for m in abandonments(3, begin=3 * len(longest) + 1)])
        )
    assert longest[-1] < 1.0, longest


# ------------------------------------------------------------ restarts of the server


@pytest.mark.usefixtures("brief_heartbeat")
async def test_no_message_is_lost_when_the_server_is_killed_and_restarted(
    nats_server: NatsServer, bus: Bus
) -> None:
    """A follower, a watcher and a publisher survive the restart without any help."""
    ears = Ears()
    await bus.follow([GenerationAbandoned], ears, {})
    watching = asyncio.ensure_future(first(6, bus.tail([ABANDONED])))
    await consumers(bus, 2)
    await say(bus, *abandonments(3))
    await ears.until(3)

    await nats_server.kill()
    saying = asyncio.ensure_future(say(bus, *abandonments(3, begin=4)))
    await asyncio.sleep(0.5)
    await nats_server.start()

    await saying
    assert await stored(bus) == 6
    await ears.until(6)
    assert list(dict.fromkeys(ears.ids)) == [m.id() for m in abandonments(6)]
    assert [h.message for h in await watching] == abandonments(6)


@pytest.mark.usefixtures("brief_heartbeat")
@pytest.mark.parametrize("before", [0, 1])
async def test_a_watcher_without_messages_misses_none_after_a_restart(
    nats_server: NatsServer, bus: Bus, before: int
) -> None:
    """This also holds if the stream was empty."""
    await say(bus, *abandonments(before))
    watching = asyncio.ensure_future(first(2, bus.tail([ABANDONED])))
    await consumers(bus, 1)

    await nats_server.kill()
    await nats_server.start()
    other = await connected(nats_server.url, "other")
    await say(other, *abandonments(2, begin=2))
    await other.close()

    assert [h.message for h in await watching] == abandonments(2, begin=2)


async def test_a_request_without_a_server_fails_and_is_not_sent_later(
    nats_server: NatsServer, bus: Bus
) -> None:
    """A client's messages without a connection arrive at the next server, which counts them."""
    bus.js._timeout = 0.5
    broken = asyncio.Event()
    bus.client.on_break.add(broken.set)
    await nats_server.kill()
    await broken.wait()

    cancel = CancelRequested(job="digits")
    asking = asyncio.ensure_future(bus.request(cancel))
    await asyncio.wait({asking}, timeout=10 * bus.js._timeout)
    assert asking.done(), "it is still being tried"
    async with silent_server(nats_server.url) as server:
        while not bus.client.is_connected:
            await asyncio.sleep(0.01)
        await bus.client.flush()
        assert server.published[subjects.subject_of(cancel)] == 1, "it was not tried exactly once"
    with pytest.raises(NatsTimeout):
        asking.result()
