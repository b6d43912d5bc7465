"""The data that the allocator stores on the bus: the snapshot of its state, and the views of jobs.

The snapshot has the last sequence of each stream, so a restart reads only the rest of the log
(`shared/bus/snapshots.py`). It also has the kinds of messages that its writer knows. An older
version that led for a while skipped the kinds that it did not know; these messages are read again,
so nothing is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping
from math import inf

import msgspec
import structlog
from msgspec.structs import replace
from nats.js.kv import KeyValue

from services.allocator.job_views import JobView, job_views, next_silence_s
from services.allocator.state.job import Job
from services.allocator.state.state import (
    CONSUMED,
    State,
    apply_missed,
    fresh_tables,
    with_summaries,
    without_tables,
)
from services.allocator.state.table_updates import encode_models
from shared.bus import snapshots, subjects
from shared.bus.bus import Bus
from shared.bus.snapshots import NoSnapshot, SnapshotAhead, SnapshotStore

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
"""Kinds that the allocator of version 0.2.0 reads; its snapshots do not name them."""


async def load_snapshot(bus: Bus) -> State:
    """Return the stored state for a reader that takes no decisions."""
    state = await _stored_state(bus)
    return replace(state, known=(), models=b"")


async def load_snapshot_for_leader(bus: Bus) -> State:
    """Return the stored state, with the messages of those kinds that its writer did not know."""
    state = await _stored_state(bus)
    known = state.known or KNOWN_TO_0_2_0
    kinds = [kind for kind in CONSUMED if subjects.tag_of(kind) not in known]
    async for stored in bus.read_stored(kinds, state.sequences):
        state = apply_missed(state, stored.message, stored.sequence, stored.stored_s)
    return replace(state, known=())


async def _stored_state(bus: Bus) -> State:
    """Return the stored state. If there is no snapshot that can be used, return an empty state, so
    that the log is read from its beginning.
    """
    try:
        state = await snapshots.load_state(bus, KEY, State, lambda stored: stored.sequences)
    except SnapshotAhead as ahead:
        log.warning(
            "SnapshotIsAhead", stream=ahead.stream, sequence=ahead.sequence, last=ahead.last
        )
        return State()
    except NoSnapshot as absent:
        log.info("StartsFromTheLog", reason=str(absent))
        return State()
    return with_summaries(state)


def encode_snapshot(state: State) -> bytes:
    """Return the state as it is stored: with the kinds of messages that this version knows, and
    with the models of its tables if these are up to date.
    """
    known = tuple(map(subjects.tag_of, CONSUMED))
    tables = fresh_tables(state)
    models = b"" if tables is None else encode_models(tables)
    stored = replace(without_tables(state), known=known, models=models)
    return snapshots.encode_state(stored)


async def store_snapshot(bus: Bus, state: State) -> None:
    """Store the state once."""
    await SnapshotStore(bus, KEY).store(encode_snapshot(state))


class ViewBucket:
    """The bucket of views, and the views that this process has written to it."""

    def __init__(self, bus: Bus, bucket: KeyValue) -> None:
        self.bus = bus
        self.bucket = bucket
        self.shown: dict[str, JobView] = {}

    async def show(self, state: State, why: Mapping[str, str], unreported_s: float) -> None:
        """Write the views that have changed. `why`: the reason for each job's size, by job."""
        views = job_views(state, why, time.time(), unreported_s)
        self.shown = {key: view for key, view in self.shown.items() if key in views}
        for key, view in views.items():
            if self.shown.get(key) != view:
                self.bus.must_lead()
                await self.bucket.put(key, msgspec.json.encode(view))
                self.shown[key] = view


async def wait_for_change(changed: asyncio.Event, jobs: Iterable[Job], unreported_s: float) -> None:
    """Wait for a fact or a decision, or until a job has been silent for too long."""
    now = time.time()
    next_s = next_silence_s(jobs, now, unreported_s)
    timeout_s = None if next_s == inf else next_s - now
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(changed.wait(), timeout_s)
