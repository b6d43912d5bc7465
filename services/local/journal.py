"""What happened, in order: the memory behind every watch.

One `Journal` a kind. A change is kept once, with the bytes it has on the wire, which are made once
for all watchers. A watcher is no queue but a position: it reads what came since, and sleeps on
`news`. So five hundred watchers cost nothing while nothing happens, and a slow one holds nobody up:
if the journal has forgotten the revision after which it wants to read, it is told so (410 Expired)
and lists again, just as behind a real API server.
"""

import asyncio
from bisect import bisect_right
from collections import deque

import msgspec

from services.local.objects.bodies import Body, with_meta
from services.local.objects.refusals import expired
from services.local.objects.selection import Match

KEPT_S = 300.0
"""`etcd-compaction-interval` of a kube-apiserver."""

encode = msgspec.json.Encoder().encode

ADDED = "ADDED"
MODIFIED = "MODIFIED"
DELETED = "DELETED"
BOOKMARK = "BOOKMARK"
ERROR = "ERROR"


class Stored:
    """One version of one object, and its bytes, made when first asked for."""

    __slots__ = ("_encoded", "body", "revision")

    def __init__(self, body: Body, revision: int) -> None:
        self.body, self.revision = body, revision
        self._encoded: bytes | None = None

    @property
    def encoded(self) -> bytes:
        if self._encoded is None:
            self._encoded = encode(self.body)
        return self._encoded


def line_of(verb: str, encoded: bytes) -> bytes:
    return b'{"type":"' + verb.encode() + b'","object":' + encoded + b"}\n"


class Change:
    __slots__ = ("_lines", "after", "before", "revision", "verb")

    def __init__(self, verb: str, before: Stored | None, after: Stored) -> None:
        self.verb = verb
        self.before = before
        self.after = after
        self.revision = after.revision
        self._lines: dict[str, bytes] = {}

    def seen_by(self, match: Match) -> str | None:
        """What a watcher with this selector should be told, if anything."""
        was = self.before is not None and match(self.before.body)
        fits = match(self.after.body)
        if self.verb == DELETED:
            return DELETED if was or fits else None
        if was and fits:
            return MODIFIED
        return ADDED if fits else DELETED if was else None

    def shown(self, verb: str) -> Body:
        """An object that stopped matching is shown as it last matched, at the revision of the
        change.
        """
        if verb == DELETED != self.verb and self.before is not None:
            return with_meta(self.before.body, resourceVersion=str(self.revision))
        return self.after.body

    def line(self, verb: str) -> bytes:
        if verb not in self._lines:
            body = self.shown(verb)
            self._lines[verb] = line_of(
                verb, self.after.encoded if body is self.after.body else encode(body)
            )
        return self._lines[verb]


class Journal:
    """Changes are forgotten when they are older than `KEPT_S`, as etcd is compacted, or too
    many.
    """

    def __init__(self, since: int, length: int) -> None:
        self.floor = since  # changes up to and including this revision are forgotten
        self.changes: deque[Change] = deque()
        self.written_s: deque[float] = deque()
        self.length = length
        self.news = asyncio.Event()

    def append(self, change: Change, now_s: float) -> None:
        self.changes.append(change)
        self.written_s.append(now_s)
        while len(self.changes) > self.length or self.written_s[0] < now_s - KEPT_S:
            self.written_s.popleft()
            self.floor = self.changes.popleft().revision
        told, self.news = self.news, asyncio.Event()
        told.set()

    def after(self, revision: int) -> list[Change]:
        """Every change later than this revision; raises Expired if some are forgotten."""
        if revision < self.floor:
            raise expired(revision, self.floor)
        if not self.changes or self.changes[-1].revision <= revision:
            return []
        start = bisect_right(self.changes, revision, key=lambda change: change.revision)
        return (
            [self.changes[index] for index in range(start, len(self.changes))]
            if start
            else list(self.changes)
        )
