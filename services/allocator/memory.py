"""The edge that remembers: the state, stored with the last sequence of each stream, so that a restart reads the rest.

Promises. What cannot be read (another version wrote it), or is ahead of the streams (they were made anew), counts as
absent, and the log is read from its beginning.
"""

from __future__ import annotations

import zlib

import msgspec
import structlog
from nats.js.errors import NotFoundError

from services.allocator.state import State, summarised
from shared import snapshots
from shared.bus import Bus
from shared.snapshots import Snapshots

log = structlog.get_logger()

KEY = "allocator"
LEVEL = 1
"""Of compression: the fastest."""


async def recall(connection: Bus) -> State:
    try:
        state = msgspec.json.decode(zlib.decompress(await snapshots.load(connection, KEY)), type=State)
    except (NotFoundError, zlib.error, msgspec.DecodeError) as error:
        log.info("StartsFromTheLog", reason=repr(error))
        return State()
    for stream, sequence in state.sequences.items():
        last = await connection.last_stored(stream)
        if sequence > last:
            log.warning("SnapshotIsAhead", stream=stream, sequence=sequence, last=last)
            return State()
    return summarised(state)


def encoded(state: State) -> bytes:
    """Return the state as it is stored."""
    return zlib.compress(msgspec.json.encode(state), level=LEVEL)


async def remember(connection: Bus, state: State) -> None:
    """Store the state once."""
    await Snapshots(connection, KEY).store(encoded(state))
