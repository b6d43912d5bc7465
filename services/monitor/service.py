"""The monitor's shell: see the cluster, say what is free and what quotas allow.

What was seen marks nodes for a recount; one loop recounts and publishes them, so that a burst of events about a node
is one fact and facts about a node leave in order. Nothing is said before nodes and pods have both been listed. Quotas
are marked by namespace, and published in the same way by a loop of their own: where they cannot be read, capacity is
told all the same.
"""

from __future__ import annotations

import asyncio
import random
import time

from services.monitor import measures
from services.monitor.facts import NodeFact, PodFact, node_fact, pod_fact
from services.monitor.picture import Picture
from services.monitor.quotas import Collection, Limits, Named, QuotaPicture, limit_range, quota
from services.monitor.recalling import recall
from shared import subjects
from shared.bus import Bus, Stale
from shared.kube import counting
from shared.kube.client import Api, connect
from shared.kube.reader import Event, Listed, Missed, Reader
from shared.kube.settings import KubeSettings
from shared.messages import CapacityChanged, Message, QuotaBound, QuotaChanged, TaskBounds
from shared.metrics import Measure, Meter

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
QUOTAS, LIMIT_RANGES = "/api/v1/resourcequotas", "/api/v1/limitranges"
HOLDING = {"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}
"""Pods that hold something: bound to a node, and not ended. No others are sent."""


class Settings(KubeSettings, frozen=True, kw_only=True):
    """`WEIR_MONITOR_<FIELD>`."""

    recall_parallel: int = 100  # at start: facts that were said before, asked for at once


class Monitor:
    def __init__(self, bus: Bus, picture: Picture, quotas: QuotaPicture, said: dict[str, int]) -> None:
        self.bus, self.picture, self.quotas = bus, picture, quotas
        self.said = said  # by subject: where the last fact lies that we know of
        self.marked: set[str] = set()
        self.marked_s: float | None = None  # since when, by a clock that only rises
        self.reaction = Meter(measures.REACTION)
        self.awake, self.nodes_known, self.pods_known = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.marked_namespaces = set(quotas.said)
        self.quotas_awake, self.quotas_known, self.ranges_known = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def on_node(self, event: Event[NodeFact]) -> None:
        if isinstance(event, Listed):
            self._mark(self.picture.see_nodes(event.facts, event.revision))
            self.nodes_known.set()
        elif isinstance(event, Missed):
            self._mark(self.picture.miss_node(event.fact, event.revision))
        else:
            self._mark(self.picture.see_node(event.fact, event.revision))

    def on_pod(self, event: Event[PodFact]) -> None:
        if isinstance(event, Listed):
            self._mark(self.picture.see_pods(event.facts, event.revision))
            self.pods_known.set()
        elif isinstance(event, Missed):
            self._mark(self.picture.miss_pod(event.fact, event.revision))
        else:
            self._mark(self.picture.see_pod(event.fact, event.revision))

    def on_quota(self, event: Event[Named[tuple[QuotaBound, ...]]]) -> None:
        self._on_limits(event, self.quotas.quotas, self.quotas_known)

    def on_limit_range(self, event: Event[Named[TaskBounds]]) -> None:
        self._on_limits(event, self.quotas.limit_ranges, self.ranges_known)

    def _on_limits(self, event: Event[Named[Limits]], there: Collection[Limits], known: asyncio.Event) -> None:
        self.quotas.revision = event.revision
        if isinstance(event, Listed):
            self.marked_namespaces |= there.see_all(event.facts)
            known.set()
        elif isinstance(event, Missed):
            self.marked_namespaces |= there.miss(event.fact)
        else:
            self.marked_namespaces |= there.see(event.fact)
        self.quotas_awake.set()

    def _mark(self, names: set[str]) -> None:
        self.marked |= names
        self.marked_s = time.monotonic() if self.marked_s is None else self.marked_s
        self.awake.set()

    async def watch_nodes(self, api: Api) -> None:
        async for event in Reader(api, NODES, node_fact).follow():
            self.on_node(event)

    async def watch_pods(self, api: Api) -> None:
        async for event in Reader(api, PODS, pod_fact, HOLDING).follow():
            self.on_pod(event)

    async def watch_quotas(self, api: Api) -> None:
        async for event in Reader(api, QUOTAS, quota).follow():
            self.on_quota(event)

    async def watch_limit_ranges(self, api: Api) -> None:
        async for event in Reader(api, LIMIT_RANGES, limit_range).follow():
            self.on_limit_range(event)

    async def say_changes(self) -> None:
        await self.nodes_known.wait()
        await self.pods_known.wait()
        while True:
            await self.awake.wait()
            self.awake.clear()
            marked, self.marked = self.marked, set()
            since_s, self.marked_s = self.marked_s, None
            fresh = self.picture.news(marked, time.time())
            await asyncio.gather(*(self.say(told) for told in fresh))
            if fresh and since_s is not None:
                self.reaction.observe(time.monotonic() - since_s)

    async def say_quota_changes(self) -> None:
        await self.quotas_known.wait()
        await self.ranges_known.wait()
        while True:
            await self.quotas_awake.wait()
            self.quotas_awake.clear()
            marked, self.marked_namespaces = self.marked_namespaces, set()
            await asyncio.gather(*(self.say(told) for told in self.quotas.news(marked, time.time())))

    async def say(self, told: Message) -> None:
        """On top of the last that we know of: so one who leads no longer cannot hide what is newer.

        Another may lie there although we lead (or none: facts age): we look, and the newest word is ours all the same.
        """
        subject = subjects.subject_of(told)
        while True:
            try:
                self.said[subject] = await self.bus.publish(told, expect_last=self.said.get(subject, 0))
                return
            except Stale:
                self.said[subject] = await self.bus.last_sequence(type(told), told.key())

    def measures(self) -> list[Measure]:
        return [*measures.capacity(self.picture.said.values()), self.reaction.measure()]


async def start(bus: Bus, settings: Settings) -> None:
    api = await connect(settings, "weir-monitor", random.random)
    bus.on_close(api.close)
    api.tells(bus.troubles)
    known = [
        *await recall(bus, settings.recall_parallel),
        *await recall(bus, settings.recall_parallel, QuotaChanged),
    ]
    nodes = Picture(heard.message for heard in known if isinstance(heard.message, CapacityChanged))
    quotas = QuotaPicture(heard.message for heard in known if isinstance(heard.message, QuotaChanged))
    sequences = {subjects.subject_of(heard.message): heard.sequence for heard in known}
    monitor = Monitor(bus, nodes, quotas, sequences)
    bus.vitals.need("the list of nodes", monitor.nodes_known.is_set)
    bus.vitals.need("the list of pods", monitor.pods_known.is_set)
    bus.vitals.tell("monitor", monitor.measures)
    bus.vitals.tell("kubernetes", lambda: counting.measures(api.requests))
    for work in (
        monitor.watch_nodes(api),
        monitor.watch_pods(api),
        monitor.watch_quotas(api),
        monitor.watch_limit_ranges(api),
        monitor.say_changes(),
        monitor.say_quota_changes(),
        api.report(),
    ):
        bus.spawn(work)
