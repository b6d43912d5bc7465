"""Readers of the bus for commands and the page: stored messages as entries, and the views of jobs.

Entries come from the log (`shared/bus/log_reader.py`). Views come from the bucket `weir-jobs`,
which the allocator writes. The allocator does not fold the facts of a start; for a job that starts,
these facts are read here, and its view has the step that the start waits for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from services.allocator.job_views import JobView
from services.console.board.job_history import (
    START_FOLDS,
    StartProgress,
    fold_start,
    view_while_starting,
)
from services.console.log_entry import Entry, entry_filters
from shared.auth.permissions import bucket_subject, stream_of
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.consumer import ConsumerGone, PullConsumer, stored_time
from shared.bus.log_reader import LogReader, StreamQuery
from shared.bus.subjects import FACTS, JOBS, ORDERS, tag_of
from shared.bus.tail import add_consumer
from shared.messages import DeadLetter, JobMessage, Message
from shared.runtime.process import cancel_tasks

READER_CLOCK_S = 60.0
"""The largest difference between the clock of the reader's machine and that of a server."""
CLUSTER_CLOCKS_S = 5.0
"""The largest difference between clocks in the cluster: a cause may seem to follow its effect."""
A = TypeVar("A")
B = TypeVar("B")


def read_entries(
    bus: Bus, queries: Sequence[StreamQuery], follow: bool
) -> AsyncGenerator[Entry, None]:
    """Yield the stored entries, then new ones if `follow`. Close it (`aclosing`) when leaving
    early.

    A query without filters yields nothing: its stream has no messages of the wanted kinds.
    """
    reader = LogReader(bus, [query for query in queries if query.filters], entry_of)
    return reader.read_and_follow() if follow else reader.read_stored()


def entry_of(raw: Msg) -> Entry | None:
    """Return a message as an entry; None if it cannot be read: it is among the dead letters."""
    meta = raw.metadata
    message = _decode(raw, meta.stream)
    if message is None:
        return None
    return Entry(message, raw.subject, meta.stream, meta.sequence.stream, stored_time(raw))


def _decode(raw: Msg, stream: str) -> Message | DeadLetter | None:
    try:
        if stream == subjects.DEAD:
            return msgspec.json.decode(raw.data, type=DeadLetter)
        return subjects.decode_message(raw.subject, raw.data)
    except (subjects.UnreadableMessage, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


async def merge_sources(
    one: AsyncIterator[A], other: AsyncIterator[B]
) -> AsyncGenerator[A | B, None]:
    """Yield the items of two endless sources as they arrive. An error of one of them is raised."""
    pending: dict[asyncio.Future[Any], AsyncIterator[Any]] = {}
    for source in (one, other):
        pending[_next_item(source)] = source
    try:
        while True:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                source = pending.pop(future)
                pending[_next_item(source)] = source
                yield future.result()
    finally:
        await cancel_tasks(*pending)


def _next_item(source: AsyncIterator[Any]) -> asyncio.Future[Any]:
    return asyncio.ensure_future(anext(source))


VIEWS, IDLE_S = stream_of(JOBS), 60.0
Views = dict[str, JobView]


async def stored_views(bus: Bus, namespace: str | None, watch: bool) -> AsyncGenerator[Views, None]:
    """Yield the views as stored: once, or again after each change."""
    async with aclosing(follow_views(bus, namespace)) as changes:
        async for views in changes:
            yield views
            if not watch:
                break


async def views_with_starts(
    bus: Bus, namespace: str | None, watch: bool
) -> AsyncGenerator[Views, None]:
    """Yield the views; for jobs that start, with the step that they wait for."""
    starts = StartReader(bus, namespace)
    async with aclosing(follow_views(bus, namespace)) as changes:
        views = await anext(changes)
        await starts.catch_up(views)
        yield starts.views_with_waits(views)
        if watch:
            async with (
                aclosing(starts.follow_starts(views, follow=True)) as entries,
                aclosing(merge_sources(changes, entries)) as news,
            ):
                async for item in news:
                    if not isinstance(item, Entry):
                        views = item
                    yield starts.views_with_waits(views)


async def follow_views(
    bus: Bus, namespace: str | None, job: str = "*"
) -> AsyncGenerator[Views, None]:
    """Yield all views by key, and all of them again after each change. Unreadable ones are left
    out.
    """
    while True:
        views = Views()
        info = await add_consumer(bus.client, bus.js, VIEWS, _consumer(namespace, job))
        puller = PullConsumer(bus.client, VIEWS, info.name)
        left = int(info.num_pending or 0)
        try:
            while True:
                if left <= 0:
                    yield dict(views)
                _apply(views, await puller.next())
                left -= 1
        except ConsumerGone:  # the server dropped the consumer: read all views again
            continue
        finally:
            await puller.close()


def _consumer(namespace: str | None, job: str) -> ConsumerConfig:
    return ConsumerConfig(
        filter_subject=bucket_subject(JOBS, f"{namespace or '*'}.{job}"),
        deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
        ack_policy=AckPolicy.NONE,
        inactive_threshold=IDLE_S,
        mem_storage=True,
    )


def _apply(views: Views, raw: Msg) -> None:
    """Fold one message of the bucket. A deleted view has no body."""
    key = raw.subject.removeprefix(bucket_subject(JOBS, ""))
    view = _decode_view(raw.data) if raw.data else None
    if view is not None:
        views[key] = view
    else:
        views.pop(key, None)


def _decode_view(value: bytes) -> JobView | None:
    try:
        return msgspec.json.decode(value, type=JobView)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


START_KINDS = tuple(tag_of(kind) for kind in START_FOLDS)


class StartReader:
    """Reads the messages about starts of one namespace, or of all (None)."""

    def __init__(self, bus: Bus, namespace: str | None) -> None:
        self.bus = bus
        self.namespace = namespace
        self._known = dict[tuple[str, int], StartProgress]()

    async def catch_up(self, views: Mapping[str, JobView]) -> None:
        """Read the stored messages if a job starts."""
        if any(view.phase == "Starting" for view in views.values()):
            async with aclosing(self.follow_starts(views, follow=False)) as entries:
                async for _ in entries:
                    pass

    async def follow_starts(
        self, views: Mapping[str, JobView], follow: bool
    ) -> AsyncGenerator[Entry, None]:
        """Yield each message about a start, after it was folded."""
        starting = [view.submitted_s for view in views.values() if view.phase == "Starting"]
        since_s = min(starting, default=time.time() - READER_CLOCK_S)
        queries = []
        for stream in (ORDERS, FACTS):
            filters = entry_filters(stream, "*", self.namespace or "*", START_KINDS)
            queries.append(StreamQuery(stream, filters, since_s=since_s))
        async with aclosing(read_entries(self.bus, queries, follow)) as entries:
            async for entry in entries:
                self._fold_entry(entry)
                yield entry

    def _fold_entry(self, entry: Entry) -> None:
        message = entry.message
        if isinstance(message, JobMessage):
            job = message.key(), message.uid
            self._known[job] = fold_start(self._known.get(job, StartProgress()), message)

    def views_with_waits(self, views: Mapping[str, JobView]) -> dict[str, JobView]:
        shown = {}
        for key, view in views.items():
            shown[key] = view_while_starting(view, self._known.get((key, view.uid)))
        return shown
