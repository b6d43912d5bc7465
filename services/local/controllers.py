"""What tidies up after everybody: ownership, namespaces, pods without a node, old events. They act
on the store as somebody with a client could, and decide nothing themselves: see `garbage.py`.

A node that its owner no longer reports on is found by its Ready condition alone: whoever simulates
a node writes that.
"""

import asyncio
from collections.abc import Iterable

import msgspec

from services.local import garbage
from services.local.journal import ADDED, DELETED, Change
from services.local.objects.bodies import (
    Body,
    is_leaving,
    meta,
    name_of,
    namespace_of,
    node_of,
    stamp,
    uid_of,
    with_meta,
    with_spec,
    with_status,
)
from services.local.objects.kinds import (
    ACCOUNT,
    EVENT,
    KINDS,
    NAMESPACE,
    NEW_EVENT,
    NODE,
    POD,
    QUOTA,
    Kind,
)
from services.local.objects.quotas import counted
from services.local.store import BEFORE_ALL, Deletion, Key, Store

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


class ControllerSettings(msgspec.Struct, frozen=True, kw_only=True):
    orphan_delay_s: float = 5.0  # how long a pod outlives its node's object
    event_life_s: float = 3600.0  # as in a real cluster
    sweep_s: float = 1.0  # between two looks at what only time changes


