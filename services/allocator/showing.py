"""The view of each job for `weir jobs`, written to its bucket where it has changed. Edge."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from nats.js.kv import KeyValue

from services.allocator.state import State
from services.allocator.view import JobView, closed_view, job_view
from shared.bus import Bus


class Views:
    """The bucket, and what we have written to it."""

    def __init__(self, bus: Bus, bucket: KeyValue) -> None:
        self.bus, self.bucket = bus, bucket
        self.shown: dict[str, JobView] = {}

    async def show(self, state: State, why: Mapping[str, str]) -> None:
        """Write what has changed. `why`: by job, why it is, or is not, growing."""
        views = job_views(state, why)
        self.shown = {key: view for key, view in self.shown.items() if key in views}
        for key, view in views.items():
            if self.shown.get(key) != view:
                self.bus.must_lead()
                await self.bucket.put(key, msgspec.json.encode(view))
                self.shown[key] = view


def job_views(state: State, why: Mapping[str, str]) -> dict[str, JobView]:
    """Return the view of each job by key, those that are over among them."""
    ended = {key: closed_view(closed) for key, closed in state.closed.items() if not closed.removed}
    return ended | {key: job_view(job, why.get(key, "")) for key, job in state.jobs.items()}
