"""What was heard, stored now and then, so that a restart reads the rest only, even when old facts
are gone. Edge.

Promise: what is loaded is what the messages up to `after` told. Where it does not fit the streams
(they were made anew), or cannot be read, it is nothing, and all is read again.
"""

from __future__ import annotations

import zlib

import msgspec
import structlog
from nats.js.errors import NotFoundError

from services.launcher.view import BusState
from shared.bus import snapshots
from shared.bus.bus import Bus
from shared.bus.snapshots import SnapshotStore

log = structlog.get_logger()

KEY = "launcher"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """`after`: by stream, the sequence of the last message that is in it; `stored_s`: when that was
    stored.
    """

    after: dict[str, int] = {}
    stored_s: dict[str, float] = {}
    told: BusState = BusState()


async def load(connection: Bus) -> Snapshot:
    try:
        found = msgspec.json.decode(
            zlib.decompress(await snapshots.load_snapshot(connection, KEY)), type=Snapshot
        )
    except (NotFoundError, zlib.error, msgspec.DecodeError) as error:
        log.info("NoSnapshot", error=repr(error))
        return Snapshot()
    return found if await _fits(connection, found) else Snapshot()


async def _fits(connection: Bus, found: Snapshot) -> bool:
    for stream, sequence in found.after.items():
        if await connection.last_stored(stream) < sequence:
            return False
    return True


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the snapshot as it is stored."""
    return zlib.compress(msgspec.json.encode(snapshot), 1)


async def save(connection: Bus, snapshot: Snapshot) -> None:
    """Store the snapshot once."""
    await SnapshotStore(connection, KEY).store(encode_snapshot(snapshot))
