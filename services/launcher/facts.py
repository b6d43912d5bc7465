"""Small facts about pods, services and nodes, read from the objects of the Kubernetes API.

Law: null means absent; a value of another type than Kubernetes uses is a decoding error.

Law: a pod is judged by its deletionTimestamp, by how its container ended, and by the readiness of
its node, never by its phase alone: on a dead node a pod stays `Running` for ever. An object that
Kubernetes cannot have made raises `MalformedObject`; annotations can hold anything and never do.

`shared/kube/eviction.py` says which taints evict pods. A node that is not ready or unreachable has
a taint as well, but it is judged by its readiness (`steps/task_reports.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Literal, TypeVar, get_args

import msgspec
from msgspec.structs import replace

from services.launcher.pods import read_resources
from shared.kube import labels
from shared.kube.eviction import TAKEN_AWAY, evicts_pods
from shared.kube.objects import ApiObject, MalformedObject
from shared.messages import CORDONED, DELETED, EVICTED, TAINTED, Resources, Role, Taint, Whole

Amounts = dict[str, str | int | float]


class ObjectMeta(ApiObject, frozen=True):
    name: str
    namespace: str | None = None
    uid: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class Condition(ApiObject, frozen=True):
    type: str
    status: str
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class Requirements(ApiObject, frozen=True):
    requests: Amounts | None = None


class Container(ApiObject, frozen=True):
    resources: Requirements | None = None


class Waiting(ApiObject, frozen=True):
    reason: str | None = None


class Terminated(ApiObject, frozen=True):
    finished_at: str | None = None
    exit_code: Whole | None = None
    reason: str | None = None
    message: str | None = None


class State(ApiObject, frozen=True):
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(ApiObject, frozen=True):
    state: State | None = None
    resources: Requirements | None = None


class Spec(ApiObject, frozen=True):
    node_name: str | None = None
    containers: list[Container] | None = None


class PodStatus(ApiObject, frozen=True):
    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None


class NodeStatus(ApiObject, frozen=True):
    conditions: list[Condition] | None = None


class PodObject(ApiObject, frozen=True):
    metadata: ObjectMeta
    spec: Spec | None = None
    status: PodStatus | None = None


class ServiceObject(ApiObject, frozen=True):
    metadata: ObjectMeta


class NodeTaint(ApiObject, frozen=True):
    key: str
    effect: str


class NodeSpec(ApiObject, frozen=True):
    unschedulable: bool | None = None
    taints: list[NodeTaint] | None = None


class NodeObject(ApiObject, frozen=True):
    metadata: ObjectMeta
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


ObjectKind = Literal["pods", "services", "networkpolicies", "nodes"]
OVER = ("Succeeded", "Failed")
BY_PHASE = {"Succeeded": "Completed", "Failed": "Error"}
MAX_TEXT = 4096  # characters of a reason or message: as many as Kubernetes keeps of a container's last words
MOST_GRACE_S = 86_400
WHOLE = re.compile(r"[0-9]{1,18}")


class PodFact(msgspec.Struct, frozen=True, kw_only=True):
    """One of our pods, as last seen. `gone`: it is not there any more."""

    namespace: str
    job: str
    job_uid: int
    role: Role
    serial: int
    name: str
    uid: str
    generation: int = 0  # the one that made it
    node: str = ""
    phase: str = "Pending"
    terminating: bool = False  # has a deletionTimestamp
    killed_s: float = 0.0  # ... which is when it is killed
    deleted: bool = False
    exit_code: int | None = None
    ended_s: float = 0.0  # when its container did
    reason: str = ""
    message: str = ""
    unschedulable: str = ""  # why the scheduler found no place
    unschedulable_since_s: float = 0.0  # ... and since when
    waiting: str = ""  # why the container does not run: ImagePullBackOff, ...
    resources: Resources = Resources()  # asked for
    allocated: Resources | None = None  # given, where the node says
    created_with: Resources = Resources()
    grace_s: int | None = None  # asked for by the request that it was made for

    @property
    def ended(self) -> bool:
        return self.phase in OVER


class JobObjectFact(msgspec.Struct, frozen=True, kw_only=True):
    """One of the objects that a job has once."""

    namespace: str
    name: str
    uid: str
    job_uid: int
    terminating: bool = False


class ServiceFact(JobObjectFact, frozen=True, kw_only=True):
    """A job's headless service: the owner of everything made for the job."""


