"""Keep the board up to date with the bus.

Promise: stored messages are read first, in the order of storing, then every new message, each once.
While the bus is away the board does not change, and `cut_s` is the time at which the connection was
lost. When the bus is back, reading continues after the last message. If a stream was set back or
created again, reading starts from the beginning.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing, suppress

import structlog
from nats.errors import Error as NatsError

from services.allocator import snapshot
from services.allocator.state.state import State
from services.console.board.board import apply, initial_board, with_last_fact, with_reason
from services.console.bus_reader import follow_views, read_entries
from services.console.log_entry import Entry, entry_filters
from services.console.log_history import MANY_FACTS
from shared.bus.bus import Bus
from shared.bus.log_reader import LastNodeFacts, StreamQuery, read_last_node_facts
from shared.bus.subjects import FACTS, ORDERS
from shared.messages import CapacityFact
from shared.runtime.process import cancel_tasks

log = structlog.get_logger()

PROBE_S, RETRY_S = 1.0, 0.5
RECENT_S = 6 * 3600.0
"""The part of a log with more than `MANY_FACTS` facts that is read; the allocator's stored state
has the rest.
"""
AT_ONCE = 100
"""The number of messages that are read before other tasks run."""


class Watch:
    """Follows the bus; `run` never returns. After each change `changed` is set and replaced by a
    new event.
    """

    def __init__(self, bus: Bus, clock: Callable[[], float] = time.time) -> None:
        self.bus = bus
        self.clock = clock
        self.board = initial_board()
        self.cut_s: float | None = None
        self.caught_up = False
        self.changed = asyncio.Event()
        self._since_s: float | None = None
        self._stored: State | None = None
        self._node_facts = LastNodeFacts()
        self._following: asyncio.Future[None] | None = None

    async def run(self) -> None:
        work = [
            asyncio.ensure_future(self._follow_for_ever()),
            asyncio.ensure_future(self._follow_reasons()),
            asyncio.ensure_future(self._probe()),
        ]
        try:
            await asyncio.gather(*work)
        finally:
            await cancel_tasks(*work)

    async def wait_until_caught_up(self) -> None:
        """Wait until all that was stored at the beginning is in the board."""
        while not self.caught_up:
            await self.changed.wait()

    def _notify_browsers(self) -> None:
        done, self.changed = self.changed, asyncio.Event()
        done.set()

    # ------------------------------------------------------------ reading

    async def _follow_for_ever(self) -> None:
        while True:
            self._following = asyncio.ensure_future(self._follow())
            try:
                await asyncio.wait({self._following})
            finally:
                if not self._following.done():
                    await cancel_tasks(self._following)
            if not self._following.cancelled() and (error := self._following.exception()):
                if not isinstance(error, NatsError | OSError):
                    raise error
                log.warning("WatchWaits", error=repr(error))
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        """Read the stored messages, then follow new ones."""
        if not self.board.sequences:
            await self._begin()
        await self._read_node_facts()
        for follow in (False, True):
            async with aclosing(read_entries(self.bus, self._wanted_streams(), follow)) as entries:
                count = 0
                async for entry in entries:
                    self._fold_entry(entry)
                    if self.caught_up or (count := count + 1) % AT_ONCE == 0:
                        self._notify_browsers()
                        await asyncio.sleep(0)
            self._fold_missing_nodes()
            self.caught_up = True
            self._notify_browsers()

    async def _begin(self) -> None:
        """Read the allocator's stored state if the beginning of the log is gone, or the log is very
        long.
        """
        orders = (await self.bus.js.stream_info(ORDERS)).state
        facts = (await self.bus.js.stream_info(FACTS)).state
        many = facts.messages > MANY_FACTS
        self._since_s = self.clock() - RECENT_S if many else None
        if many or max(orders.first_seq, facts.first_seq) > 1:
            self._stored = await snapshot.load_snapshot(self.bus)

    async def _read_node_facts(self) -> None:
        known = self._stored.sequences if self._stored else self.board.sequences
        self._node_facts = LastNodeFacts(await read_last_node_facts(self.bus), known.get(FACTS, 0))

    def _wanted_streams(self) -> list[StreamQuery]:
        queries = []
        for stream, since_s in ((ORDERS, None), (FACTS, self._since_s)):
            after = self.board.sequences.get(stream, 0)
            query = StreamQuery(stream, entry_filters(stream), after=after, since_s=since_s)
            queries.append(query)
        return queries

    def _fold_entry(self, entry: Entry) -> None:
        if self._stored is not None:
            self.board, self._stored = initial_board(self._stored, entry.stored_s), None
        readable = entry.as_log_entry
        if readable:
            self._node_facts.note_fact(readable.message)
            self.board = apply(self.board, readable)

    def _fold_missing_nodes(self) -> None:
        """Add the nodes and quotas that are not in the log; if it had no message, the stored state
        too.
        """
        facts = self._node_facts.take_missing()
        if self._stored is not None:
            self.board, self._stored = initial_board(self._stored, self.clock()), None
        for fact in facts:
            if isinstance(fact.message, CapacityFact):
                self.board = with_last_fact(self.board, fact.message, fact.stored_s)

    async def _follow_reasons(self) -> None:
        """Follow the allocator's reason for each job; it is an entry of a bucket, not a message."""
        while True:
            with suppress(NatsError, OSError):
                async with aclosing(follow_views(self.bus, None)) as changes:
                    async for views in changes:
                        for key, view in views.items():
                            known = self.board.whys.get(key, ""), key in self.board.silent
                            if known != (view.why, view.silent):
                                self.board = with_reason(self.board, key, view.why, view.silent)
                        self._notify_browsers()
            await asyncio.sleep(RETRY_S)

    # ------------------------------------------------------------ connection

    async def _probe(self) -> None:
        """Ask the server for its newest messages and compare them with ours: an open connection
        alone proves nothing.
        """
        while True:
            try:
                async with asyncio.timeout(2 * PROBE_S):
                    last_orders = (await self.bus.js.stream_info(ORDERS)).state.last_seq
                    last_facts = (await self.bus.js.stream_info(FACTS)).state.last_seq
                known = self.board.sequences
                if last_orders < known.get(ORDERS, 0) or last_facts < known.get(FACTS, 0):
                    self._start_again()
                self._end_outage()
            except (NatsError, OSError, TimeoutError):
                self._begin_outage()
            await asyncio.sleep(PROBE_S)

    def _end_outage(self) -> None:
        if self.cut_s is not None:
            self.cut_s = None
            self._notify_browsers()

    def _begin_outage(self) -> None:
        if self.cut_s is None:
            self.cut_s = self.clock()
            self._notify_browsers()

    def _start_again(self) -> None:
        log.warning("StreamSetBack")
        self.board = initial_board()
        self.caught_up = False
        self._stored = None
        if self._following is not None:
            self._following.cancel()
