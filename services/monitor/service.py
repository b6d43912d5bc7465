"""The monitor's shell: see the cluster, say what is free.

What was seen marks nodes for a recount; one loop recounts and publishes them, so that a burst of events about a node
is one fact and facts about a node leave in order. Nothing is said before nodes and pods have both been listed.
"""

from __future__ import annotations

import asyncio
import random
import time

from services.monitor import measures
from services.monitor.facts import NodeFact, PodFact, node_fact, pod_fact
from services.monitor.picture import Picture
from services.monitor.recalling import recall
from shared.bus import Bus, Stale
from shared.kube import counting
from shared.kube.client import Api, connect
from shared.kube.reader import Event, Listed, Missed, Reader
from shared.kube.settings import KubeSettings
from shared.messages import CapacityChanged
from shared.metrics import Measure, Meter

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
HOLDING = {"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}
"""Pods that hold something: bound to a node, and not ended. No others are sent."""


class Settings(KubeSettings, frozen=True, kw_only=True):
    """`WEIR_MONITOR_<FIELD>`."""

    recall_parallel: int = 100  # at start: facts that were said before, asked for at once


class Monitor:
    def __init__(self, bus: Bus, picture: Picture, said: dict[str, int]) -> None:
        self.bus, self.picture = bus, picture
        self.said = said  # by key: where the last fact lies that we know of
        self.marked: set[str] = set()
        self.marked_s: float | None = None  # since when, by a clock that only rises
        self.reaction = Meter(measures.REACTION)
        self.awake, self.nodes_known, self.pods_known = asyncio.Event(), asyncio.Event(), asyncio.Event()

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

    async def say(self, told: CapacityChanged) -> None:
        """On top of the last that we know of: so one who leads no longer cannot hide what is newer.

        Another may lie there although we lead (or none: facts age): we look, and the newest word is ours all the same.
        """
        key = told.key()
        while True:
            try:
                self.said[key] = await self.bus.publish(told, expect_last=self.said.get(key, 0))
                return
            except Stale:
                self.said[key] = await self.bus.last_sequence(CapacityChanged, key)

    def measures(self) -> list[Measure]:
        return [*measures.capacity(self.picture.said.values()), self.reaction.measure()]


async def start(bus: Bus, settings: Settings) -> None:
    api = await connect(settings, "weir-monitor", random.random)
    bus.on_close(api.close)
    api.tells(bus.troubles)
    known = await recall(bus, settings.recall_parallel)
    told = [heard.message for heard in known if isinstance(heard.message, CapacityChanged)]
    monitor = Monitor(bus, Picture(told), {heard.message.key(): heard.sequence for heard in known})
    bus.vitals.need("the list of nodes", monitor.nodes_known.is_set)
    bus.vitals.need("the list of pods", monitor.pods_known.is_set)
    bus.vitals.tell("monitor", monitor.measures)
    bus.vitals.tell("kubernetes", lambda: counting.measures(api.requests))
    for work in (monitor.watch_nodes(api), monitor.watch_pods(api), monitor.say_changes(), api.report()):
        bus.spawn(work)
