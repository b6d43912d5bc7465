"""The edge to Kubernetes: list, then watch, for ever.

Promises. `Cluster.follow` yields everything of a kind as `Listed`, then each change as `Seen` or `Missed`, in order.
Whatever breaks that order (410 Expired, also as an ERROR event inside a stream; a protocol error; a refused
connection) ends in a new `Listed`. Quiet streams are renewed from where they were. An object that cannot be read is
logged and left out, as if nothing had been said of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic

import aiohttp
import msgspec
import structlog
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from services.monitor.facts import (
    Fact,
    Listing,
    NodeFact,
    NodeObject,
    PodFact,
    PodObject,
    Status,
    Strange,
    Versioned,
    WatchEvent,
    read,
)

log = structlog.get_logger()

GONE = 410
UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
Call = Callable[..., Awaitable[aiohttp.ClientResponse]]


@dataclass(frozen=True)
class Listed(Generic[Fact]):
    facts: tuple[Fact, ...]
    revision: str


@dataclass(frozen=True)
class Seen(Generic[Fact]):
    fact: Fact
    revision: str


@dataclass(frozen=True)
class Missed(Generic[Fact]):
    fact: Fact
    revision: str


Event = Listed[Fact] | Seen[Fact] | Missed[Fact]


class Expired(Exception):
    """The server no longer knows the revision that we would go on from."""


class Refused(Exception):
    """The server said no, for now."""


@dataclass(frozen=True)
class Timers:
    retry_s: float = 1.0
    watch_s: int = 300
    silence_s: float = 30.0
    page: int = 500


async def connect(kube_url: str, kubeconfig: str) -> Any:
    """A client: of a plain URL, of a kubeconfig file, or as the environment says (default file, then in-cluster)."""
    if kube_url:
        return client.ApiClient(client.Configuration(host=kube_url))
    chosen = client.Configuration()
    await config.load_config(client_configuration=chosen, **({"config_file": kubeconfig} if kubeconfig else {}))
    return client.ApiClient(chosen)


class Cluster:
    """Nodes and pods, as facts."""

    def __init__(self, api: Any, timers: Timers) -> None:
        self.core, self.timers = client.CoreV1Api(api), timers

    def nodes(self) -> AsyncIterator[Event[NodeFact]]:
        return self._follow(self.core.list_node_without_preload_content, NodeObject)

    def pods(self) -> AsyncIterator[Event[PodFact]]:
        return self._follow(self.core.list_pod_for_all_namespaces_without_preload_content, PodObject)

    async def _follow(self, call: Call, shape: Any) -> AsyncIterator[Event[Any]]:
        while True:
            try:
                listed = await self._list(call, shape)
                yield listed
                async for event in self._watch(call, shape, listed.revision):
                    yield event
            except (Expired, aiohttp.ClientPayloadError):
                log.info("ListsAgain", kind=shape.__name__)
            except (Refused, ApiException, aiohttp.ClientError, OSError, TimeoutError, *UNREADABLE) as error:
                log.warning("KubernetesAway", kind=shape.__name__, error=repr(error))
                await asyncio.sleep(self.timers.retry_s)

    async def _list(self, call: Call, shape: Any) -> Listed[Any]:
        """Page by page, so that the objects of a large cluster are never in memory all at once."""
        facts: list[Any] = []
        decoder = msgspec.json.Decoder(Listing)
        resume: dict[str, str] = {}
        while True:
            response = await call(limit=self.timers.page, _request_timeout=self.timers.silence_s, **resume)
            async with response:
                page = decoder.decode(_checked(response.status, await response.read()))
            facts += [fact for item in page.items or () if (fact := _readable(item, shape))]
            if not page.metadata.continue_:
                return Listed(tuple(facts), page.metadata.resource_version or "")
            resume = {"_continue": page.metadata.continue_}

    async def _watch(self, call: Call, shape: Any, revision: str) -> AsyncIterator[Event[Any]]:
        while True:
            response = await call(
                watch=True,
                resource_version=revision,
                allow_watch_bookmarks=True,
                timeout_seconds=self.timers.watch_s,
                _request_timeout=self.timers.watch_s + self.timers.silence_s,
            )
            async with response:
                if response.status != 200:
                    _checked(response.status, await response.read())
                async for line in _lines(response.content):
                    event = msgspec.json.decode(line, type=WatchEvent)
                    if event.type == "ERROR":
                        _checked(msgspec.json.decode(event.object, type=Status).code, bytes(event.object))
                    revision = msgspec.json.decode(event.object, type=Versioned).metadata.resource_version or revision
                    if event.type == "BOOKMARK":
                        continue
                    fact = _readable(event.object, shape)
                    if event.type == "DELETED":
                        yield Missed(_known(fact), revision)
                    elif fact:
                        yield Seen(fact, revision)


def _readable(raw: msgspec.Raw, shape: Any) -> Any:
    """The fact; None, and a line in the log, for an object that is none."""
    try:
        return read(raw, shape)
    except Strange as error:
        log.warning("StrangeObject", kind=shape.__name__, error=str(error), object=bytes(raw)[:300])
        return None


def _known(fact: Any) -> Any:
    """What is gone must be forgotten: where we cannot read what it was, only a new list tells."""
    if fact is None:
        raise Expired
    return fact


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines of any length, as soon as each is there."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line


def _checked(status: int, body: bytes) -> bytes:
    if status == GONE:
        raise Expired
    if status != 200:
        raise Refused(f"{status}: {body[:300].decode(errors='replace')}")
    return body
