"""The lease, on a real server: one acts at any time, and somebody soon after."""

from __future__ import annotations

import asyncio
import itertools
import random
import time

import msgspec
import pytest

from shared import bus as wire
from shared.bus import Bus, Stale
from shared.config import Common
from shared.leadership import HOLDS, LOOKS, Deposed, Held, Lease, Seen, led
from shared.permissions import entry, lease_key
from shared.subjects import STATE
from tests.conftest import NatsServer
from tests.shared.contenders import LEASE_S, RATES, SERVICE, Acts, Clock, Contender, befall
from tests.shared.ears import Ears
from tests.shared.words import abandoned

SOON_S = LEASE_S + 4 * LEASE_S / LOOKS + 1.0  # a look or two, and a busy machine
LONG_S = 2.0  # a lease that a busy machine does not lose
SUBJECT = entry(STATE, lease_key(SERVICE))


def lease(bus: Bus, holder: str, clock: Clock | None = None, lease_s: float = LEASE_S) -> Lease:
    return Lease(bus, SERVICE, lease_s, holder, clock or Clock())


async def taken(contender: Lease) -> float:
    """How long it took (s)."""
    began_s = time.monotonic()
    await asyncio.wait_for(contender.take(), 10)
    return time.monotonic() - began_s


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_at_any_time_one_acts_whatever_befalls_them(nats_url: str, bus: Bus, seed: int) -> None:
    chance, acts = random.Random(seed), Acts()
    clocks = [Clock(chance.choice(RATES), chance.uniform(0, 1e6)) for _ in range(3)]
    contenders = [Contender(nats_url, f"c{n}", acts, clock) for n, clock in enumerate(clocks)]
    for contender in contenders:
        contender.begin()
    told = await befall(chance, contenders, seconds=6.0)
    await asyncio.sleep(2 * SOON_S)
    over_s = time.monotonic()
    for contender in contenders:
        await contender.stop()

    reigns = acts.intervals()
    assert len(reigns) > 1 and len({holder for _, _, holder in reigns}) > 1, told
    for (_, ended_s, before), (began_s, _, after) in itertools.pairwise(reigns):
        assert ended_s < began_s, (before, after, told)
    assert reigns[-1][1] > over_s - SOON_S, "in the end somebody acts"


async def test_one_takes_what_nobody_has_at_once_and_another_what_is_not_renewed(bus: Bus) -> None:
    first, second = lease(bus, "first"), lease(bus, "second")
    assert await taken(first) < HOLDS * LEASE_S
    waited_s = await taken(second)

    assert HOLDS * LEASE_S < waited_s < SOON_S
    assert (first.term, second.term) == (1, 2)
    with pytest.raises(Deposed):
        first.must_lead()
    second.must_lead()


async def test_what_is_given_back_is_taken_at_once(bus: Bus) -> None:
    first, second = lease(bus, "first", lease_s=10.0), lease(bus, "second", lease_s=10.0)
    await taken(first)
    waiting = asyncio.ensure_future(taken(second))
    await asyncio.sleep(0.1)
    await first.give_back()
    gave_s = time.monotonic()
    await waiting

    assert time.monotonic() - gave_s < 2 * 10.0 / LOOKS
    with pytest.raises(Deposed):
        first.must_lead()


async def test_one_that_renews_keeps_it(bus: Bus) -> None:
    first, second = lease(bus, "first", lease_s=LONG_S), lease(bus, "second", lease_s=LONG_S)
    await taken(first)
    keeping, waiting = asyncio.ensure_future(first.keep()), asyncio.ensure_future(second.take())
    await asyncio.sleep(2 * LONG_S)
    assert not keeping.done() and not waiting.done()
    first.must_lead()
    for task in (keeping, waiting):
        task.cancel()


