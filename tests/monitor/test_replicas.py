"""Tests of two monitors: a fact of an old leader does not hide a newer one."""

from __future__ import annotations

import msgspec
import pytest

from services.monitor.service import Monitor, read_last_facts
from shared.bus.bus import Bus
from shared.messages import CapacityChanged
from shared.runtime.leadership import Deposed, Lease
from tests.allocator.builders import node


def fact(seen: str, free: float = 3) -> CapacityChanged:
    return msgspec.structs.replace(node("n1", cpu=3, free=free), seen=seen)


async def newest(bus: Bus) -> CapacityChanged:
    heard = await bus.last_message(CapacityChanged, "n1")
    assert heard and isinstance(heard.message, CapacityChanged)
    return heard.message


async def monitor(bus: Bus) -> Monitor:
    return Monitor(bus, await read_last_facts(bus, 10))


async def test_a_late_fact_of_an_old_leader_is_refused(bus: Bus) -> None:
    await bus.publish(fact("before"))
    late, leader = await monitor(bus), await monitor(bus)
    current = fact("now", free=1)
    await leader.publish_fact(current)
    looks = iter([None, Deposed("monitor", "frozen since its first look")])

    def look() -> None:
        found = next(looks)
        if found:
            raise found

    bus.must_lead = look
    with pytest.raises(Deposed):
        await late.publish_fact(fact("long ago", free=3))
    assert await newest(bus) == current


async def test_the_leaders_fact_is_the_last_one_despite_an_intruder(bus: Bus) -> None:
    leader = await monitor(bus)
    await leader.publish_fact(fact("first"))
    await bus.publish(fact("by another", free=2))
    current = fact("now", free=1)
    await leader.publish_fact(current)
    assert await newest(bus) == current
    again = fact("later")
    await leader.publish_fact(again)
    assert await newest(bus) == again


async def test_a_fact_is_published_although_the_one_before_has_expired(bus: Bus) -> None:
    leader = await monitor(bus)
    await leader.publish_fact(fact("first"))
    await bus.js.purge_stream("weir-facts")
    current = fact("now", free=1)
    await leader.publish_fact(current)
    assert await newest(bus) == current


async def test_a_monitor_without_the_lease_publishes_nothing(bus: Bus) -> None:
    bus.must_lead = Lease(bus, "monitor", 1.0, "nobody").must_lead
    with pytest.raises(Deposed):
        await (await monitor(bus)).publish_fact(node("n1", cpu=3))
    assert await bus.last_message(CapacityChanged, "n1") is None
