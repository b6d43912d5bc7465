"""Store the state with the last sequence of each stream, so that a restart reads only the rest of
the log. Edge.

A state that cannot be read (another version wrote it), or is ahead of the streams (they were made
anew), counts as absent, and the log is read from its beginning. An older version that leads
meanwhile, or led before an upgrade, passes over the kinds of messages that it does not know: those
are read again. So its snapshot loses nothing that was said.
"""

from __future__ import annotations

import zlib

import msgspec
import structlog
from msgspec.structs import replace
from nats.js.errors import NotFoundError

from services.allocator.state.state import (
    CONSUMED,
    State,
    apply_missed,
    fresh_tables,
    with_summaries,
    without_tables,
)
from services.allocator.state.stored_models import encode_models
from shared.bus import snapshots, subjects
from shared.bus.bus import Bus
from shared.bus.snapshots import SnapshotStore

log = structlog.get_logger()

KEY = "allocator"
LEVEL = 1
"""Of compression: the fastest."""
KNOWN_TO_0_2_0 = (
    "allocation.decided",
    "capacity.changed",
    "cluster.abandoned",
    "cluster.published",
    "job.accepted",
    "job.cancel",
    "job.finished",
    "job.rejected",
    "job.requested",
    "task.exited",
    "task.leaving",
    "task.ready",
    "task.started",
    "training.progress",
    "training.resumed",
    "training.saved",
)
"""Kinds that the allocator of version 0.2.0 reads; its snapshots do not name them."""


async def load_snapshot(connection: Bus) -> State:
    """Return the stored state, for a reader that decides nothing."""
    state = await _stored_state(connection)
    return replace(state, known=(), models=b"")


async def load_snapshot_for_leader(connection: Bus) -> State:
    """Return the stored state, with the messages of those kinds that its writer did not know."""
    state = await _stored_state(connection)
    known = state.known or KNOWN_TO_0_2_0
    kinds = [kind for kind in CONSUMED if subjects.tag_of(kind) not in known]
    async for heard in connection.read_stored(kinds, state.sequences):
        state = apply_missed(state, heard.message, heard.sequence, heard.stored_s)
    return replace(state, known=())


async def _stored_state(connection: Bus) -> State:
    """Return the stored state; an empty one, so that the log is read from its beginning, if no
    snapshot can be read or it is ahead of a stream.
    """
    try:
        stored = await snapshots.load_snapshot(connection, KEY)
        state = msgspec.json.decode(zlib.decompress(stored), type=State)
    except (NotFoundError, zlib.error, msgspec.DecodeError) as error:
        log.info("StartsFromTheLog", reason=repr(error))
        return State()
    for stream, sequence in state.sequences.items():
        last = await connection.last_stored(stream)
        if sequence > last:
            log.warning("SnapshotIsAhead", stream=stream, sequence=sequence, last=last)
            return State()
    return with_summaries(state)


def encode_snapshot(state: State) -> bytes:
    """Return the state as it is stored: with the kinds of messages that its writer knows, and with
    the models of its tables where these are up to date.
    """
    known = tuple(map(subjects.tag_of, CONSUMED))
    tables = fresh_tables(state)
    models = b"" if tables is None else encode_models(tables)
    stored = replace(without_tables(state), known=known, models=models)
    return zlib.compress(msgspec.json.encode(stored), level=LEVEL)


async def store_snapshot(connection: Bus, state: State) -> None:
    """Store the state once."""
    await SnapshotStore(connection, KEY).store(encode_snapshot(state))
