"""Control loops: garbage collector, namespaces, quotas, old events, scheduler loop, tenants.

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
from services.local.store import ADDED, BEFORE_ALL, DELETED, Change, Deletion, Key, Store

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
        seen = self.store.revision
        for kind in KINDS:
            for change in (
                self.store.watch_cache(kind).after(self.position) if kind is not NEW_EVENT else ()
            ):
                self.process_change(kind, change)
        self.position = seen
        if self.store.revision != seen:
            self.process_changes()

    def process_change(self, kind: Kind, change: Change) -> None:
        body = change.after.body
        if change.verb == DELETED:
            self.collect_garbage(body)
        elif change.verb == ADDED and bodies.is_garbage(body, self.is_alive):
            self.delete_object(kind, body)
        if is_leaving(body) and meta(body).get("finalizers") and change.verb != DELETED:
            self.finishing[uid_of(body)] = (kind, (namespace_of(body), name_of(body)))
        if "foregroundDeletion" in (meta(body).get("finalizers") or []) and is_leaving(body):
            self.delete_dependents(kind, body)
        if kind in (POD, QUOTA):
            self.count_quotas(namespace_of(body))
        if kind is POD and change.verb != DELETED and self.lacks_node(body):
            self.nodeless.setdefault(uid_of(body), self.store.clock())
        if kind is NODE and change.verb == DELETED:
            pods = (pod for pod in self.store.bodies(POD) if node_of(pod) == name_of(body))
            self.nodeless |= {uid_of(pod): self.store.clock() for pod in pods}
        if kind is NAMESPACE and change.verb == ADDED:
            self.create_default_account(name_of(body))

    def count_quotas(self, namespace: str) -> None:
        for quota in self.store.list_objects(QUOTA, namespace):
            self.store.update(
                QUOTA,
                with_usage(
                    quota.body, (pod.body for pod in self.store.list_objects(POD, namespace))
                ),
            )

    def is_alive(self, uid: str) -> bool:
        return uid in self.store.alive

    def delete_object(self, kind: Kind, body: Body) -> None:
        current = self.store.find(kind, namespace_of(body), name_of(body))
        if current is not None and uid_of(current) == uid_of(body) and not is_leaving(current):
            self.store.delete(kind, namespace_of(body), name_of(body), Deletion())

    def collect_garbage(self, owner: Body) -> None:
        for kind, body in self.store.dependents(uid_of(owner)):
            if bodies.is_garbage(body, self.is_alive):
                self.delete_object(kind, body)

    def delete_dependents(self, kind: Kind, owner: Body) -> None:
        for dependent, body in self.store.dependents(uid_of(owner)):
            self.delete_object(dependent, body)

    # ---- what only time changes

    def sweep(self) -> None:
        self.finish_namespaces()
        self.finish_foreground()
        self.evict_nodeless_pods()
        self.delete_old_events()

    def finish_namespaces(self) -> None:
        for namespace in [body for body in self.store.bodies(NAMESPACE) if is_leaving(body)]:
            name = name_of(namespace)
            contents = [
                (k, s.body)
                for k in KINDS
                if k.namespaced and k is not NEW_EVENT
                for s in self.store.list_objects(k, name)
            ]
            for kind, body in contents:
                self.delete_object(kind, body)
            if not any(self.store.list_objects(k, name) for k in KINDS if k.namespaced):
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
            self.store.update(
                POD,
                with_status(
                    pod, phase="Failed", reason="NodeLost", message="The node no longer exists"
                ),
            )
        self.store.delete(POD, namespace_of(pod), name_of(pod), Deletion(grace_s=0))

    def delete_old_events(self) -> None:
        oldest = format_time(self.store.clock() - self.settings.event_life_s)
        for event in self.store.bodies(EVENT):
            if meta(event)["creationTimestamp"] < oldest:
                self.store.delete(EVENT, namespace_of(event), name_of(event), Deletion())

    # ---- what every cluster has

    def create_default_account(self, namespace: str) -> None:
        if self.store.find(ACCOUNT, namespace, "default") is None:
            self.store.create(ACCOUNT, new_system_object(self.store, ACCOUNT, "default", namespace))


def new_system_object(
    store: Store, kind: Kind, name: str, namespace: str = "", **fields: Body
) -> Body:
    """A new object of the system's own, with the identity that the server gives."""
    place = {"namespace": namespace} if namespace else {}
    given = {"name": name, **place, "uid": store.uids(), "creationTimestamp": store.now()}
    return {"kind": kind.name, "apiVersion": kind.api_version, "metadata": given, **fields}


def create_namespaces(store: Store, more: Iterable[str]) -> None:
    for name in dict.fromkeys((*NAMESPACES, *more)):
        body = new_system_object(store, NAMESPACE, name)
        named = with_meta(body, labels={"kubernetes.io/metadata.name": name})
        store.create(
            NAMESPACE,
            {**with_spec(named, finalizers=["kubernetes"]), "status": {"phase": "Active"}},
        )


SCHEDULER_NAME = "default-scheduler"
GATHER_S = 0.005  # pods created in one go are placed in one go