class Controllers:
    def __init__(self, store: Store, settings: ControllerSettings) -> None:
        self.store, self.settings = store, settings
        self.position = store.revision
        self.nodeless: dict[str, float] = {}  # pod uid -> since when its node is gone
        self.finishing: dict[str, tuple[Kind, Key]] = {}  # by uid: they leave, and have finalizers

    async def follow(self) -> None:
        while True:
            news = self.store.news
            self.catch_up()
            await news.wait()

    async def look(self) -> None:
        while True:
            self.sweep()
            await asyncio.sleep(self.settings.sweep_s)

    def catch_up(self) -> None:
        seen = self.store.revision
        for kind in KINDS:
            for change in (
                self.store.journal(kind).after(self.position) if kind is not NEW_EVENT else ()
            ):
                self.react(kind, change)
        self.position = seen
        if self.store.revision != seen:
            self.catch_up()

    def react(self, kind: Kind, change: Change) -> None:
        body = change.after.body
        if change.verb == DELETED:
            self.owner_gone(body)
        elif change.verb == ADDED and garbage.is_garbage(body, self.is_alive):
            self.take(kind, body)
        if is_leaving(body) and meta(body).get("finalizers") and change.verb != DELETED:
            self.finishing[uid_of(body)] = (kind, (namespace_of(body), name_of(body)))
        if "foregroundDeletion" in (meta(body).get("finalizers") or []) and is_leaving(body):
            self.take_dependents_first(kind, body)
        if kind in (POD, QUOTA):
            self.count_quotas(namespace_of(body))
        if kind is POD and change.verb != DELETED and self.lacks_node(body):
            self.nodeless.setdefault(uid_of(body), self.store.clock())
        if kind is NODE and change.verb == DELETED:
            pods = (pod for pod in self.store.bodies(POD) if node_of(pod) == name_of(body))
            self.nodeless |= {uid_of(pod): self.store.clock() for pod in pods}
        if kind is NAMESPACE and change.verb == ADDED:
            self.furnish(name_of(body))

    def count_quotas(self, namespace: str) -> None:
        for quota in self.store.stored(QUOTA, namespace):
            self.store.update(
                QUOTA, counted(quota.body, (pod.body for pod in self.store.stored(POD, namespace)))
            )

    def is_alive(self, uid: str) -> bool:
        return uid in self.store.alive

    def take(self, kind: Kind, body: Body) -> None:
        current = self.store.find(kind, namespace_of(body), name_of(body))
        if current is not None and uid_of(current) == uid_of(body) and not is_leaving(current):
            self.store.delete(kind, namespace_of(body), name_of(body), Deletion())

    def owner_gone(self, owner: Body) -> None:
        for kind, body in self.store.dependents(uid_of(owner)):
            if garbage.is_garbage(body, self.is_alive):
                self.take(kind, body)

    def take_dependents_first(self, kind: Kind, owner: Body) -> None:
        for dependent, body in self.store.dependents(uid_of(owner)):
            self.take(dependent, body)

    # ---- what only time changes

    def sweep(self) -> None:
        self.finish_namespaces()
        self.finish_foreground()
        self.take_nodeless_pods()
        self.forget_events()

    def finish_namespaces(self) -> None:
        for namespace in [body for body in self.store.bodies(NAMESPACE) if is_leaving(body)]:
            name = name_of(namespace)
            contents = [
                (k, s.body)
                for k in KINDS
                if k.namespaced and k is not NEW_EVENT
                for s in self.store.stored(k, name)
            ]
            for kind, body in contents:
                self.take(kind, body)
            if not any(self.store.stored(k, name) for k in KINDS if k.namespaced):
                self.store.change(
                    NAMESPACE, "", name, lambda body: with_spec(body, finalizers=None)
                )

    def finish_foreground(self) -> None:
        for uid, (kind, key) in list(self.finishing.items()):
            body = self.store.find(kind, *key)
            if body is None or uid_of(body) != uid:
                del self.finishing[uid]
                continue
            left = [f for f in meta(body).get("finalizers") or () if f != "foregroundDeletion"]
            if left != meta(body).get("finalizers") and not self.store.dependents(uid):
                self.store.update(kind, with_meta(body, finalizers=left or None))

    def lacks_node(self, pod: Body) -> bool:
        return bool(node_of(pod)) and self.store.find(NODE, "", node_of(pod)) is None

    def take_nodeless_pods(self) -> None:
        for uid, since_s in list(self.nodeless.items()):
            kind, key = self.store.alive.get(uid, (POD, BEFORE_ALL))
            pod = self.store.find(kind, *key)
            if pod is None or not self.lacks_node(pod):
                del self.nodeless[uid]
            elif self.store.clock() - since_s >= self.settings.orphan_delay_s:
                self.take_by_force(pod)

    def take_by_force(self, pod: Body) -> None:
        if not is_leaving(pod):
            self.store.update(
                POD,
                with_status(
                    pod, phase="Failed", reason="NodeLost", message="The node no longer exists"
                ),
            )
        self.store.delete(POD, namespace_of(pod), name_of(pod), Deletion(grace_s=0))

    def forget_events(self) -> None:
        oldest = stamp(self.store.clock() - self.settings.event_life_s)
        for event in self.store.bodies(EVENT):
            if meta(event)["creationTimestamp"] < oldest:
                self.store.delete(EVENT, namespace_of(event), name_of(event), Deletion())

    # ---- what every cluster has

    def furnish(self, namespace: str) -> None:
        if self.store.find(ACCOUNT, namespace, "default") is None:
            self.store.create(ACCOUNT, identified(self.store, ACCOUNT, "default", namespace))


def identified(store: Store, kind: Kind, name: str, namespace: str = "", **fields: Body) -> Body:
    """A new object of the system's own, with the identity that the server gives."""
    place = {"namespace": namespace} if namespace else {}
    given = {"name": name, **place, "uid": store.uids(), "creationTimestamp": store.now()}
    return {"kind": kind.name, "apiVersion": kind.api_version, "metadata": given, **fields}


def create_namespaces(store: Store, more: Iterable[str]) -> None:
    for name in dict.fromkeys((*NAMESPACES, *more)):
        body = identified(store, NAMESPACE, name)
        named = with_meta(body, labels={"kubernetes.io/metadata.name": name})
        store.create(
            NAMESPACE,
            {**with_spec(named, finalizers=["kubernetes"]), "status": {"phase": "Active"}},
        )
