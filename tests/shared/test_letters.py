"""Dead letters are counted whoever buried them."""

from __future__ import annotations

import asyncio

from shared.bus.bus import Bus
from shared.bus.dead_letters import LETTERS, Letters
from shared.bus.subjects import LEDGER
from shared.runtime.process import end


async def number(letters: Letters, wanted: int) -> None:
    async with asyncio.timeout(30):
        while letters.number != wanted:
            await asyncio.sleep(0.01)


async def test_what_another_buries_is_counted_as_our_own(bus: Bus, nats_url: str) -> None:
    letters = Letters()
    assert list(letters.measures()) == [], "a number that jumps from 0 would count as many letters"
    counting = asyncio.ensure_future(letters.count(bus, every_s=0.02))
    try:
        await number(letters, 0)
        await bus.bury_entry(LEDGER, "default.digits", 7, b"{", "it is torn")  # as a trainer does
        await number(letters, 1)
        await bus.bury_entry(
            LEDGER, "default.digits", 7, b"{", "it is torn"
        )  # the same again: the server knows it
        await bus.bury_entry(LEDGER, "default.digits", 8, b"[", "it is torn")
        await number(letters, 2)
    finally:
        await end(counting)

    (measure,) = letters.measures()
    assert (measure.family, measure.series) == (LETTERS, {(): 2.0})
