"""The log as commands and the page read it: stored messages as entries
(`shared/bus/log_reader.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, TypeVar

import msgspec
from nats.aio.msg import Msg

from services.console.log_entry import Entry
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.consumer import stored_time
from shared.bus.log_reader import LogReader, StreamQuery
from shared.messages import DeadLetter, Message
from shared.runtime.process import cancel_tasks

READER_CLOCK_S = 60.0
"""The largest difference between the clock of the reader's machine and that of a server."""
CLUSTER_CLOCKS_S = 5.0
"""The largest difference between clocks in the cluster: a cause may seem to follow its effect."""
A = TypeVar("A")
B = TypeVar("B")


def read_entries(
    bus: Bus, queries: Sequence[StreamQuery], follow: bool
) -> AsyncGenerator[Entry, None]:
    """Yield the stored entries, then new ones if `follow`. Close it (`aclosing`) when leaving
    early.

    A query without filters yields nothing: its stream has no message of the kinds that were named.
    """
    reader = LogReader(bus, [query for query in queries if query.filters], entry_of)
    return reader.read_and_follow() if follow else reader.read_stored()


def entry_of(raw: Msg) -> Entry | None:
    """Return a message as an entry; None if it cannot be read: it is among the dead letters."""
    meta = raw.metadata
    message = _decode(raw, meta.stream)
    if message is None:
        return None
    return Entry(message, raw.subject, meta.stream, meta.sequence.stream, stored_time(raw))


def _decode(raw: Msg, stream: str) -> Message | DeadLetter | None:
    try:
        if stream == subjects.DEAD:
            return msgspec.json.decode(raw.data, type=DeadLetter)
        return subjects.decode_message(raw.subject, raw.data)
    except (subjects.UnreadableMessage, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


async def merge_sources(
    one: AsyncIterator[A], other: AsyncIterator[B]
) -> AsyncGenerator[A | B, None]:
    """Yield the items of two endless sources as they come. An error of one of them is raised."""
    pending: dict[asyncio.Future[Any], AsyncIterator[Any]] = {}
    for source in (one, other):
        pending[_next_item(source)] = source
    try:
        while True:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                source = pending.pop(future)
                pending[_next_item(source)] = source
                yield future.result()
    finally:
        await cancel_tasks(*pending)


def _next_item(source: AsyncIterator[Any]) -> asyncio.Future[Any]:
    return asyncio.ensure_future(anext(source))
