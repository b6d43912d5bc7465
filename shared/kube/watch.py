"""List, then watch, for ever: how the monitor and the launcher follow objects of Kubernetes.

Promise. `follow` yields all objects as `Listed`, then each change as `Changed` or `Deleted`, in the
server's order. It continues after the last complete line that was read, or begins with a new
`Listed`.

    the watch ends or breaks; no connection; 429, 500, 502, 503            continue from the last revision or page
    410 Expired (a status, or an ERROR event in a stream)                  list again; between two pages: in one piece
    any other refusal, a line that is no event, many of these in a row     list again

A malformed object is logged and left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from shared.kube.client import CONNECTION_ERRORS, READ_ERRORS, Api, ApiError, api_error
from shared.kube.objects import ListPage, MalformedObject, Versioned, WatchLine

log = structlog.get_logger()

Fact = TypeVar("Fact")
EXPIRED, FOR_NOW = 410, (429, 500, 502, 503)
AWAY = 3  # failures in a row after which the server counts as away
GOES_ON = 5  # failures in a row; after more, the objects are listed again
SHORT_S = 1.0  # a watch that ends sooner, without an event, is a failure


@dataclass(frozen=True)
class Listed(Generic[Fact]):
    facts: tuple[Fact, ...]
    revision: str


@dataclass(frozen=True)
class Changed(Generic[Fact]):
    fact: Fact
    revision: str


@dataclass(frozen=True)
class Deleted(Generic[Fact]):
    fact: Fact
    revision: str


Event = Listed[Fact] | Changed[Fact] | Deleted[Fact]


class WatchTooShort(OSError):
    """A watch ended at once."""


class ListWatch(Generic[Fact]):
    """Follows the objects at one path. `read` returns None for an object that does not count, and
    raises `MalformedObject`.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        read: Callable[[bytes], Fact | None],
        query: Mapping[str, str] | None = None,
    ) -> None:
        self.api = api
        self.path = path
        self.read = read
        self.query = query or {}
        self.revision: str | None = (
            None  # what we have read, we have read up to here; None: not yet listed
        )
        self.found: list[Fact] = []  # of a list, the pages that we have ...
        self.go_on = ""  # ... and the next one's token
        self.in_one_piece = False
        self.failures = 0  # in a row

    async def follow(self) -> AsyncIterator[Event[Fact]]:
        """List, then watch. After a failure wait, then continue or list again."""
        while True:
            try:
                if self.revision is None:
                    yield await self._list()
                async for event in self._watch():
                    yield event
            except (ApiError, *READ_ERRORS) as error:
                await self._recover(error)

    # ------------------------------------------------------------ listing

    async def _list(self) -> Listed[Fact]:
        """Read a list page by page, so that the objects of a large cluster are never all in
        memory.
        """
        while True:
            page = msgspec.json.decode(
                await self.api.list_page(self.path, self._page_query()), type=ListPage
            )
            self.found += [
                fact for item in page.items or () if (fact := self._readable(item)) is not None
            ]
            self.go_on = page.metadata.continue_ or ""
            if not self.go_on:
                self.revision = page.metadata.resource_version or ""  # the same on every page
                facts = tuple(self.found)
                self.found = []
                self.in_one_piece = False
                return Listed(facts, self.revision)

    def _page_query(self) -> dict[str, str]:
        limit = {} if self.in_one_piece else {"limit": str(self.api.settings.kube_page)}
        return {**self.query, **limit, **({"continue": self.go_on} if self.go_on else {})}

    # ------------------------------------------------------------ watching

    async def _watch(self) -> AsyncIterator[Event[Fact]]:
        """Yield changes until the server ends the watch. A line, or a long watch without a failure,
        resets the count of failures.
        """
        loop = asyncio.get_running_loop()
        begun_s, quiet = loop.time(), True
        seconds = max(1, round(self.api.settings.kube_watch_s * (1 + self.api.chance()) / 2))
        try:
            async with aclosing(
                self.api.watch_lines(self.path, self._watch_query(seconds), seconds)
            ) as lines:
                async for raw in lines:
                    event = self._parse_line(msgspec.json.decode(raw, type=WatchLine))
                    quiet, self.failures = False, 0
                    if event:
                        yield event
        finally:
            lasted_s = loop.time() - begun_s
            self.failures = 0 if lasted_s > self.api.settings.kube_retry_max_s else self.failures
        if quiet and lasted_s < SHORT_S:
            raise WatchTooShort("the watch ended at once")

    def _watch_query(self, seconds: int) -> dict[str, str]:
        begin = {"resourceVersion": self.revision or "", "timeoutSeconds": str(seconds)}
        return {**self.query, **begin, "watch": "true", "allowWatchBookmarks": "true"}

    def _parse_line(self, line: WatchLine) -> Event[Fact] | None:
        """Return the event of a line. A malformed deleted object needs a new list, to know what is
        left.
        """
        if line.type == "ERROR":
            raise api_error(0, bytes(line.object))
        fact = (
            None
            if line.type == "BOOKMARK"
            else self._readable(line.object, gone=line.type == "DELETED")
        )
        seen = (
            msgspec.json.decode(line.object, type=Versioned).metadata.resource_version
            or self.revision
            or ""
        )
        self.revision = seen
        if fact is None:
            return None
        return Deleted(fact, seen) if line.type == "DELETED" else Changed(fact, seen)

    def _readable(self, raw: msgspec.Raw, gone: bool = False) -> Fact | None:
        try:
            return self.read(raw)
        except MalformedObject as error:
            log.warning("StrangeObject", path=self.path, error=str(error), object=bytes(raw)[:300])
            if gone:
                raise
            return None

    # ------------------------------------------------------------ failures

    async def _recover(self, error: Exception) -> None:
        self.failures += 1
        expired = isinstance(error, ApiError) and error.status == EXPIRED
        if self.failures > GOES_ON or not is_resumable(error):
            self.in_one_piece |= (
                expired and self.go_on != ""
            )  # pages may be forgotten faster than we read them
            self.revision = None
            self.found = []
            self.go_on = ""
        log.warning(
            "ReadingBroke",
            path=self.path,
            error=repr(error),
            again=self.revision is None,
            row=self.failures,
        )
        if self.failures >= AWAY and is_resumable(error):
            self.api.on_away(
                f"{self.path} could not be read {self.failures} times in a row: {error!r}"
            )
        wait_s = self.api.backoff_s(self.failures)
        await asyncio.sleep(0.0 if expired and self.failures == 1 else wait_s)


def is_resumable(error: Any) -> bool:
    """Return True if reading can continue where it was."""
    return (
        error.status in FOR_NOW
        if isinstance(error, ApiError)
        else isinstance(error, CONNECTION_ERRORS)
    )
