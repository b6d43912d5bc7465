"""Tests of several streams read as one log: stored messages in order, then new ones.

Each message is read once. The last fact of each node and namespace stays on the bus, whatever
happens to the history of facts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace
from nats.aio.msg import Msg

from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage
from shared.bus.log_reader import (
    LastNodeFacts,
    LogReader,
    Record,
    StreamQuery,
    merge_records,
    read_last_node_facts,
    readable_message,
)
from shared.bus.subjects import FACTS, ORDERS, pattern
from shared.messages import CapacityChanged, ClaimsChanged, JobRequested, QuotaChanged
from tests.allocator.builders import node, request
from tests.conftest import NatsServer

ALL = [StreamQuery(ORDERS), StreamQuery(FACTS)]


def name(stored: StoredMessage) -> str:
    return stored.message.key().rpartition(".")[2]


async def names(messages: AsyncGenerator[StoredMessage, None], most: int = 1000) -> list[str]:
    """Return the names in the next messages, at most `most`."""
    found = list[str]()
    async with asyncio.timeout(60), aclosing(messages):
        async for stored in messages:
            found.append(name(stored))
            if len(found) == most:
                break
    return found


async def publish_four(bus: Bus) -> None:
    await bus.publish(request("j1"))
    await bus.publish(node("n1"))
    await bus.publish(request("j2"))
    await bus.publish(node("n2"))


async def test_stored_messages_of_two_streams_come_in_the_order_of_storing(bus: Bus) -> None:
    await publish_four(bus)
    reader = LogReader(bus, ALL, readable_message)

    assert await names(reader.read_stored()) == ["j1", "n1", "j2", "n2"]
    assert reader.positions == {ORDERS: 2, FACTS: 2}


async def test_a_reader_continues_after_the_last_read_message(bus: Bus) -> None:
    reader = LogReader(bus, ALL, readable_message)
    await publish_four(bus)
    await names(reader.read_stored())
    await bus.publish(request("j3"))

    assert await names(reader.read_stored()) == ["j3"]


async def test_a_query_chooses_by_filter_sequence_and_time(bus: Bus) -> None:
    await publish_four(bus)
    requests = StreamQuery(ORDERS, (pattern(JobRequested),), after=1)
    nodes = StreamQuery(FACTS, (pattern(CapacityChanged, "n2"),))

    assert await names(LogReader(bus, [requests, nodes], readable_message).read_stored()) == [
        "j2",
        "n2",
    ]
    late = StreamQuery(FACTS, since_s=time.time() + 60)
    assert await names(LogReader(bus, [late], readable_message).read_stored()) == []


async def test_reading_ends_at_a_moment(bus: Bus) -> None:
    await publish_four(bus)
    reader = LogReader(bus, ALL, readable_message)
    stored = [each async for each in reader.read_stored()]
    again = LogReader(bus, ALL, readable_message)

    assert await names(again.read_stored(until_s=stored[1].stored_s)) == ["j1", "n1"]


async def test_unreadable_messages_are_left_out(
    bus: Bus,
) -> None:
    await bus.js.publish("weir.job.requested.default.odd", b"{")
    await publish_four(bus)

    def subject(raw: Msg) -> str | None:
        return raw.subject if raw.data != b"{" else None

    assert await names(LogReader(bus, ALL, readable_message).read_stored()) == [
        "j1",
        "n1",
        "j2",
        "n2",
    ]
    subjects = [each async for each in LogReader(bus, ALL, subject).read_stored()]
    assert len(subjects) == 4 and subjects[0] == "weir.job.requested.default.j1"


async def test_a_follower_gets_stored_and_new_messages(bus: Bus) -> None:
    await publish_four(bus)
    reader = LogReader(bus, ALL, readable_message)
    following = asyncio.ensure_future(names(reader.read_and_follow(), most=6))
    await bus.publish(request("j3"))
    await bus.publish(node("n3"))

    found = await following
    assert found[:4] == ["j1", "n1", "j2", "n2"]
    assert sorted(found[4:]) == ["j3", "n3"]
    await reader.close()


async def test_a_follower_misses_no_message_during_a_bus_outage(
    bus: Bus, nats_server: NatsServer
) -> None:
    await publish_four(bus)
    reader = LogReader(bus, ALL, readable_message)
    messages = reader.read_and_follow()
    async with asyncio.timeout(60), aclosing(messages):
        found = [name(await anext(messages)) for _ in range(4)]
        await nats_server.kill()
        await nats_server.start()
        await bus.publish(request("j3"))
        await bus.publish(node("n3"))
        found += [name(await anext(messages)) for _ in range(2)]

    assert sorted(found) == ["j1", "j2", "j3", "n1", "n2", "n3"]
    await reader.close()


async def test_streams_are_merged_by_storage_time() -> None:
    async def source(stream: str, *times: float) -> AsyncGenerator[Record[str], None]:
        for number, stored_s in enumerate(times):
            yield Record(stored_s, stream, number, "message")

    sources = [source("a", 1, 4, 5), source("b"), source("c", 2, 3, 6)]
    merged = [record async for record in merge_records(sources)]

    assert [record.stored_s for record in merged] == [1, 2, 3, 4, 5, 6]
    assert all(record.value == "message" for record in merged)


async def wait_for_copied_facts(bus: Bus, sequence: int) -> list[StoredMessage]:
    """Return the kept facts, once the server has copied the one with this sequence."""
    async with asyncio.timeout(60):
        while True:
            found = await read_last_node_facts(bus)
            if sequence in [heard.sequence for heard in found]:
                return found
            await asyncio.sleep(0.005)


async def lost_history(bus: Bus, sequence: int) -> None:
    """Delete all facts, once the server has copied the one with this sequence."""
    await wait_for_copied_facts(bus, sequence)
    await bus.js.purge_stream(subjects.FACTS)


async def test_the_last_fact_of_each_node_is_kept_with_its_stream_sequence(bus: Bus) -> None:
    await bus.publish(node("n1", cpu=1))
    second = await bus.publish(replace(node("n1", cpu=2), seen="1"))
    third = await bus.publish(node("n2", cpu=3))

    found = await wait_for_copied_facts(bus, third)

    assert [(heard.sequence, heard.stream) for heard in found] == [
        (second, subjects.FACTS),
        (third, subjects.FACTS),
    ]
    messages = [heard.message for heard in found]
    assert [m.allocatable.cpu for m in messages if isinstance(m, CapacityChanged)] == [2, 3]


async def test_the_last_node_facts_survive_a_purge_of_the_stream(bus: Bus) -> None:
    last = await bus.publish(node("n1", cpu=1))

    await lost_history(bus, last)

    assert [heard.sequence for heard in await read_last_node_facts(bus)] == [last]


async def test_quotas_and_claims_survive_a_purge_beside_a_node_of_the_same_name(
    bus: Bus,
) -> None:
    facts = [
        QuotaChanged(namespace="team-a", seen="1"),
        ClaimsChanged(namespace="team-a", seen="1"),
    ]
    for fact in facts:
        await bus.publish(fact)

    await lost_history(bus, await bus.publish(node("team-a", cpu=1)))

    known = LastNodeFacts(await read_last_node_facts(bus))
    known.note_fact(node("team-a", cpu=2))
    assert [heard.message for heard in known.take_missing()] == facts


async def test_node_facts_follow_deleted_and_new_facts(
    bus: Bus,
) -> None:
    await wait_for_copied_facts(bus, await bus.publish(node("n1", cpu=1)))
    await bus.js.delete_stream(subjects.FACTS)

    await bus.create()

    assert [
        heard.message.key()
        for heard in await wait_for_copied_facts(bus, await bus.publish(node("n2", cpu=1)))
    ] == ["n2"]


async def test_a_bus_set_up_by_an_older_version_has_no_last_node_facts(bus: Bus) -> None:
    await bus.js.delete_stream(subjects.NODES)

    assert await read_last_node_facts(bus) == []


def test_a_node_with_a_fact_in_the_stream_is_read_from_the_stream() -> None:
    facts = [
        StoredMessage(node(name, cpu=1), "", subjects.FACTS, at, 0.0)
        for at, name in enumerate("abc", start=1)
    ]
    known = LastNodeFacts(facts, after=1)

    known.note_fact(node("b", cpu=2))

    assert [heard.sequence for heard in known.take_missing()] == [3]
    assert known.take_missing() == []
