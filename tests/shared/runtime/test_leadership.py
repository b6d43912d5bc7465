"""Tests of the lease on a real server: at most one replica acts, and soon another one does."""

from __future__ import annotations

import asyncio
import itertools
import random
import time

import msgspec
import pytest
from structlog.testing import capture_logs

from shared.auth.permissions import bucket_subject, lease_key
from shared.bus import bus as wire
from shared.bus.bus import Bus
from shared.bus.publisher import Stale
from shared.bus.subjects import STATE
from shared.runtime.config import Common
from shared.runtime.leadership import (
    HOLDS,
    LOOKS,
    RENEWALS,
    Deposed,
    Lease,
    LeaseEntry,
    SeenEntry,
    with_leadership,
)
from tests.conftest import NatsServer
from tests.shared.listeners import Ears
from tests.shared.runtime.lease_contenders import (
    LEASE_S,
    RATES,
    SERVICE,
    Acts,
    Awake,
    Clock,
    Contender,
    befall,
)
from tests.shared.sample_messages import abandoned

WITHIN_S = 60.0
LONG_S = 3.0  # s; a busy machine does not lose it, because its clock stops with the process
LONGEST_S = 40.0  # s; no test loses it or waits for it
SUBJECT = bucket_subject(STATE, lease_key(SERVICE))


def lease(bus: Bus, holder: str, clock: Clock | None = None, lease_s: float = LEASE_S) -> Lease:
    return Lease(bus, SERVICE, lease_s, holder, clock or Clock())


async def taken(contender: Lease) -> float:
    """Acquire the lease. Return the time that it took in s."""
    began_s = time.monotonic()
    await asyncio.wait_for(contender.acquire(), WITHIN_S)
    return time.monotonic() - began_s


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_at_most_one_replica_leads_at_any_time(nats_url: str, bus: Bus, seed: int) -> None:
    chance, acts = random.Random(seed), Acts()
    clocks = [Clock(chance.choice(RATES), chance.uniform(0, 1e6)) for _ in range(3)]
    contenders = [Contender(nats_url, f"c{n}", acts, clock) for n, clock in enumerate(clocks)]
    for contender in contenders:
        contender.begin()
    told = await befall(chance, contenders, seconds=6.0)
    over_s = time.monotonic()
    async with asyncio.timeout(WITHIN_S):
        while acts.done[-1][0] < over_s:
            await asyncio.sleep(LEASE_S)
    for contender in contenders:
        await contender.stop()

    reigns = acts.intervals()
    assert len(reigns) > 1 and len({holder for _, _, holder in reigns}) > 1, told
    for (_, ended_s, before), (began_s, _, after) in itertools.pairwise(reigns):
        assert ended_s < began_s, (before, after, told)
    assert reigns[-1][1] >= over_s, "in the end somebody acts"


async def test_a_free_lease_is_taken_at_once_and_an_expired_one_after_its_duration(
    bus: Bus,
) -> None:
    first, second = lease(bus, "first"), lease(bus, "second")
    await taken(first)
    waited_s = await taken(second)
    second.clock = Clock(rate=0.0, shows_s=second.renewed_s)  # the time of its last renewal

    assert waited_s > HOLDS * LEASE_S
    assert (first.term, second.term) == (1, 2)
    with pytest.raises(Deposed):
        first.must_lead()
    second.must_lead()


async def test_a_free_lease_is_taken_without_waiting(bus: Bus) -> None:
    await taken(lease(bus, "first", lease_s=10 * WITHIN_S))


async def test_a_released_lease_is_taken_at_once(bus: Bus) -> None:
    first, second = lease(bus, "first", lease_s=LONGEST_S), lease(bus, "second", lease_s=LONGEST_S)
    await taken(first)
    waiting = asyncio.ensure_future(taken(second))
    await asyncio.sleep(0.1)
    await first.release()
    gave_s = time.monotonic()
    await waiting

    assert time.monotonic() - gave_s < LONGEST_S / 3, f"it looks each {LONGEST_S / LOOKS} s"
    with pytest.raises(Deposed):
        first.must_lead()


async def test_a_renewed_lease_is_kept(bus: Bus) -> None:
    clock = Awake()
    first, second = lease(bus, "first", clock, LONG_S), lease(bus, "second", clock, LONG_S)
    await taken(first)
    keeping, waiting = (
        asyncio.ensure_future(first.renew_forever()),
        asyncio.ensure_future(second.acquire()),
    )
    async with asyncio.timeout(WITHIN_S):
        while clock() < 1.5 * LONG_S:
            await asyncio.sleep(0.1)
    assert not keeping.done() and not waiting.done()
    first.must_lead()
    for task in (keeping, waiting, clock.ticking):
        task.cancel()


