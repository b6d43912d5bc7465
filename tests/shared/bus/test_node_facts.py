"""The last fact of each node and namespace stays on the bus, whatever becomes of the history of
facts.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage
from shared.bus.node_facts import LastNodeFacts, read_last_node_facts
from shared.messages import CapacityChanged, ClaimsChanged, QuotaChanged
from tests.allocator.builders import node


async def copied(bus: Bus, sequence: int) -> list[StoredMessage]:
    """The kept facts, once the server has copied the one with this sequence."""
    async with asyncio.timeout(60):
        while True:
            found = await read_last_node_facts(bus)
            if sequence in [heard.sequence for heard in found]:
                return found
            await asyncio.sleep(0.005)


async def lost_history(bus: Bus, sequence: int) -> None:
    """Remove all facts, once the server has copied the one with this sequence."""
    await copied(bus, sequence)
    await bus.js.purge_stream(subjects.FACTS)


async def test_the_last_fact_of_each_node_is_kept_with_its_stream_sequence(bus: Bus) -> None:
    await bus.publish(node("n1", cpu=1))
    second = await bus.publish(replace(node("n1", cpu=2), seen="1"))
    third = await bus.publish(node("n2", cpu=3))

    found = await copied(bus, third)

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
    await copied(bus, await bus.publish(node("n1", cpu=1)))
    await bus.js.delete_stream(subjects.FACTS)

    await bus.create()

    assert [
        heard.message.key() for heard in await copied(bus, await bus.publish(node("n2", cpu=1)))
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
