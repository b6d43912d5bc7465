"""The control loops: garbage collector, namespaces, quotas, old events, scheduler loop, tenants.

They act on the store as any client could. `objects.bodies.is_garbage` and `scheduler.choose_node`
decide for them.

The Ready condition alone shows that a node's owner no longer reports. A client that simulates a
node has to write it.

`NodeUsage` updates the requests on each node with every pod change. So the cost of one more pod
does not depend on the number of pods.

`TenantController` creates and deletes the tenant pods of the cluster file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from services.local.cluster_spec import TenantSpec
from services.local.events import NORMAL, WARNING, record_event
from services.local.objects import bodies
from services.local.objects.admission import new_pod, scheduling_gates
from services.local.objects.bodies import (
    Body,
    condition,
    format_time,
    has_ended,
    is_leaving,
    meta,
    name_of,
    namespace_of,
    node_of,
    spec,
    uid_of,
    with_condition,
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
from services.local.objects.resources import (
    Amounts,
    add_amounts,
    pod_requests,
    subtract_amounts,
    with_usage,
)
from services.local.scheduler import (
    Choice,
    NodeInfo,
    choose_node,
    node_info,
    pod_requirements,
    reserve,
)
from services.local.store import (
    ADDED,
    BEFORE_ALL,
    DELETE_AT_ONCE,
    DELETED,
    FOREGROUND,
    Change,
    Key,
    Store,
)

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


class ControllerSettings(msgspec.Struct, frozen=True, kw_only=True):
    orphan_delay_s: float = 5.0  # time for which a pod stays after its node is gone
    event_life_s: float = 3600.0  # as in a real cluster
    sweep_s: float = 1.0  # between two checks of conditions that depend on time


class Controllers:
    def __init__(self, store: Store, settings: ControllerSettings) -> None:
        self.store, self.settings = store, settings
        self.position = store.revision
        self.nodeless: dict[str, float] = {}  # pod uid -> time when its node was first missing
        self.finishing: dict[str, tuple[Kind, Key]] = {}  # by uid: leaving, with finalizers

    async def watch_changes(self) -> None:
        while True:
            news = self.store.news
            self.process_changes()
            await news.wait()

    async def sweep_periodically(self) -> None:
        while True:
            self.sweep()
            await asyncio.sleep(self.settings.sweep_s)

    def process_changes(self) -> None:
        """Process all changes, and the changes that follow from them."""
        while self.position != self.store.revision:
            latest = self.store.revision
            for kind in KINDS:
                if kind is NEW_EVENT:  # shares the watch cache of EVENT
                    continue
                for change in self.store.watch_cache(kind).after(self.position):
                    self.process_change(kind, change)
            self.position = latest

    def process_change(self, kind: Kind, change: Change) -> None:
        body = change.after.body
        if change.verb == DELETED:
            self.collect_garbage(body)
        elif change.verb == ADDED and bodies.is_garbage(body, self.is_alive):
            self.delete_object(kind, body)
        finalizers = meta(body).get("finalizers") or []
        if finalizers and is_leaving(body):
            if change.verb != DELETED:
                self.finishing[uid_of(body)] = (kind, (namespace_of(body), name_of(body)))
            if FOREGROUND in finalizers:
                self.delete_dependents(body)
        if kind in (POD, QUOTA):
            self.count_quotas(namespace_of(body))
        if kind is POD and change.verb != DELETED and self.lacks_node(body):
            self.nodeless.setdefault(uid_of(body), self.store.clock())
        if kind is NODE and change.verb == DELETED:
            self.note_nodeless_pods(name_of(body))
        if kind is NAMESPACE and change.verb == ADDED:
            self.create_default_account(name_of(body))

    def note_nodeless_pods(self, node: str) -> None:
        now_s = self.store.clock()
        for pod in self.store.bodies(POD):
            if node_of(pod) == node:
                self.nodeless[uid_of(pod)] = now_s

    def count_quotas(self, namespace: str) -> None:
        for quota in self.store.list_objects(QUOTA, namespace):
            pods = (pod.body for pod in self.store.list_objects(POD, namespace))
            self.store.update(QUOTA, with_usage(quota.body, pods))

    def is_alive(self, uid: str) -> bool:
        return uid in self.store.alive

    def delete_object(self, kind: Kind, body: Body) -> None:
        current = self.store.latest(kind, body)
        if current is not None and not is_leaving(current):
            self.store.delete(kind, current)

    def collect_garbage(self, owner: Body) -> None:
        for kind, body in self.store.dependents(uid_of(owner)):
            if bodies.is_garbage(body, self.is_alive):
                self.delete_object(kind, body)

    def delete_dependents(self, owner: Body) -> None:
        for kind, body in self.store.dependents(uid_of(owner)):
            self.delete_object(kind, body)

    # ---- conditions that depend on time

    def sweep(self) -> None:
        self.finish_namespaces()
        self.finish_foreground()
        self.evict_nodeless_pods()
        self.delete_old_events()

    def finish_namespaces(self) -> None:
        """Delete the contents of leaving namespaces, then their finalizers."""
        for namespace in [body for body in self.store.bodies(NAMESPACE) if is_leaving(body)]:
            name = name_of(namespace)
            for kind, body in self.namespace_contents(name):
                self.delete_object(kind, body)
            if not self.namespace_contents(name):
                self.store.change(NAMESPACE, "", name, without_finalizers)

    def namespace_contents(self, namespace: str) -> list[tuple[Kind, Body]]:
        contents = []
        for kind in KINDS:
            if kind.namespaced and kind is not NEW_EVENT:
                for stored in self.store.list_objects(kind, namespace):
                    contents.append((kind, stored.body))
        return contents

    def finish_foreground(self) -> None:
        """Remove the finalizer of a foreground deletion once there are no dependents."""
        for uid, (kind, key) in list(self.finishing.items()):
            body = self.store.find(kind, *key)
            if body is None or uid_of(body) != uid:
                del self.finishing[uid]
                continue
            finalizers = meta(body).get("finalizers") or []
            if FOREGROUND in finalizers and not self.store.dependents(uid):
                left = [each for each in finalizers if each != FOREGROUND]
                self.store.update(kind, with_meta(body, finalizers=left or None))

    def lacks_node(self, pod: Body) -> bool:
        return bool(node_of(pod)) and self.store.find(NODE, "", node_of(pod)) is None

    def evict_nodeless_pods(self) -> None:
        for uid, since_s in list(self.nodeless.items()):
            kind, key = self.store.alive.get(uid, (POD, BEFORE_ALL))
            pod = self.store.find(kind, *key)
            if pod is None or not self.lacks_node(pod):
                del self.nodeless[uid]
            elif self.store.clock() - since_s >= self.settings.orphan_delay_s:
                self.force_delete_pod(pod)

    def force_delete_pod(self, pod: Body) -> None:
        if not is_leaving(pod):
            failed = with_status(
                pod, phase="Failed", reason="NodeLost", message="The node no longer exists"
            )
            self.store.update(POD, failed)
        self.store.delete(POD, pod, DELETE_AT_ONCE)

    def delete_old_events(self) -> None:
        oldest = format_time(self.store.clock() - self.settings.event_life_s)
        for event in self.store.bodies(EVENT):
            if meta(event)["creationTimestamp"] < oldest:
                self.store.delete(EVENT, event)

    # ---- objects that every cluster has

    def create_default_account(self, namespace: str) -> None:
        if self.store.find(ACCOUNT, namespace, "default") is None:
            self.store.create(ACCOUNT, new_system_object(self.store, ACCOUNT, "default", namespace))


def without_finalizers(namespace: Body) -> Body:
    return with_spec(namespace, finalizers=None)


def new_system_object(
    store: Store, kind: Kind, name: str, namespace: str = "", **fields: Any
) -> Body:
    """Return a new object of the system, with the identity that the server gives."""
    place = {"namespace": namespace} if namespace else {}
    given = {"name": name, **place, "uid": store.uids(), "creationTimestamp": store.now()}
    return {"kind": kind.name, "apiVersion": kind.api_version, "metadata": given, **fields}


def create_namespaces(store: Store, more: Iterable[str]) -> None:
    for name in dict.fromkeys((*NAMESPACES, *more)):
        finalizers = {"finalizers": ["kubernetes"]}
        active = {"phase": "Active"}
        body = new_system_object(store, NAMESPACE, name, spec=finalizers, status=active)
        store.create(NAMESPACE, with_meta(body, labels={"kubernetes.io/metadata.name": name}))


SCHEDULER_NAME = "default-scheduler"
SCHEDULED = "PodScheduled"
GATHER_S = 0.005  # pods that are created together are placed together


class NodeUsage:
    """The requests of the pods on each node, and the pods that wait for a node."""

    def __init__(self) -> None:
        self.requests_by_pod: dict[str, tuple[str, Amounts]] = {}  # uid -> node, requests
        self.used: dict[str, Amounts] = {}  # by node
        self.pending: dict[str, tuple[str, str]] = {}  # uid -> namespace and name

    def apply(self, change: Change) -> None:
        pod = change.after.body
        uid = uid_of(pod)
        node, requests = self.requests_by_pod.pop(uid, ("", {}))
        if node:
            self.used[node] = subtract_amounts(self.used[node], requests)
        self.pending.pop(uid, None)
        if change.verb == DELETED or has_ended(pod):
            return
        if node_of(pod):
            self.add_requests(uid, node_of(pod), pod_requests(pod))
        elif is_schedulable(pod):
            self.pending[uid] = (namespace_of(pod), name_of(pod))

    def add_requests(self, uid: str, node: str, requests: Amounts) -> None:
        self.requests_by_pod[uid] = (node, requests)
        self.used[node] = add_amounts(self.used.get(node, {}), requests)


def is_schedulable(pod: Body) -> bool:
    if spec(pod).get("schedulerName") != SCHEDULER_NAME:
        return False
    return not scheduling_gates(pod) and not is_leaving(pod)


class SchedulerLoop:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.usage = NodeUsage()
        self.position = store.revision

    async def run(self) -> None:
        while True:
            pods, nodes = self.store.watch_cache(POD).news, self.store.watch_cache(NODE).news
            self.schedule_pending()
            waits = [asyncio.ensure_future(news.wait()) for news in (pods, nodes)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()
            await asyncio.sleep(GATHER_S)

    def schedule_pending(self) -> None:
        """Read the changes, then place every pending pod."""
        self.read_changes()
        if not self.usage.pending:
            return
        nodes = {}
        for node in self.store.bodies(NODE):
            name = name_of(node)
            nodes[name] = node_info(node, self.usage.used.get(name, {}))
        unplaceable: dict[str, Choice] = {}  # by likeness: each is tried once
        for namespace, name in list(self.usage.pending.values()):
            pod = self.store.find(POD, namespace, name)
            if pod is not None and not node_of(pod):
                self.schedule_pod(pod, nodes, unplaceable)
        self.read_changes()

    def read_changes(self) -> None:
        latest = self.store.revision
        for change in self.store.watch_cache(POD).after(self.position):
            self.usage.apply(change)
        self.position = latest

    def schedule_pod(
        self, pod: Body, nodes: dict[str, NodeInfo], unplaceable: dict[str, Choice]
    ) -> None:
        requirements = pod_requirements(pod)
        likeness = requirements.likeness()
        choice = unplaceable.get(likeness) or choose_node(requirements, list(nodes.values()))
        if choice.node:
            nodes[choice.node] = reserve(nodes[choice.node], requirements.requests)
            self.bind_pod(pod, choice.node)
        else:
            unplaceable[likeness] = choice
            self.mark_unschedulable(pod, choice.why_not)

    def bind_pod(self, pod: Body, node: str) -> None:
        self.store.update(POD, bound_pod(pod, node, self.store.now()))
        message = f"Successfully assigned {namespace_of(pod)}/{name_of(pod)} to {node}"
        record_event(self.store, pod, SCHEDULER_NAME, NORMAL, "Scheduled", message)

    def mark_unschedulable(self, pod: Body, why: str) -> None:
        if (condition(pod, SCHEDULED) or {}).get("message") == why:
            return
        marked = with_condition(pod, self.store.now(), SCHEDULED, "False", "Unschedulable", why)
        self.store.update(POD, marked)
        record_event(self.store, pod, SCHEDULER_NAME, WARNING, "FailedScheduling", why)


def bound_pod(pod: Body, node: str, now: str) -> Body:
    return with_condition(with_spec(pod, nodeName=node), now, SCHEDULED, "True")


TENANT_NAMESPACE = "tenants"
LOOK_S = 0.1
GRACE_S = 2


def tenants_due(tenants: Sequence[TenantSpec], elapsed_s: float) -> set[int]:
    """Return the indexes, in the cluster file, of the tenants that run at this time."""
    due = set()
    for index, tenant in enumerate(tenants):
        if tenant.from_s <= elapsed_s and (tenant.to_s is None or elapsed_s < tenant.to_s):
            due.add(index)
    return due


def pod_name(index: int) -> str:
    return f"tenant-{index + 1}"


def pod_spec(tenant: TenantSpec) -> Body:
    cpu = {"cpu": f"{round(tenant.cpu * 1000)}m"}
    command = ["python", "-m", "services.local.tenant", "--cpu", f"{tenant.cpu:g}"]
    container = {
        "name": "tenant",
        "image": "tenant",
        "command": command,
        "resources": {"requests": cpu, "limits": cpu},
    }
    return {
        "containers": [container],
        "nodeSelector": {"kubernetes.io/hostname": tenant.node},
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_S,
    }


class TenantController:
    def __init__(self, store: Store, tenants: Sequence[TenantSpec]) -> None:
        self.store = store
        self.tenants = tenants
        self.present: set[int] = set()

    async def run(self) -> None:
        if not self.tenants:
            return
        active = {"phase": "Active"}
        body = new_system_object(self.store, NAMESPACE, TENANT_NAMESPACE, spec={}, status=active)
        self.store.create(NAMESPACE, body)
        start = asyncio.get_running_loop().time()
        while True:
            elapsed_s = asyncio.get_running_loop().time() - start
            self.create_and_delete(tenants_due(self.tenants, elapsed_s))
            await asyncio.sleep(LOOK_S)

    def create_and_delete(self, due: set[int]) -> None:
        for index in sorted(due - self.present):
            self.create_tenant(index)
        for index in sorted(self.present - due):
            pod = self.store.find(POD, TENANT_NAMESPACE, pod_name(index))
            if pod is not None:
                self.store.delete(POD, pod)
        self.present = due

    def create_tenant(self, index: int) -> None:
        tenant = pod_spec(self.tenants[index])
        body = new_system_object(self.store, POD, pod_name(index), TENANT_NAMESPACE, spec=tenant)
        self.store.create(POD, new_pod(with_meta(body, generation=1, labels={"app": "tenant"})))
