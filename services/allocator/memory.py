"""The edge that remembers: the state, stored with the last sequence of each stream, so that a restart reads the rest.

Promises. What cannot be read (another version wrote it), or is ahead of the streams (they were made anew), counts as
absent, and the log is read from its beginning. An older version that leads meanwhile, or led before an upgrade, passes
over the kinds of messages that it does not know: those are read again. So its snapshot loses nothing that was said.
"""

from __future__ import annotations

import zlib

import msgspec
import structlog
from msgspec.structs import replace
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from services.allocator.state import HEARD, State, missed
from shared import subjects
from shared.bus import Bus, Stale
from shared.subjects import STATE

log = structlog.get_logger()

KEY = "allocator"
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
"""What its allocator hears; its snapshots do not say so."""
LARGEST = 1_000_000  # bytes; the server's default for one message


async def recall(connection: Bus) -> State:
    """Return the stored state, for who only looks."""
    return replace(await _stored(connection), known=())


async def recall_for_leader(connection: Bus) -> State:
    """Return the stored state, with the messages of those kinds that its writer did not know."""
    state = await _stored(connection)
    known = state.known or KNOWN_TO_0_2_0
    kinds = [kind for kind in HEARD if subjects.tag_of(kind) not in known]
    async for heard in connection.stored(kinds, state.sequences):
        state = missed(state, heard.message, heard.sequence, heard.stored_s)
    return replace(state, known=())


async def _stored(connection: Bus) -> State:
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
    known = tuple(map(subjects.tag_of, HEARD))
    body = zlib.compress(msgspec.json.encode(replace(state, known=known)), level=1)
    if len(body) > LARGEST:
        log.warning("SnapshotTooLarge", bytes=len(body))
        return
    try:
        await connection.keep(KEY, body)
    except (NatsError, Stale) as error:  # the bus is away, or another leads: a restart will read more
        log.warning("SnapshotFailed", error=repr(error))