class NodeUsage:
    """What the pods on each node hold, and which pods wait for one."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[str, Amounts]] = {}  # by pod uid
        self.used: dict[str, Amounts] = {}  # by node
        self.waiting: dict[str, tuple[str, str]] = {}  # namespace and name by pod uid

    def take(self, change: Change) -> None:
        pod, uid = change.after.body, uid_of(change.after.body)
        node, before = self.held.pop(uid, ("", {}))
        if node:
            self.used[node] = subtract_amounts(self.used[node], before)
        self.waiting.pop(uid, None)
        if change.verb == DELETED or has_ended(pod):
            return
        if node_of(pod):
            self.hold(uid, node_of(pod), pod_requests(pod))
        elif (
            spec(pod).get("schedulerName") == SCHEDULER_NAME
            and not scheduling_gates(pod)
            and not is_leaving(pod)
        ):
            self.waiting[uid] = (namespace_of(pod), name_of(pod))

    def hold(self, uid: str, node: str, requests: Amounts) -> None:
        self.held[uid] = (node, requests)
        self.used[node] = add_amounts(self.used.get(node, {}), requests)


class SchedulerLoop:
    def __init__(self, store: Store) -> None:
        self.store, self.ledger = store, NodeUsage()
        self.position = store.revision

    async def run(self) -> None:
        while True:
            pods, nodes = self.store.watch_cache(POD).news, self.store.watch_cache(NODE).news
            self.round()
            told = [asyncio.ensure_future(news.wait()) for news in (pods, nodes)]
            await asyncio.wait(told, return_when=asyncio.FIRST_COMPLETED)
            for waiting in told:
                waiting.cancel()
            await asyncio.sleep(GATHER_S)

    def round(self) -> None:
        """1 remember what happened, 2 look at the nodes, 3 place every pod that waits."""
        self.catch_up()
        if not self.ledger.waiting:
            return
        rooms = {
            name_of(n): node_info(n, self.ledger.used.get(name_of(n), {}))
            for n in self.store.bodies(NODE)
        }
        hopeless: dict[str, Choice] = {}  # by likeness: what does not fit once does not fit twice
        for namespace, name in list(self.ledger.waiting.values()):
            pod = self.store.find(POD, namespace, name)
            if pod is not None and not node_of(pod):
                self.settle(pod, rooms, hopeless)
        self.catch_up()

    def catch_up(self) -> None:
        seen = self.store.revision
        for change in self.store.watch_cache(POD).after(self.position):
            self.ledger.take(change)
        self.position = seen

    def settle(self, pod: Body, rooms: dict[str, NodeInfo], hopeless: dict[str, Choice]) -> None:
        wish = pod_requirements(pod)
        likeness = wish.likeness()
        choice = hopeless.get(likeness) or choose_node(wish, list(rooms.values()))
        if choice.node:
            rooms[choice.node] = reserve(rooms[choice.node], wish.requests)
            self.bind(pod, choice.node)
        else:
            hopeless[likeness] = choice
            self.refuse(pod, choice.why_not)

    def bind(self, pod: Body, node: str) -> None:
        self.store.update(POD, bound_pod(pod, node, self.store.now()))
        message = f"Successfully assigned {namespace_of(pod)}/{name_of(pod)} to {node}"
        record_event(self.store, pod, SCHEDULER_NAME, NORMAL, "Scheduled", message)

    def refuse(self, pod: Body, why: str) -> None:
        if (condition(pod, "PodScheduled") or {}).get("message") == why:
            return
        self.store.update(
            POD,
            with_condition(pod, self.store.now(), "PodScheduled", "False", "Unschedulable", why),
        )
        record_event(self.store, pod, SCHEDULER_NAME, WARNING, "FailedScheduling", why)


def bound_pod(pod: Body, node: str, now: str) -> Body:
    return with_condition(with_spec(pod, nodeName=node), now, "PodScheduled", "True")


TENANT_NAMESPACE = "tenants"  # their namespace
LOOK_S = 0.1
GRACE_S = 2


def tenants_due(tenants: Sequence[TenantSpec], elapsed_s: float) -> set[int]:
    """Which of them should be there now, by their place in the file."""
    return {
        index
        for index, t in enumerate(tenants)
        if t.from_s <= elapsed_s and (t.to_s is None or elapsed_s < t.to_s)
    }


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
        self.store, self.tenants = store, tenants
        self.present: set[int] = set()

    async def run(self) -> None:
        if not self.tenants:
            return
        self.store.create(
            NAMESPACE,
            new_system_object(
                self.store, NAMESPACE, TENANT_NAMESPACE, spec={}, status={"phase": "Active"}
            ),
        )
        start = asyncio.get_running_loop().time()
        while True:
            self.settle(tenants_due(self.tenants, asyncio.get_running_loop().time() - start))
            await asyncio.sleep(LOOK_S)

    def settle(self, wanted: set[int]) -> None:
        for index in sorted(wanted - self.present):
            self.come(index)
        for index in sorted(self.present - wanted):
            if self.store.find(POD, TENANT_NAMESPACE, pod_name(index)) is not None:
                self.store.delete(POD, TENANT_NAMESPACE, pod_name(index), Deletion())
        self.present = wanted

    def come(self, index: int) -> None:
        body = new_system_object(
            self.store, POD, pod_name(index), TENANT_NAMESPACE, spec=pod_spec(self.tenants[index])
        )
        self.store.create(POD, new_pod(with_meta(body, generation=1, labels={"app": "tenant"})))
