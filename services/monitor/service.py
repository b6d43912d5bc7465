"""The monitor: watch the cluster, and publish free capacity, quotas and claims.

An event marks nodes for a recount. One loop recounts and publishes them, so that a burst of events
about a node is one fact, and facts about a node are published in order. Nothing is published before
nodes and pods have both been listed. Quotas and claims are marked by namespace, and published in
the same way by loops of their own: if they cannot be read, capacity is published all the same.
After the bus was away, it may have lost the last facts: the stored ones are read again, and
differences are published.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from services.monitor import capacity
from services.monitor.capacity import ClusterPicture
from services.monitor.facts import NodeFact, PodFact, node_fact, pod_fact
from services.monitor.namespaces import (
    ClaimPicture,
    Collection,
    F,
    NamespacedObject,
    NamespacePicture,
    QuotaPicture,
    Value,
    read_claim,
    read_limit_range,
    read_resource_quota,
    read_volume,
)
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage
from shared.bus.publisher import Stale
from shared.kube import client
from shared.kube.client import Api, Deleted, Event, Listed, ListWatch, connect_api
from shared.messages import CapacityChanged, ClaimsChanged, Message, QuotaChanged
from shared.runtime.config import KubeSettings
from shared.runtime.metrics import Measure, Meter

KINDS = 2


class NamespaceChanges(Generic[F]):
    """The changes of all namespaces, from two kinds of objects that are watched.

    A burst of events is one change. There are none before both kinds have been listed: half of the
    objects would look like a namespace that has lost the others.
    """

    def __init__(self, picture: NamespacePicture[F]) -> None:
        self.picture = picture
        self.marked = set(picture.published)
        self.awake = asyncio.Event()
        self.namespaces = set(picture.published)  # all that were ever marked
        self.listed = set[int]()  # the collections that are complete

    def restart_from(self, published: Iterable[F]) -> None:
        """Replace the published facts, and check every namespace again."""
        self.picture.restart_from(published)
        self._mark(self.namespaces | set(self.picture.published))

    def on_event(
        self, event: Event[NamespacedObject[Value]], collection: Collection[Value]
    ) -> None:
        self.picture.revision = event.revision
        if isinstance(event, Listed):
            self._mark(collection.replace_all(event.facts))
            self.listed.add(id(collection))
        elif isinstance(event, Deleted):
            self._mark(collection.remove(event.fact))
        else:
            self._mark(collection.update(event.fact))

    def _mark(self, namespaces: set[str]) -> None:
        self.marked |= namespaces
        self.namespaces |= namespaces
        self.awake.set()

    async def next(self) -> Sequence[F]:
        """Wait for changes, and return the facts that changed."""
        while True:
            await self.awake.wait()
            self.awake.clear()
            if len(self.listed) == KINDS:
                marked, self.marked = self.marked, set()
                return self.picture.take_changes(marked, time.time())


async def read_last_facts(
    bus: Bus, at_once: int, kind: type[Message] = CapacityChanged
) -> list[StoredMessage]:
    """Return the last fact of a kind about each node or namespace, so that a restart publishes only
    what has changed since. Unreadable facts are left out, and so published again.
    """
    info = await bus.retry_until_answered(
        lambda: bus.js.stream_info(subjects.FACTS, subjects_filter=subjects.pattern(kind))
    )
    prefix = subjects.pattern(kind, "")
    keys = [subject.removeprefix(prefix) for subject in info.state.subjects or {}]
    facts: list[StoredMessage] = []
    for begin in range(0, len(keys), at_once):
        requests = [bus.last_message(kind, key) for key in keys[begin : begin + at_once]]
        facts += filter(None, await asyncio.gather(*requests))
    return facts


NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
QUOTAS, LIMIT_RANGES = "/api/v1/resourcequotas", "/api/v1/limitranges"
CLAIMS, VOLUMES = "/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"
HOLDING = {"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}
"""Selects the pods that hold resources: bound to a node, and not ended. The server sends no others.
"""

M = TypeVar("M", bound=Message)
PUBLISHED = (CapacityChanged, QuotaChanged, ClaimsChanged)


class Settings(KubeSettings, frozen=True, kw_only=True):
    """`WEIR_MONITOR_<FIELD>`."""

    recall_parallel: int = 100  # at start: stored facts that are read at once


def messages_of(kind: type[M], stored: Iterable[StoredMessage]) -> list[M]:
    """Return the messages of one kind."""
    return [each.message for each in stored if isinstance(each.message, kind)]


def last_sequences(stored: Iterable[StoredMessage]) -> dict[str, int]:
    """Return, by subject, the sequence of the last known fact."""
    return {subjects.subject_of(each.message): each.sequence for each in stored}


async def read_all_last_facts(bus: Bus, at_once: int) -> list[StoredMessage]:
    """Return the last facts of all nodes, and of the quotas and claims of all namespaces."""
    facts: list[StoredMessage] = []
    for kind in PUBLISHED:
        facts += await read_last_facts(bus, at_once, kind)
    return facts


class Monitor:
    def __init__(
        self, bus: Bus, known: Sequence[StoredMessage] = (), recall_parallel: int = 1
    ) -> None:
        self.bus = bus
        self.recall_parallel = recall_parallel
        self.picture = ClusterPicture(messages_of(CapacityChanged, known))
        self.quota_picture = QuotaPicture(messages_of(QuotaChanged, known))
        self.quotas = NamespaceChanges(self.quota_picture)
        self.claim_picture = ClaimPicture(messages_of(ClaimsChanged, known))
        self.claims = NamespaceChanges(self.claim_picture)
        self.last_sequences = last_sequences(known)
        self.bus_was_away = False  # then it may have lost the last facts
        self.marked: set[str] = set()
        self.marked_s: float | None = None  # since when, by the monotonic clock
        self.reaction = Meter(capacity.REACTION)
        self.awake = asyncio.Event()
        self.nodes_known = asyncio.Event()
        self.pods_known = asyncio.Event()

    def restart_from(self, stored: list[StoredMessage]) -> None:
        """Replace the published facts, and check every node and namespace again."""
        self.last_sequences = last_sequences(stored)
        self._mark(self.picture.restart_from(messages_of(CapacityChanged, stored)))
        self.quotas.restart_from(messages_of(QuotaChanged, stored))
        self.claims.restart_from(messages_of(ClaimsChanged, stored))

    def on_bus_reconnect(self) -> None:
        self.bus_was_away = True
        self.awake.set()

    def on_node(self, event: Event[NodeFact]) -> None:
        if isinstance(event, Listed):
            self._mark(self.picture.replace_nodes(event.facts, event.revision))
            self.nodes_known.set()
        elif isinstance(event, Deleted):
            self._mark(self.picture.remove_node(event.fact, event.revision))
        else:
            self._mark(self.picture.update_node(event.fact, event.revision))

    def on_pod(self, event: Event[PodFact]) -> None:
        if isinstance(event, Listed):
            self._mark(self.picture.replace_pods(event.facts, event.revision))
            self.pods_known.set()
        elif isinstance(event, Deleted):
            self._mark(self.picture.remove_pod(event.fact, event.revision))
        else:
            self._mark(self.picture.update_pod(event.fact, event.revision))

    def _mark(self, names: set[str]) -> None:
        self.marked |= names
        if self.marked_s is None:
            self.marked_s = time.monotonic()
        self.awake.set()

    async def watch_nodes(self, api: Api) -> None:
        async for event in ListWatch(api, NODES, node_fact).follow():
            self.on_node(event)

    async def watch_pods(self, api: Api) -> None:
        async for event in ListWatch(api, PODS, pod_fact, HOLDING).follow():
            self.on_pod(event)

    async def watch_quotas(self, api: Api) -> None:
        collection = self.quota_picture.quotas
        async for event in ListWatch(api, QUOTAS, read_resource_quota).follow():
            self.quotas.on_event(event, collection)

    async def watch_limit_ranges(self, api: Api) -> None:
        collection = self.quota_picture.limit_ranges
        async for event in ListWatch(api, LIMIT_RANGES, read_limit_range).follow():
            self.quotas.on_event(event, collection)

    async def watch_claims(self, api: Api) -> None:
        collection = self.claim_picture.claims
        async for event in ListWatch(api, CLAIMS, read_claim).follow():
            self.claims.on_event(event, collection)

    async def watch_volumes(self, api: Api) -> None:
        collection = self.claim_picture.volumes
        async for event in ListWatch(api, VOLUMES, read_volume).follow():
            self.claims.on_event(event, collection)

    async def publish_changes(self) -> None:
        await self.nodes_known.wait()
        await self.pods_known.wait()
        while True:
            await self.awake.wait()
            self.awake.clear()
            if self.bus_was_away:
                self.bus_was_away = False
                self.restart_from(await read_all_last_facts(self.bus, self.recall_parallel))
            marked, self.marked = self.marked, set()
            since_s, self.marked_s = self.marked_s, None
            changes = self.picture.take_changes(marked, time.time())
            await asyncio.gather(*map(self.publish_fact, changes))
            if changes and since_s is not None:
                self.reaction.observe(time.monotonic() - since_s)

    async def publish_namespaces(self, changes: NamespaceChanges[Any]) -> None:
        while True:
            await asyncio.gather(*map(self.publish_fact, await changes.next()))

    async def publish_fact(self, fact: Message) -> None:
        """Publish a fact on top of the last known one of its subject, so that a monitor that leads
        no longer cannot replace a newer fact.

        Another fact may be there although this monitor leads, or none, because facts age. Then read
        the sequence and publish again: the newest fact is this one in any case.
        """
        subject = subjects.subject_of(fact)
        while True:
            expected = self.last_sequences.get(subject, 0)
            try:
                self.last_sequences[subject] = await self.bus.publish(fact, expect_last=expected)
                return
            except Stale:
                last = await self.bus.last_sequence(type(fact), fact.key())
                self.last_sequences[subject] = last

    def measures(self) -> list[Measure]:
        return [
            *capacity.capacity_measures(self.picture.published.values()),
            self.reaction.measure(),
        ]


async def start(bus: Bus, settings: Settings) -> None:
    api = await connect_api(settings, "weir-monitor", random.random)
    bus.on_close(api.close)
    api.report_to(bus.incidents)
    monitor = Monitor(
        bus, await read_all_last_facts(bus, settings.recall_parallel), settings.recall_parallel
    )
    bus.on_reconnect.add(monitor.on_bus_reconnect)
    bus.health.require("the list of nodes", monitor.nodes_known.is_set)
    bus.health.require("the list of pods", monitor.pods_known.is_set)
    bus.health.add_source("monitor", monitor.measures)
    bus.health.add_source("kubernetes", lambda: client.request_measures(api.requests))
    for work in (
        monitor.watch_nodes(api),
        monitor.watch_pods(api),
        monitor.watch_quotas(api),
        monitor.watch_limit_ranges(api),
        monitor.watch_claims(api),
        monitor.watch_volumes(api),
        monitor.publish_changes(),
        monitor.publish_namespaces(monitor.quotas),
        monitor.publish_namespaces(monitor.claims),
        api.log_requests(),
    ):
        bus.spawn(work)