class PolicyFact(JobObjectFact, frozen=True, kw_only=True):
    """A job's network policy."""


class NodeFact(msgspec.Struct, frozen=True, kw_only=True):
    """A node's readiness, and since when it is so; and why its pods have to go, if they have to."""

    name: str
    ready: bool = True
    since_s: float = 0.0
    eviction_reason: str = ""  # NodeCordoned, NodeTainted
    eviction_taint: str = ""  # the taint
    notice_s: float = 0.0  # its notice; 0: not known
    leaves_s: float = 0.0  # by when its pods are gone, from when we saw the taint; 0: not known


# ---------------------------------------------------------------- reading

S = TypeVar("S", bound=ApiObject)
F = TypeVar("F")


def loss_time(pod: PodFact, nodes: dict[str, NodeFact], node_lost_s: float) -> float | None:
    """Return when a pod counts as lost with its node; None while the node is ready."""
    node = nodes.get(pod.node)
    if node is None or node.ready or pod.ended or pod.deleted:
        return None
    return node.since_s if pod.terminating else node.since_s + node_lost_s


def pod_fact(raw: bytes) -> PodFact | None:
    """None for a pod whose labels are not as ours; raises `Strange` for one that cannot be read."""
    return _read(raw, PodObject, _pod)


def service_fact(raw: bytes) -> ServiceFact | None:
    """As `pod_fact`."""
    return _read(raw, ServiceObject, _service)


def policy_fact(raw: bytes) -> PolicyFact | None:
    """As `pod_fact`."""
    return _read(raw, ServiceObject, _policy)


def node_fact(raw: bytes) -> NodeFact:
    """Raises `Strange` for a node that cannot be read."""
    return _read(raw, NodeObject, _node)


def deleted_pod(pod: PodFact) -> PodFact:
    return replace(pod, deleted=True)


def unix_seconds(stamp: str | None) -> float:
    """A point in time as Kubernetes writes it; 0 for none."""
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


def _read(raw: bytes, shape: type[S], reader: Callable[[S], F]) -> F:
    try:
        return reader(msgspec.json.decode(raw, type=shape))
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise MalformedObject(str(error)) from error


# ---------------------------------------------------------------- each kind


def _pod(pod: PodObject) -> PodFact | None:
    meta = pod.metadata
    spec = pod.spec or Spec()
    status = pod.status or PodStatus()
    task = _task(meta)
    notes = meta.annotations or {}
    leaving = meta.deletion_timestamp is not None
    if task is None:
        return None
    live = _first(status.container_statuses, ContainerStatus())
    asked = _amounts(_first(spec.containers, Container()).resources)
    given = _amounts(live.resources)
    stuck = _condition(status, "PodScheduled", "False", "Unschedulable")
    return PodFact(
        **task,
        **_ending(status, live.state or State(), leaving),
        generation=_whole(notes.get(labels.GENERATION)) or 0,
        node=spec.node_name or "",
        phase=status.phase or "Pending",
        terminating=leaving,
        killed_s=unix_seconds(meta.deletion_timestamp),
        unschedulable=(stuck.message or "Unschedulable") if stuck else "",
        unschedulable_since_s=unix_seconds(stuck.last_transition_time) if stuck else 0.0,
        waiting=((live.state or State()).waiting or Waiting()).reason or "",
        resources=read_resources(asked),
        allocated=read_resources(given) if given else None,
        created_with=_made_with(notes.get(labels.RESOURCES, ""), read_resources(asked)),
        grace_s=_grace_s(notes.get(labels.GRACE)),
    )


def _service(service: ServiceObject) -> ServiceFact | None:
    whose = _whose(service.metadata)
    return (
        None
        if whose is None
        else ServiceFact(**whose, terminating=service.metadata.deletion_timestamp is not None)
    )


def _policy(policy: ServiceObject) -> PolicyFact | None:
    whose = _whose(policy.metadata)
    return (
        None
        if whose is None
        else PolicyFact(**whose, terminating=policy.metadata.deletion_timestamp is not None)
    )


