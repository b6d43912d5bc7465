"""Reading several streams as one. Edge.

What is stored comes in the order in which the server stored it; what comes later, as it comes, put
in order as far as `SETTLE_S` goes. After the server was away, what was stored meanwhile comes as at
the beginning.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from nats.errors import Error as NatsError

from services.cli.entry import Entry
from services.cli.reader import Reader, Wanted
from shared.bus.bus import Bus
from shared.runtime.process import cancel_tasks

SETTLE_S, RETRY_S = 0.1, 0.5
A = TypeVar("A")
B = TypeVar("B")
Coming = asyncio.Queue[Entry | None]


async def read(bus: Bus, wanted: Sequence[Wanted], follow: bool) -> AsyncGenerator[Entry, None]:
    """What is stored; then, if we follow, what comes. To be closed by who leaves early
    (`aclosing`).
    """
    readers = [Reader(bus, each) for each in wanted]
    async for entry in _stored(readers):
        yield entry
    while follow:
        for coming in (_as_it_comes(readers), _missed(readers)):
            async with aclosing(coming):
                async for entry in coming:
                    yield entry


def _stored(readers: list[Reader]) -> AsyncGenerator[Entry, None]:
    return in_order([reader.stored() for reader in readers])


async def _missed(readers: list[Reader]) -> AsyncGenerator[Entry, None]:
    """What was stored while nothing came, as soon as it can be read: of all streams together, for
    the order's sake.
    """
    while True:
        await asyncio.sleep(RETRY_S)
        with suppress(NatsError):
            async for entry in _stored(readers):
                yield entry
            return


async def in_order(sources: list[AsyncIterator[Entry]]) -> AsyncGenerator[Entry, None]:
    """Merge by the time of storing, holding one message a source."""
    heads = [
        (entry.order, i, entry)
        for i, source in enumerate(sources)
        if (entry := await anext(source, None))
    ]
    heapq.heapify(heads)
    while heads:
        _, i, entry = heads[0]
        yield entry
        if following := await anext(sources[i], None):
            heapq.heapreplace(heads, (following.order, i, following))
        else:
            heapq.heappop(heads)


async def _as_it_comes(readers: list[Reader]) -> AsyncGenerator[Entry, None]:
    """Until nothing comes any more to one of them."""
    queue: Coming = asyncio.Queue()
    pouring = [asyncio.ensure_future(_pour(reader, queue)) for reader in readers]
    try:
        while not (over := [task for task in pouring if task.done()]):
            for entry in await _settled(queue):
                yield entry
        for task in over:
            task.result()
    finally:
        await cancel_tasks(*pouring)
    for entry in _at_hand(queue):
        yield entry


async def _settled(queue: Coming) -> list[Entry]:
    """What came together, in order."""
    first = await queue.get()
    await asyncio.sleep(SETTLE_S)
    return _at_hand(queue, first)


def _at_hand(queue: Coming, *before: Entry | None) -> list[Entry]:
    came = [*before, *(queue.get_nowait() for _ in range(queue.qsize()))]
    return sorted(filter(None, came), key=lambda entry: entry.order)


async def either(one: AsyncIterator[A], other: AsyncIterator[B]) -> AsyncGenerator[A | B, None]:
    """What comes of two that never end, as it comes; raises what one of them raises."""
    coming: dict[asyncio.Future[Any], AsyncIterator[Any]] = {
        _next(source): source for source in (one, other)
    }
    try:
        while True:
            done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
            for came in done:
                source = coming.pop(came)
                coming[_next(source)] = source
                yield came.result()
    finally:
        await cancel_tasks(*coming)


def _next(source: AsyncIterator[Any]) -> asyncio.Future[Any]:
    return asyncio.ensure_future(anext(source))


async def _pour(reader: Reader, queue: Coming) -> None:
    """At the end None."""
    try:
        async for entry in reader.live():
            queue.put_nowait(entry)
    finally:
        queue.put_nowait(None)
