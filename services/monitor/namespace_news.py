"""What is new of all namespaces, from two kinds of objects that are watched. Edge.

A burst of events is one look, and nothing is new before both kinds have been listed: half a picture
would say that a namespace has lost what the other kind still has to tell of.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from services.monitor.collection import Collection, Named, Said
from shared.kube.watch import Event, Listed, Missed
from shared.messages import Message

KINDS = 2


class NamespacePicture(Protocol):
    """What is known of every namespace, and what was last said of it."""

    revision: str

    @property
    def said(self) -> Mapping[str, Message]: ...
    def begin_from(self, said: Iterable[Any]) -> None: ...
    def news(self, namespaces: Iterable[str], now: float) -> Sequence[Message]: ...


P = TypeVar("P", bound=NamespacePicture)


class NamespaceNews(Generic[P]):
    def __init__(self, picture: P) -> None:
        self.picture = picture
        self.marked, self.awake = set(picture.said), asyncio.Event()
        self.namespaces = set(picture.said)  # all that were ever marked
        self.listed = set[int]()  # the collections of which all objects are known

    def begin_from(self, said: Iterable[Message]) -> None:
        """Take these for what was said, and look at every namespace again."""
        self.picture.begin_from(said)
        self._mark(self.namespaces | set(self.picture.said))

    def on_event(self, event: Event[Named[Said]], there: Collection[Said]) -> None:
        self.picture.revision = event.revision
        if isinstance(event, Listed):
            self._mark(there.see_all(event.facts))
            self.listed.add(id(there))
        elif isinstance(event, Missed):
            self._mark(there.miss(event.fact))
        else:
            self._mark(there.see(event.fact))

    def _mark(self, namespaces: set[str]) -> None:
        self.marked |= namespaces
        self.namespaces |= namespaces
        self.awake.set()

    async def next(self) -> Sequence[Message]:
        """Wait for a change."""
        while True:
            await self.awake.wait()
            self.awake.clear()
            if len(self.listed) == KINDS:
                marked, self.marked = self.marked, set()
                return self.picture.news(marked, time.time())