def _node(node: NodeObject) -> NodeFact:
    ready = next(
        (c for c in (node.status or NodeStatus()).conditions or () if c.type == "Ready"), None
    )
    fact = NodeFact(name=node.metadata.name, **_doom(node.spec or NodeSpec()))
    if ready is None:
        return fact
    return replace(
        fact, ready=ready.status == "True", since_s=unix_seconds(ready.last_transition_time)
    )


def _doom(spec: NodeSpec) -> dict[str, Any]:
    found = node_eviction(
        bool(spec.unschedulable), [Taint(key=t.key, effect=t.effect) for t in spec.taints or ()]
    )
    return (
        {"eviction_reason": found.reason, "eviction_taint": found.taint, "notice_s": found.notice_s}
        if found
        else {}
    )


# ---------------------------------------------------------------- whose it is


def _whose(meta: ObjectMeta) -> dict[str, Any] | None:
    uid = _whole((meta.labels or {}).get(labels.UID))
    if uid is None:
        return None
    if not (meta.namespace and meta.uid):
        raise ValueError(f"{meta.name} has no namespace or no uid")
    return {"namespace": meta.namespace, "name": meta.name, "uid": meta.uid, "job_uid": uid}


def _task(meta: ObjectMeta) -> dict[str, Any] | None:
    whose, tags = _whose(meta), meta.labels or {}
    role, serial = tags.get(labels.ROLE), _whole(tags.get(labels.SERIAL))
    if whose is None or role not in get_args(Role) or serial is None or labels.JOB not in tags:
        return None
    return {**whose, "job": tags[labels.JOB], "role": role, "serial": serial}


def _whole(text: str | None) -> int | None:
    return int(text) if text and WHOLE.fullmatch(text) else None


# ---------------------------------------------------------------- how it is


def _made_with(note: str, asked: Resources) -> Resources:
    """As the annotation says; what the pod asks for where it says nothing that can be read."""
    try:
        return msgspec.json.decode(note, type=Resources)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return asked


def _grace_s(note: str | None) -> int | None:
    """As the annotation says; None where it says nothing that can be used."""
    seconds = _whole(note)
    return seconds if seconds is not None and seconds <= MOST_GRACE_S else None


def _ending(status: PodStatus, state: State, leaving: bool) -> dict[str, Any]:
    """Exit code, time, reason and message of a pod that is over; what is known so far of one that
    is not.
    """
    end, moved = state.terminated or Terminated(), _condition(status, "DisruptionTarget", "True")
    reason = (
        status.reason
        or _reason(end.reason or "", moved is not None, leaving)
        or BY_PHASE.get(status.phase or "")
    )
    message = status.message or end.message or (moved.message if moved else None)
    return {
        "exit_code": end.exit_code,
        "ended_s": unix_seconds(end.finished_at),
        "reason": (reason or "")[:MAX_TEXT],
        "message": (message or "")[:MAX_TEXT],
    }


def _reason(ended: str, moved: bool, leaving: bool) -> str:
    if ended == "OOMKilled":
        return ended
    if moved:
        return EVICTED
    return DELETED if leaving else ended


def _condition(status: PodStatus, kind: str, value: str, reason: str = "") -> Condition | None:
    fits = (c for c in status.conditions or () if (c.type, c.status) == (kind, value))
    return next((c for c in fits if reason in ("", c.reason)), None)


def _amounts(required: Requirements | None) -> dict[str, str | int | float]:
    return (required.requests if required else None) or {}


def _first(items: list[S] | None, otherwise: S) -> S:
    return items[0] if items else otherwise


class NodeEviction(msgspec.Struct, frozen=True):
    """Why a node's pods have to go, who says so, and within how many seconds (0: not known)."""

    reason: str
    taint: str = ""
    notice_s: float = 0.0


def node_eviction(unschedulable: bool, taints: Iterable[Taint]) -> NodeEviction | None:
    """None for a node whose pods may stay; of several reasons the hardest."""
    found = [taint for taint in taints if evicts_pods(taint)]
    if found:
        first = min(found, key=lambda taint: (TAKEN_AWAY.get(taint.key) or float("inf"), taint.key))
        return NodeEviction(TAINTED, f"{first.key}:{first.effect}", TAKEN_AWAY.get(first.key, 0.0))
    return NodeEviction(CORDONED) if unschedulable else None
