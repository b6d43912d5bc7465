"""The view of each job for `weir jobs`, written to its bucket where it has changed. Edge."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping
from math import inf

import msgspec
from nats.js.kv import KeyValue

from services.allocator.job import Job
from services.allocator.silence import next_silence_s, silent_jobs
from services.allocator.state import State
from services.allocator.view import JobView, closed_view, job_view
from shared.bus import Bus


class Views:
    """The bucket, and what we have written to it."""

    def __init__(self, bus: Bus, bucket: KeyValue) -> None:
        self.bus, self.bucket = bus, bucket
        self.shown: dict[str, JobView] = {}

    async def show(self, state: State, why: Mapping[str, str], unreported_s: float) -> None:
        """Write what has changed. `why`: by job, why it is, or is not, growing."""
        views = job_views(state, why, time.time(), unreported_s)
        self.shown = {key: view for key, view in self.shown.items() if key in views}
        for key, view in views.items():
            if self.shown.get(key) != view:
                self.bus.must_lead()
                await self.bucket.put(key, msgspec.json.encode(view))
                self.shown[key] = view


def job_views(state: State, why: Mapping[str, str], now: float, unreported_s: float) -> dict[str, JobView]:
    """Return the view of each job by key, those that are over among them."""
    ended = {key: closed_view(closed) for key, closed in state.closed.items() if not closed.removed}
    silent = silent_jobs(state.jobs, now, unreported_s)
    return ended | {
        key: job_view(job, silent.get(key) or why.get(key, ""), key in silent) for key, job in state.jobs.items()
    }


async def wait_for_change(changed: asyncio.Event, jobs: Iterable[Job], unreported_s: float) -> None:
    """Wait for a fact or a decision, or until a job has been silent for too long."""
    now = time.time()
    wait_s = next_silence_s(jobs, now, unreported_s) - now
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(changed.wait(), None if wait_s == inf else wait_s)
