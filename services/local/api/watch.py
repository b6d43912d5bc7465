"""Watches: the changes of objects as JSON lines.

    resourceVersion empty or 0   first all objects, as ADDED, then the changes
    resourceVersion n            the changes after n; 410 Expired, as an ERROR event, if they are discarded
    sendInitialEvents            as with 0, with a bookmark at the end of the first part

A watcher is a position in a watch cache. All lines that are ready are sent in one write.
"""

import asyncio
import random
from contextlib import suppress

from aiohttp import web

from services.local.api.handlers import form_of, matching_objects
from services.local.api.request import JSON, ListOptions, ResourcePath, list_options
from services.local.api.tables import format_object
from services.local.events import to_events_v1
from services.local.objects.bodies import (
    ApiError,
    Body,
    bad_request,
    name_of,
    namespace_of,
    too_new,
)
from services.local.objects.kinds import NEW_EVENT, Kind
from services.local.store import ADDED, BOOKMARK, ERROR, Change, Store, encode, watch_line

BOOKMARK_S = 60.0
EXPIRED = 410
LONGEST_S = (1800.0, 3600.0)
"""A watch without a timeout ends after a random time within these limits (s)."""


class Watch:
    def __init__(
        self, store: Store, place: ResourcePath, options: ListOptions, form: str, bookmark_s: float
    ) -> None:
        self.store = store
        self.place = place
        self.options = options
        self.form = form
        self.cache = store.watch_cache(place.kind)
        self.bookmark_s = bookmark_s
        self.position = store.revision

    def initial_lines(self) -> bytes:
        """Return the lines before any change. Raises a refusal if the revision cannot be served."""
        requested, initial = self.options.revision, self.options.initial_events
        if not requested.isdigit() and requested:
            raise bad_request(f"invalid resource version: {requested!r}")
        if initial:
            return self.existing_objects() + self.bookmark(ended=True)
        if initial is None and requested in ("", "0"):
            return self.existing_objects()
        self.position = int(requested) if requested else self.store.revision
        if self.position > self.store.revision:
            raise too_new(self.position, self.store.revision)
        return self.new_lines()

    def existing_objects(self) -> bytes:
        found = matching_objects(self.store, self.place, self.options)
        return b"".join(self.encode_event(ADDED, s.body, s.encoded_body) for s in found)

    def new_lines(self) -> bytes:
        """Return the lines of the changes after the position, and move the position."""
        changes = self.cache.after(self.position)
        self.position = max(self.position, self.store.revision)
        return b"".join(map(self.change_line, changes))

    def change_line(self, change: Change) -> bytes:
        body, place = change.after.body, self.place
        if place.namespace not in ("", namespace_of(body)) or place.name not in ("", name_of(body)):
            return b""
        verb = change.event_type_for(self.options.match)
        if verb is None:
            return b""
        if self.form or place.kind is NEW_EVENT:
            return self.encode_event(verb, change.visible_body(verb), None)
        return change.line(verb)

    def encode_event(self, verb: str, body: Body, encoded: bytes | None) -> bytes:
        kind = self.place.kind
        if kind is NEW_EVENT and "regarding" not in body:
            body = to_events_v1(body)
        if self.form:
            encoded = encode(format_object(self.form, kind, body, self.store.clock()))
        elif encoded is None:
            encoded = encode(body)
        return watch_line(verb, encoded)

    def bookmark(self, ended: bool = False) -> bytes:
        return bookmark_line(self.place.kind, self.position, ended)


def bookmark_line(kind: Kind, revision: int, ended: bool) -> bytes:
    """Return a bookmark event. `ended`: it marks the end of the initial objects."""
    metadata: Body = {"resourceVersion": str(revision), "creationTimestamp": None}
    if ended:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    body = {"kind": kind.name, "apiVersion": kind.api_version, "metadata": metadata}
    return watch_line(BOOKMARK, encode(body))


async def serve_watch(
    request: web.Request, store: Store, place: ResourcePath, bookmark_s: float = BOOKMARK_S
) -> web.StreamResponse:
    options = list_options(place.kind, request.query)
    watch = Watch(store, place, options, form_of(request), bookmark_s)
    response = web.StreamResponse(headers={"Content-Type": JSON})
    response.enable_chunked_encoding()
    try:
        first = watch.initial_lines()
    except ApiError as refusal:
        if refusal.code != EXPIRED:
            raise
        await response.prepare(request)
        await response.write(error_line(refusal))
        return response
    await response.prepare(request)
    with suppress(ConnectionResetError):  # the client has gone
        await response.write(first)
        await send_changes(watch, response, options.timeout_s or random.uniform(*LONGEST_S))
    return response


def error_line(refusal: ApiError) -> bytes:
    return watch_line(ERROR, encode(refusal.as_status()))


async def send_changes(watch: Watch, response: web.StreamResponse, timeout_s: float) -> None:
    """Send changes until the timeout, or until the cache has discarded the position."""
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    bookmark_at = loop.time() + watch.bookmark_s
    while loop.time() < end:
        news = watch.cache.news
        try:
            lines = watch.new_lines()
        except ApiError as refusal:
            await response.write(error_line(refusal))
            return
        if watch.options.bookmarks and loop.time() >= bookmark_at:
            lines += watch.bookmark()
            bookmark_at = loop.time() + watch.bookmark_s
        if lines:
            await response.write(lines)
        await wait_until(news, min(end, bookmark_at))


async def wait_until(news: asyncio.Event, at: float) -> None:
    try:
        async with asyncio.timeout_at(at):
            await news.wait()
    except TimeoutError:
        return
