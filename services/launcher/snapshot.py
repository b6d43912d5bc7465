"""The stored snapshot of what the launcher has read from the bus, so that a restart reads only the
rest of the log, even if old facts are gone.

Promise: a loaded snapshot has the content of the messages up to `after`, and no others. If it
cannot be read, or if a stream was made anew and ends before it, it counts as absent.
"""

from __future__ import annotations

import msgspec
import structlog

from services.launcher.view import BusState
from shared.bus.bus import Bus
from shared.bus.snapshots import (
    NoSnapshot,
    SnapshotAhead,
    SnapshotStore,
    encode_state,
    load_state,
)

log = structlog.get_logger()

KEY = "launcher"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """`after`: by stream, the sequence of the last message in `told`; `stored_s`: by stream, when
    the server stored that message.
    """

    after: dict[str, int] = {}
    stored_s: dict[str, float] = {}
    told: BusState = BusState()


async def load_snapshot(bus: Bus) -> Snapshot:
    """Return the stored snapshot; an empty one if there is none that can be used."""
    try:
        return await load_state(bus, KEY, Snapshot, lambda stored: stored.after)
    except SnapshotAhead:
        return Snapshot()
    except NoSnapshot as absent:
        log.info("NoSnapshot", error=str(absent))
        return Snapshot()


async def store_snapshot(bus: Bus, snapshot: Snapshot) -> None:
    """Store the snapshot once."""
    await SnapshotStore(bus, KEY).store(encode_state(snapshot))
