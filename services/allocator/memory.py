"""The edge that remembers: the state, stored with the last sequence of each stream, so that a restart reads the rest.

Promises. What cannot be read (another version wrote it), or is ahead of the streams (they were made anew), counts as
absent, and the log is read from its beginning.
"""

from __future__ import annotations

import zlib

import msgspec
import structlog
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from services.allocator.state import State
from shared.bus import Bus, Stale
from shared.subjects import STATE

log = structlog.get_logger()

KEY = "allocator"
LARGEST = 1_000_000  # bytes; the server's default for one message


async def recall(connection: Bus) -> State:
    try:
        bucket = await connection.bucket(STATE)
        entry = await connection.asked(lambda: bucket.get(KEY))
        state = msgspec.json.decode(zlib.decompress(entry.value or b""), type=State)
    except (NotFoundError, zlib.error, msgspec.DecodeError) as error:
        log.info("StartsFromTheLog", reason=repr(error))
        return State()
    for stream, sequence in state.sequences.items():
        last = await connection.last_stored(stream)
        if sequence > last:
            log.warning("SnapshotIsAhead", stream=stream, sequence=sequence, last=last)
            return State()
    return state


async def remember(connection: Bus, state: State) -> None:
    body = zlib.compress(msgspec.json.encode(state), level=1)
    if len(body) > LARGEST:
        log.warning("SnapshotTooLarge", bytes=len(body))
        return
    try:
        await connection.keep(KEY, body)
    except (NatsError, Stale) as error:  # the bus is away, or another leads: a restart will read more
        log.warning("SnapshotFailed", error=repr(error))
