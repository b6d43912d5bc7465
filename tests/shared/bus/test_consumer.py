"""Tests of consumers: every message arrives once, in the order of the stream.

The server, the connection or the consumer may fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import DeliverPolicy
from nats.js.errors import NotFoundError
from structlog.testing import capture_logs

from shared.auth.permissions import consumer_name
from shared.bus import consumer, subjects
from shared.bus.bus import Bus
from shared.bus.client import RETRY_S
from shared.bus.consumer import StoredMessage, StreamSetBack
from shared.messages import GenerationAbandoned
from shared.runtime.process import cancel_tasks
from tests.conftest import NatsServer, connected
from tests.shared.listeners import Ears, first
from tests.shared.restored_server import StoreCopy, copied_store
from tests.shared.sample_messages import abandoned

NAME = consumer_name("test", subjects.ORDERS)


async def say(bus: Bus, begin: int, end: int) -> None:
    """Publish abandonments of generations `begin` to `end - 1`."""
    await asyncio.gather(*(bus.publish(abandoned(generation=g)) for g in range(begin, end)))


def in_order(ears: Ears) -> bool:
    """Return whether all messages of the stream have arrived once and in order."""
    return [h.sequence for h in ears.heard] == list(range(1, len(ears.heard) + 1))


async def impatient(bus: Bus, seconds: float) -> None:
    """Let the server redeliver what is not acknowledged within this time (s)."""
    config = (await bus.js.consumer_info(subjects.ORDERS, NAME)).config
    await bus.js.add_consumer(subjects.ORDERS, replace(config, ack_wait=seconds))


async def until_watched(bus: Bus) -> None:
    """Wait until the stream has two consumers: one of a follower, one of a watcher."""
    async with asyncio.timeout(60):
        while (await bus.js.stream_info(subjects.ORDERS)).state.consumer_count < 2:
            await asyncio.sleep(0.01)


async def unacknowledged(bus: Bus) -> int:
    return int((await bus.js.consumer_info(subjects.ORDERS, NAME)).num_ack_pending or 0)


async def test_every_handled_message_is_acknowledged(bus: Bus) -> None:
    ears = Ears()
    await bus.follow([GenerationAbandoned], ears, {})

    await say(bus, 0, 500)
    await ears.until(500)

    async with asyncio.timeout(60):
        while await unacknowledged(bus):
            await asyncio.sleep(0.02)


async def test_a_slow_consumer_handles_each_message_once(
    bus: Bus,
) -> None:
    ears = Ears()

    async def slowly(heard: StoredMessage) -> None:
        await asyncio.sleep(0.05)
        await ears(heard)

    await bus.follow([GenerationAbandoned], slowly, {})
    await impatient(bus, 0.3)

    await say(bus, 0, 60)
    await ears.until(60)
    await asyncio.sleep(1.0)  # redelivered messages arrive now

    assert in_order(ears)


async def test_a_deleted_consumer_is_replaced(bus: Bus) -> None:
    ears = Ears()
    await bus.follow([GenerationAbandoned], ears, {})
    await say(bus, 0, 3)
    await ears.until(3)

    await bus.js.delete_consumer(subjects.ORDERS, NAME)
    await say(bus, 3, 6)
    await ears.until(6)

    assert in_order(ears)


async def test_a_lost_message_is_redelivered_before_later_ones(bus: Bus) -> None:
    """A connection that survives loses no message; one that breaks loses the last ones."""
    ears = Ears()
    await bus.follow([GenerationAbandoned], ears, {})
    reading, lost = bus.client._process_msg, list[bytes]()

    async def lossy(sid: int, subject: bytes, reply: bytes, *more: Any) -> None:
        if reply.startswith(b"$JS.ACK.") and b".3." in reply and not lost:
            lost.append(reply)
        else:
            await reading(sid, subject, reply, *more)

    bus.client._process_msg = lossy  # type: ignore[method-assign]
    await say(bus, 0, 10)
    await ears.until(10)

    assert lost and in_order(ears)


@pytest.mark.usefixtures("brief_heartbeat")
async def test_no_message_is_repeated_or_lost_when_the_server_is_killed_during_a_burst(
    nats_server: NatsServer, bus: Bus
) -> None:
    speaker, ears = await connected(nats_server.url, "speaker"), Ears()
    await say(speaker, 0, 2_000)
    following = asyncio.ensure_future(bus.follow([GenerationAbandoned], ears, {}))
    await ears.until(100)

    await nats_server.kill()
    await nats_server.start()
    await following
    await say(speaker, 2_000, 2_100)
    await ears.until(2_100)

    assert in_order(ears)
    await speaker.close()


async def test_a_restarted_server_is_read_before_the_idle_timeout(
    nats_server: NatsServer, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "HEARTBEAT_S", 600.0)  # silence would be noticed after 25 minutes
    monkeypatch.setattr(consumer, "EXPIRES_S", 3600.0)
    ears = Ears()
    await bus.follow([GenerationAbandoned], ears, {})

    await nats_server.kill()
    await nats_server.start()
    other = await connected(nats_server.url, "other")
    await say(other, 0, 3)

    await ears.until(3)
    assert in_order(ears)
    await other.close()


async def test_a_recreated_stream_is_read_from_its_beginning(bus: Bus) -> None:
    """The known sequences are of deleted messages.

    A service that restarts reads the new ones from the first.
    """
    ears = Ears()
    await bus.follow([GenerationAbandoned], ears, {})
    await say(bus, 0, 5)
    await ears.until(5)

    await bus.js.delete_stream(subjects.ORDERS)
    await bus.create()

    with pytest.raises(StreamSetBack, match="ends at 0, and this service has read up to 5"):
        async with asyncio.timeout(60):
            await bus.raise_failure()


@pytest.mark.usefixtures("brief_heartbeat")
@pytest.mark.parametrize("later", [0, 2, 4], ids=["shorter", "as long", "longer"])
async def test_a_restored_stream_is_detected_however_long_it_is(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, later: int
) -> None:
    """Others may publish before we look: then another message has our sequence."""
    await say(bus, 0, 3)
    copy = await copied_store(nats_server, tmp_path / "copy")
    await say(bus, 3, 5)
    ears = Ears()
    await bus.follow([GenerationAbandoned], ears, {})
    heard = ears.heard[-1]
    assert heard.sequence == 5
    await nats_server.kill()

    other = await spoken_after(copy, later)
    with pytest.raises(StreamSetBack):
        async with asyncio.timeout(60):
            await bus.raise_failure()

    with pytest.raises(StreamSetBack):
        place = {subjects.ORDERS: heard.sequence}
        await other.follow(
            [GenerationAbandoned], ears, place, stored_s={subjects.ORDERS: heard.stored_s}
        )
    await other.close()


async def spoken_after(copy: StoreCopy, count: int) -> Bus:
    """Put a store back, and let another client publish there. Return that client."""
    await copy.put_back()
    other = await connected(copy.server.url, "other")
    await say(other, 10, 10 + count)
    return other


async def test_a_consumer_continues_if_the_stream_was_not_restored(bus: Bus) -> None:
    ears = Ears()
    await say(bus, 0, 3)
    await bus.follow([GenerationAbandoned], ears, {})
    second = ears.heard[1]
    again = Ears()

    await bus.follow(
        [GenerationAbandoned],
        again,
        {subjects.ORDERS: second.sequence},
        stored_s={subjects.ORDERS: second.stored_s},
    )
    assert [h.sequence for h in again.heard] == [3], "and what was compared is not handed on"

    await bus.js.purge_stream(subjects.ORDERS, seq=3)
    last = Ears()
    await bus.follow(
        [GenerationAbandoned],
        last,
        {subjects.ORDERS: second.sequence},
        stored_s={subjects.ORDERS: second.stored_s},
    )
    assert [h.sequence for h in last.heard] == [3], "what was removed since cannot be compared"


@pytest.mark.usefixtures("brief_heartbeat")
@pytest.mark.parametrize("later", [1, 3], ids=["shorter", "longer"])
async def test_a_watcher_of_a_restored_stream_receives_the_messages_stored_since(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, later: int
) -> None:
    await say(bus, 0, 3)
    copy = await copied_store(nats_server, tmp_path / "copy")
    await say(bus, 3, 5)
    seen: list[StoredMessage] = []

    async def watch() -> None:
        async for heard in bus.tail(["weir.cluster.abandoned.>"], deliver=DeliverPolicy.ALL):
            seen.append(heard)

    watching = asyncio.ensure_future(watch())
    await until(lambda: len(seen) == 5)
    await nats_server.kill()

    other = await spoken_after(copy, later)
    await until(lambda: len(seen) == 5 + later)
    await say(other, 20, 22)
    await until(lambda: len(seen) == 7 + later)

    assert [h.sequence for h in seen] == [1, 2, 3, 4, 5, *range(4, 6 + later)]
    await cancel_tasks(watching)
    await other.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.02)


async def test_a_consumer_of_a_deleted_stream_logs_a_warning_at_intervals(bus: Bus) -> None:
    await bus.follow([GenerationAbandoned], Ears(), {})
    watching = asyncio.ensure_future(first(1, bus.tail(["weir.cluster.abandoned.>"])))
    await until_watched(bus)

    with capture_logs() as lines:
        await bus.js.delete_stream(subjects.ORDERS)
        async with asyncio.timeout(60):
            while not {"FollowWaits", "WatchWaits"} <= {line["event"] for line in lines}:
                await asyncio.sleep(RETRY_S)
        await asyncio.sleep(5 * RETRY_S)
    await cancel_tasks(watching)

    for event in ("FollowWaits", "WatchWaits"):
        (word,) = [line for line in lines if line["event"] == event]
        assert word["log_level"] == "warning" and word["stream"] == subjects.ORDERS
        assert "stream not found" in word["error"]


async def test_a_restarted_service_replaces_its_old_consumer(bus: Bus) -> None:
    with pytest.raises(NotFoundError):
        await bus.js.consumer_info(subjects.ORDERS, NAME)

    await bus.follow([GenerationAbandoned], Ears(), {subjects.ORDERS: 7})

    assert (await bus.js.consumer_info(subjects.ORDERS, NAME)).config.opt_start_seq == 8