async def test_a_leader_that_cannot_renew_stops_before_the_lease_expires(
    nats_server: NatsServer, bus: Bus
) -> None:
    clock = Awake()
    held = lease(bus, "first", clock)
    await taken(held)
    keeping = asyncio.ensure_future(held.renew_forever())
    await nats_server.kill()
    with pytest.raises(Deposed):
        await asyncio.wait_for(keeping, WITHIN_S)

    assert clock() - held.renewed_s < LEASE_S
    clock.ticking.cancel()
    await nats_server.start()


async def test_a_renewal_with_a_lost_answer_does_not_end_the_lease(bus: Bus) -> None:
    clock = Awake()
    held = lease(bus, "first", clock, LONG_S)
    await taken(held)
    body = msgspec.json.encode(LeaseEntry("first", 1, LONG_S))
    await bus.replace_entry(
        SUBJECT, body, held.revision
    )  # the entry was written, and the answer was lost
    keeping = asyncio.ensure_future(held.renew_forever())
    async with asyncio.timeout(WITHIN_S):
        while clock() < 1.5 * LONG_S:
            await asyncio.sleep(0.1)
    assert not keeping.done()
    held.must_lead()
    for task in (keeping, clock.ticking):
        task.cancel()


async def test_a_leader_that_finds_another_holder_stops_at_once(bus: Bus) -> None:
    """It stops at its next renewal, and not when its lease expires."""
    held = lease(bus, "first", lease_s=LONG_S)
    await taken(held)
    held.clock = Clock(rate=0.0, shows_s=held.renewed_s + LONG_S / RENEWALS)
    await bus.replace_entry(
        SUBJECT, msgspec.json.encode(LeaseEntry("second", 2, LONG_S)), held.revision
    )
    with capture_logs() as lines, pytest.raises(Deposed):
        await asyncio.wait_for(held.renew_forever(), WITHIN_S)
    assert lines[-1]["why"] == "term 1: second has 2"


def test_a_standby_waits_as_long_as_the_holders_lease() -> None:
    seen = SeenEntry(7, LeaseEntry("first", 1, 30.0), 100.0)
    assert not seen.open_to("second", 10.0, 129.9) and seen.open_to("second", 10.0, 130.0)
    assert not SeenEntry(7, LeaseEntry("first", 1, 1.0), 100.0).open_to("second", 10.0, 109.9)
    assert SeenEntry(0, LeaseEntry(), 100.0).open_to("second", 10.0, 100.0)


async def test_an_unreadable_lease_entry_counts_as_a_holder(bus: Bus) -> None:
    await bus.replace_entry(SUBJECT, b"\xff not ours", 0)
    assert await taken(lease(bus, "first")) > HOLDS * LEASE_S


async def test_a_deposed_leader_publishes_and_stores_nothing(bus: Bus) -> None:
    bus.must_lead = lease(bus, "never").must_lead
    with pytest.raises(Deposed):
        await bus.publish(abandoned())
    with pytest.raises(Deposed):
        await bus.write_state(SERVICE, b"late")


async def test_a_deposed_leader_takes_no_message_from_the_new_one(bus: Bus) -> None:
    await bus.publish(abandoned())
    heard = Ears()
    bus.must_lead = lease(bus, "never").must_lead
    with pytest.raises(Deposed):
        await asyncio.wait_for(bus.follow([type(abandoned())], heard, {}), WITHIN_S)
    assert not heard.heard


async def test_a_write_over_a_later_leaders_entry_is_refused(bus: Bus) -> None:
    """The leader was frozen between its read and its write, and a later leader wrote."""
    revision = await bus.replace_entry(bucket_subject(STATE, SERVICE), b"first", 0)
    await bus.write_state(SERVICE, b"of the later leader")
    with pytest.raises(Stale):
        await bus.replace_entry(bucket_subject(STATE, SERVICE), b"late", revision)


async def test_a_replica_starts_after_the_other_has_ended(nats_url: str, bus: Bus) -> None:
    begun: list[str] = []

    async def start(connection: Bus, settings: object) -> None:
        begun.append(connection.name)

    first, second = await wire.connect(nats_url, "first"), await wire.connect(nats_url, "second")
    await with_leadership(SERVICE, start)(first, Common(lease_s=LONGEST_S))
    waiting = asyncio.ensure_future(
        with_leadership(SERVICE, start)(second, Common(lease_s=LONGEST_S))
    )
    await asyncio.sleep(2 * LONGEST_S / LOOKS)
    assert begun == ["first"]
    await first.close()
    await asyncio.wait_for(waiting, HOLDS * LONGEST_S)
    assert begun == ["first", "second"]
    await second.close()
