"""The kubelet's main loop: hears of pods on its nodes, asks `rules.order_for`, and does as told."""

import asyncio

import structlog

from services.local.happenings import WARNING
from services.local.journal import DELETED
from services.local.kubelet import kept_logs, rules, status
from services.local.kubelet.pod import COMPONENT, PodLife
from services.local.kubelet.rules import Order
from services.local.kubelet.world import World
from services.local.objects.bodies import (
    Body,
    meta,
    name_of,
    namespace_of,
    node_of,
    uid_of,
    with_condition,
)
from services.local.objects.kinds import NODE, POD
from services.local.telling import tell

log = structlog.get_logger()


class Kubelet:
    def __init__(self, world: World, nodes: set[str]) -> None:
        self.world, self.nodes = world, nodes
        self.position = world.store.revision
        self.lives: dict[str, PodLife] = {}  # by uid
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.deferred: set[str] = set()  # uids of pods that wait to be resized

    async def run(self) -> None:
        journal = self.world.store.journal(POD)
        while True:
            news = journal.news
            seen = self.world.store.revision
            for change in journal.after(self.position):
                if node_of(change.after.body) in self.nodes:
                    self.react(change.after.body, change.verb == DELETED)
            self.position = seen
            await news.wait()

    def react(self, pod: Body, gone: bool) -> None:
        latest = pod if gone else self.world.store.find(POD, namespace_of(pod), name_of(pod))
        if latest is None or uid_of(latest) != uid_of(pod):
            return  # its end is a later change
        life = self.lives.get(uid_of(pod))
        order = rules.order_for(latest, gone, life is not None, life.granted if life else {})
        {
            Order.START: self.start,
            Order.STOP: self.stop,
            Order.KILL: self.kill,
            Order.RESIZE: self.resize,
            Order.TAKE_AWAY: self.take_away,
            Order.NOTHING: self.leave,
        }[order](latest)

    def leave(self, pod: Body) -> None:
        """Nothing to do."""

    def start(self, pod: Body) -> None:
        if why := rules.why_not_started(pod, self.free_for(pod)):
            self.refuse(pod, why)
            return
        life = self.lives[uid_of(pod)] = PodLife(self.world, pod)
        task = self.tasks[uid_of(pod)] = asyncio.create_task(life.live())
        task.add_done_callback(lambda done: self.ended(pod, done))

    def refuse(self, pod: Body, why: str) -> None:
        lacks = f"Node didn't have enough resource: {why.removeprefix('OutOf')}"
        message = "Sidecar containers are not run here" if why == rules.NO_SIDECARS else lacks
        tell(self.world.store, pod, COMPONENT, WARNING, why, message)
        self.world.store.update(
            POD, status.failed(pod, why, f"Pod was rejected: {message}", self.world.store.clock())
        )

    def ended(self, pod: Body, task: asyncio.Task[None]) -> None:
        self.lives.pop(uid_of(pod), None)
        self.tasks.pop(uid_of(pod), None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("PodLifeBroke", pod=name_of(pod), exc_info=error)
        kept_logs.prune(self.world.logs, self.lives)

    def stop(self, pod: Body) -> None:
        self.lives[uid_of(pod)].stop(float(meta(pod).get("deletionGracePeriodSeconds") or 0))

    def kill(self, pod: Body) -> None:
        self.lives[uid_of(pod)].kill()

    def take_away(self, pod: Body) -> None:
        self.world.store.finish(POD, pod)

    def free_for(self, pod: Body) -> dict[str, int]:
        node = self.world.store.find(NODE, "", node_of(pod)) or {}
        return rules.free_for(pod, node, self.world.store.bodies(POD))

    # ---- resizing in place

    def resize(self, pod: Body) -> None:
        node = self.world.store.find(NODE, "", node_of(pod)) or {}
        why = rules.why_not_resized(pod, node, self.free_for(pod))
        if not why:
            self.deferred.discard(uid_of(pod))
            self.lives[uid_of(pod)].resize(pod)
            return
        self.deferred.add(uid_of(pod))
        message = "Node didn't have enough resource"
        self.world.store.update(
            POD,
            with_condition(pod, self.world.store.now(), "PodResizePending", "True", why, message),
        )

    def retry_deferred(self) -> None:
        for uid in list(self.deferred):
            life = self.lives.get(uid)
            current = life.current() if life else None
            self.deferred.discard(uid)
            if current is not None:
                self.react(current, gone=False)

    # ---- the end of the cluster

    async def stop_all(self) -> None:
        tasks = list(self.tasks.values())
        for life in list(self.lives.values()):
            life.shut_down(self.world.settings.shutdown_s)
        if tasks:
            await asyncio.wait(tasks, timeout=self.world.settings.shutdown_s + 1)
