"""The monitor's shell: see the cluster, say what is free.

What was seen marks nodes for a recount; one loop recounts and publishes them, so that a burst of events about a node
is one fact and facts about a node leave in order. Nothing is said before nodes and pods have both been listed.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from services.monitor import kube
from services.monitor.facts import NodeFact, PodFact
from services.monitor.kube import Cluster, Event, Listed, Missed
from services.monitor.picture import Picture
from shared import config, subjects
from shared.bus import Bus
from shared.messages import CapacityChanged


class Settings(config.Common, frozen=True, kw_only=True):
    """Where the cluster is, and how patient to be with it."""

    kube_url: str = ""
    """Plain URL of the API (a stand-in, or a proxy); empty: `kubeconfig`."""
    kubeconfig: str = ""
    """A kubeconfig file; empty: the default file, else the pod's own account."""
    retry_s: float = 1.0
    """Wait after a refused or broken connection."""
    watch_s: int = 300
    """A watch is renewed after this time."""
    silence_s: float = 30.0
    """A page of a list, or a watch beyond its time, is given up after so long."""
    page: int = 500
    """Objects in one page of a list."""
    recall_parallel: int = 100
    """At start: facts that were said before, asked for at once."""


class Monitor:
    def __init__(self, bus: Bus, picture: Picture) -> None:
        self.bus, self.picture = bus, picture
        self.marked: set[str] = set()
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
        self.awake.set()

    async def live(self, api: Any, timers: kube.Timers) -> None:
        async with api:
            cluster = Cluster(api, timers)
            await asyncio.gather(self.watch_nodes(cluster), self.watch_pods(cluster), self.say_changes())

    async def watch_nodes(self, cluster: Cluster) -> None:
        async for event in cluster.nodes():
            self.on_node(event)

    async def watch_pods(self, cluster: Cluster) -> None:
        async for event in cluster.pods():
            self.on_pod(event)

    async def say_changes(self) -> None:
        await self.nodes_known.wait()
        await self.pods_known.wait()
        while True:
            await self.awake.wait()
            self.awake.clear()
            marked, self.marked = self.marked, set()
            fresh = self.picture.news(marked, time.time())
            await asyncio.gather(*(self.bus.publish(told) for told in fresh))


async def recall(bus: Bus, at_once: int) -> list[CapacityChanged]:
    """The last fact said of each node, so that a restart tells only what changed while nobody looked.

    A node whose last fact cannot be read is told anew.
    """
    info = await bus.js.stream_info(subjects.FACTS, subjects_filter=subjects.pattern(CapacityChanged))
    keys = [subject.removeprefix(subjects.pattern(CapacityChanged, "")) for subject in info.state.subjects or {}]
    told: list[CapacityChanged] = []
    for begin in range(0, len(keys), at_once):
        heard = await asyncio.gather(*(bus.last(CapacityChanged, key) for key in keys[begin : begin + at_once]))
        told += [h.message for h in heard if h and isinstance(h.message, CapacityChanged)]
    return told


async def start(bus: Bus, settings: Settings) -> None:
    timers = kube.Timers(settings.retry_s, settings.watch_s, settings.silence_s, settings.page)
    monitor = Monitor(bus, Picture(await recall(bus, settings.recall_parallel)))
    bus.spawn(monitor.live(await kube.connect(settings.kube_url, settings.kubeconfig), timers))
