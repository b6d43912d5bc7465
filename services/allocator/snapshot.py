"""Store what the allocator keeps on the bus: the snapshot of its state, and the views of jobs.

The snapshot has the last sequence of each stream, so a restart reads only the rest of the log. A
snapshot counts as absent if it cannot be read (another version wrote it), or if it is ahead of the
streams (they were made anew); then the log is read from its beginning. An older version that leads
meanwhile, or led before an upgrade, skips the kinds of messages that it does not know. Those are
read again, so its snapshot loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections.abc import Iterable, Mapping
from math import inf

import msgspec
import structlog
from msgspec.structs import replace
from nats.js.errors import NotFoundError
from nats.js.kv import KeyValue

from services.allocator.job_views import JobView, closed_view, job_view, next_silence_s, silent_jobs
from services.allocator.state.job import Job
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


class ViewBucket:
    """The bucket, and the views that we have written to it."""

    def __init__(self, bus: Bus, bucket: KeyValue) -> None:
        self.bus = bus
        self.bucket = bucket
        self.shown: dict[str, JobView] = {}

    async def show(self, state: State, why: Mapping[str, str], unreported_s: float) -> None:
        """Write the views that have changed. `why`: by job, the reason of its size."""
        views = job_views(state, why, time.time(), unreported_s)
        self.shown = {key: view for key, view in self.shown.items() if key in views}
        for key, view in views.items():
            if self.shown.get(key) != view:
                self.bus.must_lead()
                await self.bucket.put(key, msgspec.json.encode(view))
                self.shown[key] = view


def job_views(
    state: State, why: Mapping[str, str], now: float, unreported_s: float
) -> dict[str, JobView]:
    """Return the view of each job by key, those that are over among them."""
    views: dict[str, JobView] = {}
    for key, closed in state.closed.items():
        if not closed.removed:
            views[key] = closed_view(closed)

    silent = silent_jobs(state.jobs, now, unreported_s)
    for key, job in state.jobs.items():
        if key in silent:
            views[key] = job_view(job, silent[key], silent=True)
        else:
            views[key] = job_view(job, why.get(key, ""))
    return views


async def wait_for_change(changed: asyncio.Event, jobs: Iterable[Job], unreported_s: float) -> None:
    """Wait for a fact or a decision, or until a job has been silent for too long."""
    now = time.time()
    next_s = next_silence_s(jobs, now, unreported_s)
    timeout_s = None if next_s == inf else next_s - now
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(changed.wait(), timeout_s)
