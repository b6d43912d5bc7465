"""Write the view of each job for `weir jobs` to its bucket when it changes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping
from math import inf

import msgspec
from nats.js.kv import KeyValue

from services.allocator.job_views import JobView, closed_view, job_view, next_silence_s, silent_jobs
from services.allocator.state.job import Job
from services.allocator.state.state import State
from shared.bus.bus import Bus


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
