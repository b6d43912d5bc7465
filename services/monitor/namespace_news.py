"""What is new of all namespaces, from two kinds of objects that are watched. Edge.

A burst of events is one look, and nothing is new before both kinds have been listed: half a picture would say that a
namespace has lost what the other kind still has to tell of.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from services.monitor.collection import Collection, Named, Said
from shared.kube.reader import Event, Listed, Missed
from shared.messages import Message

KINDS = 2


class NamespacePicture(Protocol):
    """What is known of every namespace, and what was last said of it."""

    revision: str

    @property
    def said(self) -> Mapping[str, Message]: ...
    def news(self, namespaces: Iterable[str], now: float) -> Sequence[Message]: ...


P = TypeVar("P", bound=NamespacePicture)


class NamespaceNews(Generic[P]):
    def __init__(self, picture: P) -> None:
        self.picture = picture
        self.marked, self.awake = set(picture.said), asyncio.Event()
        self.listed = set[int]()  # the collections of which all objects are known

    def on_event(self, event: Event[Named[Said]], there: Collection[Said]) -> None:
        self.picture.revision = event.revision
        if isinstance(event, Listed):
            self.marked |= there.see_all(event.facts)
            self.listed.add(id(there))
        elif isinstance(event, Missed):
            self.marked |= there.miss(event.fact)
        else:
            self.marked |= there.see(event.fact)
        self.awake.set()

    async def next(self) -> Sequence[Message]:
        """Wait for a change."""
        while True:
            await self.awake.wait()
            self.awake.clear()
            if len(self.listed) == KINDS:
                marked, self.marked = self.marked, set()
                return self.picture.news(marked, time.time())
