"""What jobs that start wait for, read from their own messages, beside the views that the allocator
keeps. Edge.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from services.allocator.job_views import JobView
from services.console.board.job_history import OF_BEGINNING, Beginning, heard, shown
from services.console.log_entry import Entry, filters
from services.console.log_reader import OUR_CLOCK_S, read
from shared.bus.bus import Bus
from shared.bus.log_reader import StreamQuery
from shared.bus.subjects import FACTS, ORDERS, tag_of
from shared.messages import JobMessage

KINDS = tuple(tag_of(kind) for kind in OF_BEGINNING)


class Starts:
    """Of one namespace, or of all (None)."""

    def __init__(self, bus: Bus, namespace: str | None) -> None:
        self.bus = bus
        self.namespace = namespace
        self._known = dict[tuple[str, int], Beginning]()

    async def catch_up(self, views: Mapping[str, JobView]) -> None:
        """Read what is stored, where a job starts."""
        if any(view.phase == "Starting" for view in views.values()):
            async with aclosing(self.told(views, follow=False)) as entries:
                async for _ in entries:
                    pass

    async def told(self, views: Mapping[str, JobView], follow: bool) -> AsyncGenerator[Entry, None]:
        """Each message that tells more, once it is known here."""
        submitted_s = (view.submitted_s for view in views.values() if view.phase == "Starting")
        since_s = min(submitted_s, default=time.time() - OUR_CLOCK_S)
        streams = {
            stream: filters(stream, "*", self.namespace or "*", KINDS) for stream in (ORDERS, FACTS)
        }
        wanted = [StreamQuery(stream, kinds, since_s=since_s) for stream, kinds in streams.items()]
        async with aclosing(read(self.bus, wanted, follow)) as entries:
            async for entry in entries:
                self._hear(entry)
                yield entry

    def _hear(self, entry: Entry) -> None:
        if isinstance(said := entry.said, JobMessage):
            whose = said.key(), said.uid
            self._known[whose] = heard(self._known.get(whose, Beginning()), said)

    def shown(self, views: Mapping[str, JobView]) -> dict[str, JobView]:
        return {key: shown(view, self._known.get((key, view.uid))) for key, view in views.items()}
