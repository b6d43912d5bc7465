"""Tests of incidents: what keeps a service from publishing and receiving is published.

It is published with cause and remedy, when it begins and when it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from nats.errors import SlowConsumerError

from services.console.text.sentences import sentence
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.messages import Message, ServiceTroubled
from shared.runtime.log import REMEDIES, TOLD_S, WAITING_MOST, Incidents
from shared.runtime.process import cancel_tasks
from tests.conftest import NatsServer
from tests.shared.listeners import consumers
from tests.shared.sample_messages import abandoned


class Desk:
    """The incidents of a service, with a clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.troubles = Incidents("launcher", lambda: self.now_s)

    async def told(self) -> list[ServiceTroubled]:
        """Return what was published since the last call."""
        said: list[ServiceTroubled] = []

        async def say(fact: ServiceTroubled) -> None:
            said.append(fact)

        telling = asyncio.ensure_future(self.troubles.publish_all(say))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await cancel_tasks(telling)
        return said


async def test_an_incident_is_published_at_its_start_and_end() -> None:
    desk = Desk()
    desk.troubles.begin("no room", "it is full", "weir-orders")
    desk.now_s += 34.0
    desk.troubles.begin("no room", "it is full", "weir-orders")
    desk.troubles.end("no room", "weir-orders")
    desk.troubles.end("no room", "weir-orders")

    begun, over = await desk.told()
    assert (begun.service, begun.what, begun.cause, begun.seconds) == (
        "launcher",
        "no room",
        "it is full",
        None,
    )
    assert begun.remedy == REMEDIES["no room"] and begun.begun_s == over.begun_s == 1_000.0
    assert over.seconds == 34.0 and over.id() != begun.id()


async def test_a_bus_outage_is_published_when_the_bus_is_back() -> None:
    desk = Desk()
    desk.troubles.begin("bus away", "the connection broke")
    assert await desk.told() == []
    desk.now_s += 3.0
    desk.troubles.end("bus away")

    assert [fact.seconds for fact in await desk.told()] == [3.0]


async def test_a_flapping_incident_is_published_at_intervals() -> None:
    desk = Desk()
    for _ in range(10):
        desk.troubles.begin("bus away", "the connection broke")
        desk.now_s += 1.0
        desk.troubles.end("bus away")
    assert len(await desk.told()) == 1
    desk.now_s += TOLD_S
    desk.troubles.record("bus away", "again")
    assert [fact.cause for fact in await desk.told()] == ["again"]


async def test_a_momentary_incident_is_published_once_without_an_end() -> None:
    desk = Desk()
    desk.troubles.record("bus slow", "too slow")
    desk.troubles.end("bus slow")

    assert [(fact.what, fact.seconds) for fact in await desk.told()] == [("bus slow", None)]


async def test_the_queue_of_unpublished_incidents_is_bounded() -> None:
    desk = Desk()
    for number in range(2 * WAITING_MOST):
        desk.troubles.begin("no room", "it is full", f"stream-{number}")

    assert len(await desk.told()) == WAITING_MOST


# ---------------------------------------------------------------- on a real bus


@pytest.fixture
async def facts(bus: Bus) -> AsyncIterator[list[ServiceTroubled]]:
    """Yield the incidents that a bus of this process publishes under the name of a service."""
    heard: list[ServiceTroubled] = []

    async def listen() -> None:
        async for each in bus.tail([subjects.pattern(ServiceTroubled)]):
            assert isinstance(each.message, ServiceTroubled)
            heard.append(each.message)

    tasks = [asyncio.ensure_future(one) for one in (listen(), bus.publish_incidents())]
    await consumers(bus, 1, subjects.FACTS)
    yield heard
    await cancel_tasks(*tasks)


async def until(facts: list[ServiceTroubled], count: int) -> None:
    async with asyncio.timeout(60):
        while len(facts) < count:
            await asyncio.sleep(0.02)


async def test_a_full_orders_stream_is_published_at_its_start_and_end(
    bus: Bus, facts: list[ServiceTroubled]
) -> None:
    config = (await bus.js.stream_info(subjects.ORDERS)).config
    await bus.js.update_stream(replace(config, max_bytes=1))
    order: Message = abandoned()
    saying = asyncio.ensure_future(bus.publish(order))
    await until(facts, 1)
    assert not saying.done(), "it waits for room"
    await bus.js.update_stream(config)
    assert await asyncio.wait_for(saying, 60) > 0
    await until(facts, 2)

    begun, over = facts
    assert (begun.what, begun.seconds) == ("no room", None) and (over.seconds or 0) > 0
    assert subjects.ORDERS in begun.cause and subjects.subject_of(order) in begun.cause
    assert "weir streams create --orders-gib" in begun.remedy


async def test_a_server_outage_is_published_when_it_is_back(
    bus: Bus, nats_server: NatsServer, facts: list[ServiceTroubled]
) -> None:
    await nats_server.kill()
    await nats_server.start()
    await until(facts, 1)

    assert (facts[0].what, facts[0].seconds is not None) == ("bus away", True)
    assert "nothing is lost" in facts[0].remedy


async def test_a_slow_consumer_is_published_as_an_incident(
    bus: Bus, facts: list[ServiceTroubled]
) -> None:
    subscription = await bus.client.subscribe("weir.nothing")
    await bus.client._error_cb(
        SlowConsumerError(subject="weir.nothing", reply="", sid=1, sub=subscription)
    )
    await until(facts, 1)

    assert facts[0].what == "bus slow" and "weir.nothing" in facts[0].cause


async def test_a_restarted_service_publishes_the_cause_of_its_last_exit(
    bus: Bus, facts: list[ServiceTroubled]
) -> None:
    bus.incidents.record("began again", "it ended with code -9, and was restarted")
    await until(facts, 1)

    assert (facts[0].service, facts[0].what, facts[0].seconds) == ("test", "began again", None)
    assert sentence(facts[0]).startswith(
        "started again: it ended with code -9, and was restarted; nothing is lost"
    )
