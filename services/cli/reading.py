"""Reading several streams as one. Edge.

What is stored comes in the order in which the server stored it; what comes later, as it comes, put in order as far as
`SETTLE_S` goes.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from services.cli.entry import Entry
from services.cli.reader import Reader, Wanted
from shared.bus import Bus
from shared.tasks import end

SETTLE_S = 0.1
Coming = asyncio.Queue[Entry | Exception]


async def read(bus: Bus, wanted: Sequence[Wanted], follow: bool) -> AsyncGenerator[Entry, None]:
    """What is stored; then, if we follow, what comes. To be closed by who leaves early (`aclosing`)."""
    readers = [Reader(bus, each) for each in wanted]
    async for entry in in_order([reader.stored() for reader in readers]):
        yield entry
    if follow:
        async with aclosing(_as_it_comes(readers)) as coming:
            async for entry in coming:
                yield entry


async def in_order(sources: list[AsyncIterator[Entry]]) -> AsyncIterator[Entry]:
    """Merge by the time of storing, holding one message a source."""
    heads = [(entry.order, i, entry) for i, source in enumerate(sources) if (entry := await anext(source, None))]
    heapq.heapify(heads)
    while heads:
        _, i, entry = heads[0]
        yield entry
        if following := await anext(sources[i], None):
            heapq.heapreplace(heads, (following.order, i, following))
        else:
            heapq.heappop(heads)


async def _as_it_comes(readers: list[Reader]) -> AsyncGenerator[Entry, None]:
    queue: Coming = asyncio.Queue()
    pouring = [asyncio.ensure_future(_pour(reader, queue)) for reader in readers]
    try:
        while True:
            for entry in await _settled(queue):
                yield entry
    finally:
        await end(*pouring)


async def _settled(queue: Coming) -> list[Entry]:
    """What came together, in order. Raises what a reader could not go on after."""
    came = [await queue.get()]
    await asyncio.sleep(SETTLE_S)
    while not queue.empty():
        came.append(queue.get_nowait())
    entries = [entry for entry in came if isinstance(entry, Entry)]
    for error in came:
        if isinstance(error, Exception):
            raise error
    return sorted(entries, key=lambda entry: entry.order)


async def _pour(reader: Reader, queue: Coming) -> None:
    try:
        async for entry in reader.live():
            await queue.put(entry)
    except Exception as error:
        await queue.put(error)