async def test_one_that_cannot_reach_the_server_stops_before_another_may_begin(
    nats_server: NatsServer, bus: Bus
) -> None:
    held = lease(bus, "first")
    await taken(held)
    keeping = asyncio.ensure_future(held.keep())
    renewed_s = time.monotonic()
    await nats_server.kill()
    with pytest.raises(Deposed):
        await asyncio.wait_for(keeping, 10)

    assert time.monotonic() - renewed_s < LEASE_S
    await nats_server.start()


async def test_a_renewal_whose_answer_was_lost_deposes_nobody(bus: Bus) -> None:
    held = lease(bus, "first", lease_s=LONG_S)
    await taken(held)
    body = msgspec.json.encode(Held("first", 1, LONG_S))
    await bus.replace(SUBJECT, body, held.revision)  # it was written, and we never heard of it
    keeping = asyncio.ensure_future(held.keep())
    await asyncio.sleep(1.5 * LONG_S)
    assert not keeping.done()
    held.must_lead()
    keeping.cancel()


async def test_one_that_finds_another_in_its_place_stops_at_once(bus: Bus) -> None:
    held = lease(bus, "first", lease_s=1.0)
    await taken(held)
    await bus.replace(SUBJECT, msgspec.json.encode(Held("second", 2, 1.0)), held.revision)
    with pytest.raises(Deposed):
        await asyncio.wait_for(held.keep(), 0.6)


def test_a_stand_by_waits_as_long_as_the_holder_thinks_it_has() -> None:
    seen = Seen(7, Held("first", 1, 30.0), 100.0)
    assert not seen.open_to("second", 10.0, 129.9) and seen.open_to("second", 10.0, 130.0)
    assert not Seen(7, Held("first", 1, 1.0), 100.0).open_to("second", 10.0, 109.9)
    assert Seen(0, Held(), 100.0).open_to("second", 10.0, 100.0)


async def test_an_entry_that_cannot_be_read_is_waited_for_like_a_holder(bus: Bus) -> None:
    await bus.replace(SUBJECT, b"\xff not ours", 0)
    assert HOLDS * LEASE_S < await taken(lease(bus, "first")) < SOON_S


async def test_who_no_longer_leads_says_nothing_and_keeps_nothing(bus: Bus) -> None:
    bus.must_lead = lease(bus, "never").must_lead
    with pytest.raises(Deposed):
        await bus.publish(abandoned())
    with pytest.raises(Deposed):
        await bus.keep(SERVICE, b"late")


async def test_who_no_longer_leads_takes_no_message_from_who_does(bus: Bus) -> None:
    await bus.publish(abandoned())
    heard = Ears()
    bus.must_lead = lease(bus, "never").must_lead
    with pytest.raises(Deposed):
        await asyncio.wait_for(bus.follow([type(abandoned())], heard, {}), 5)
    assert not heard.heard


async def test_what_is_kept_on_top_of_another_s_is_refused(bus: Bus) -> None:
    """One that was frozen between its look and its write, while a later leader wrote."""
    revision = await bus.replace(entry(STATE, SERVICE), b"first", 0)
    await bus.keep(SERVICE, b"of the later leader")
    with pytest.raises(Stale):
        await bus.replace(entry(STATE, SERVICE), b"late", revision)


async def test_a_replica_begins_when_the_other_has_ended(nats_url: str, bus: Bus) -> None:
    begun: list[str] = []

    async def start(connection: Bus, settings: object) -> None:
        begun.append(connection.name)

    first, second = await wire.connect(nats_url, "first"), await wire.connect(nats_url, "second")
    await led(SERVICE, start)(first, Common(lease_s=LONG_S))
    waiting = asyncio.ensure_future(led(SERVICE, start)(second, Common(lease_s=LONG_S)))
    await asyncio.sleep(1.5 * LONG_S)
    assert begun == ["first"]
    await first.close()
    await asyncio.wait_for(waiting, HOLDS * LONG_S)
    assert begun == ["first", "second"]
    await second.close()
