"""Small facts about pods, services and nodes, read from the objects of the Kubernetes API.

Law: null means absent; a value of another type than Kubernetes uses is a decoding error.

Law: a pod is judged by its deletionTimestamp, by the exit of its container, and by the readiness of
its node, never by its phase alone: on a dead node a pod stays `Running` for ever. An object that
Kubernetes cannot have made raises `MalformedObject`; an annotation never does, because it can have
any content.

`evicts_pods` (`shared/kube/objects.py`) knows the taints that evict pods. A node that is not ready
or unreachable has a taint as well, but it is judged by its readiness (`steps/task_reports.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from math import inf
from typing import Any, Literal, TypeVar, get_args

import msgspec
from msgspec.structs import replace

from services.launcher.pods import read_resources
from shared.kube import objects
from shared.kube.objects import TAKEN_AWAY, ApiObject, MalformedObject, evicts_pods
from shared.messages import (
    CORDONED,
    DELETED,
    EVICTED,
    TAINTED,
    Resources,
    Role,
    Taint,
    Toleration,
    Whole,
)

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
    image: str | None = None
    resources: Requirements | None = None


class Waiting(ApiObject, frozen=True):
    reason: str | None = None
    message: str | None = None


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
    value: str | None = None


class NodeSpec(ApiObject, frozen=True):
    unschedulable: bool | None = None
    taints: list[NodeTaint] | None = None


class NodeObject(ApiObject, frozen=True):
    metadata: ObjectMeta
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


ObjectKind = Literal["pods", "services", "networkpolicies", "nodes"]
ENDED_PHASES = ("Succeeded", "Failed")
REASON_OF_PHASE = {"Succeeded": "Completed", "Failed": "Error"}
MAX_TEXT = 4096
"""Maximum characters of a reason or message: as many as Kubernetes keeps of a termination message.
"""
MAX_WAITING = 200
"""Maximum characters of the message about a container that does not run."""
MAX_GRACE_S = 86_400
WHOLE_NUMBER = re.compile(r"[0-9]{1,18}")


class PodFact(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of a job, as last seen.

    `generation`: the one that created it. `terminating`: it has a deletionTimestamp, and
    `killed_s` is that time. `deleted`: it does not exist any more. `ended_s`: when its container
    ended. `unschedulable`: the scheduler's reason. `waiting`: the reason why the container does not
    run (ImagePullBackOff, ...); `waiting_message`: the text to it. `resources`: requested now;
    `allocated`: by its node, if known; `created_with`: requested at first. `grace_s`: of the
    request that it was created for. `image`: of its container.
    """

    namespace: str
    job: str
    job_uid: int
    role: Role
    serial: int
    name: str
    uid: str
    generation: int = 0
    node: str = ""
    phase: str = "Pending"
    terminating: bool = False
    killed_s: float = 0.0
    deleted: bool = False
    exit_code: int | None = None
    ended_s: float = 0.0
    reason: str = ""
    message: str = ""
    unschedulable: str = ""
    unschedulable_since_s: float = 0.0
    waiting: str = ""
    waiting_message: str = ""
    resources: Resources = Resources()
    allocated: Resources | None = None
    created_with: Resources = Resources()
    grace_s: int | None = None
    image: str = ""

    @property
    def has_ended(self) -> bool:
        return self.phase in ENDED_PHASES

    def as_deleted(self) -> PodFact:
        return replace(self, deleted=True)


class JobObjectFact(msgspec.Struct, frozen=True, kw_only=True):
    """An object that a job has once. `terminating`: it has a deletionTimestamp."""

    namespace: str
    name: str
    uid: str
    job_uid: int
    terminating: bool = False


class ServiceFact(JobObjectFact, frozen=True, kw_only=True):
    """The headless service of a job: the owner of everything made for the job."""


class PolicyFact(JobObjectFact, frozen=True, kw_only=True):
    """The network policy of a job."""


class NodeFact(msgspec.Struct, frozen=True, kw_only=True):
    """The readiness of a node, since when, and the reason if its pods have to leave.

    `eviction_reason`: NodeCordoned or NodeTainted. `eviction_taint`: the taint. `notice_s`: from
    the taint to the end of the pods; 0: unknown. `leaves_s`: the time of their end, counted from
    when the taint was first seen; 0: unknown. These hold for pods without tolerations; `evicting`
    are the taints that evict such pods.
    """

    name: str
    ready: bool = True
    since_s: float = 0.0
    eviction_reason: str = ""
    eviction_taint: str = ""
    notice_s: float = 0.0
    leaves_s: float = 0.0
    cordoned: bool = False
    evicting: tuple[Taint, ...] = ()

    def has_same_state(self, other: NodeFact) -> bool:
        """Return True if neither readiness nor eviction differs."""
        return (
            self.ready == other.ready
            and self.eviction_reason == other.eviction_reason
            and self.eviction_taint == other.eviction_taint
            and self.cordoned == other.cordoned
            and self.evicting == other.evicting
        )

    def eviction_of(self, tolerations: Sequence[Toleration]) -> NodeFact:
        """Return the node as it is for pods with these tolerations."""
        if not tolerations or not self.evicting:
            return self
        eviction = node_eviction(self.cordoned, self.evicting, tolerations)
        if eviction is None:
            return replace(self, eviction_reason="", eviction_taint="", notice_s=0.0, leaves_s=0.0)
        leaves_s = self.leaves_s if eviction.taint == self.eviction_taint else 0.0
        return replace(
            self,
            eviction_reason=eviction.reason,
            eviction_taint=eviction.taint,
            notice_s=eviction.notice_s,
            leaves_s=leaves_s,
        )


def loss_time(pod: PodFact, nodes: dict[str, NodeFact], node_lost_s: float) -> float | None:
    """Return the time in s at which a pod counts as lost with its node.

    Return None if the node is ready or unknown, or if the pod has ended or was deleted.
    """
    node = nodes.get(pod.node)
    if node is None or node.ready or pod.has_ended or pod.deleted:
        return None
    return node.since_s if pod.terminating else node.since_s + node_lost_s


# ---------------------------------------------------------------- decoding

S = TypeVar("S", bound=ApiObject)
F = TypeVar("F")


def pod_fact(raw: bytes) -> PodFact | None:
    """Decode a pod; return None if it lacks Weir's labels. Raises `MalformedObject`."""
    return _decode(raw, PodObject, _read_pod)


def service_fact(raw: bytes) -> ServiceFact | None:
    """Decode a service; return None if it lacks Weir's labels. Raises `MalformedObject`."""
    return _decode(raw, ServiceObject, lambda each: _read_job_object(each, ServiceFact))


def policy_fact(raw: bytes) -> PolicyFact | None:
    """Decode a network policy; return None if it lacks Weir's labels. Raises `MalformedObject`."""
    return _decode(raw, ServiceObject, lambda each: _read_job_object(each, PolicyFact))


def node_fact(raw: bytes) -> NodeFact:
    """Decode a node. Raises `MalformedObject`."""
    return _decode(raw, NodeObject, _read_node)


def unix_seconds(timestamp: str | None) -> float:
    """Return a time of the API in seconds since 1970; 0 for None."""
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0


def _decode(raw: bytes, shape: type[S], read: Callable[[S], F]) -> F:
    try:
        return read(msgspec.json.decode(raw, type=shape))
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise MalformedObject(str(error)) from error


# ---------------------------------------------------------------- kinds


def _read_pod(pod: PodObject) -> PodFact | None:
    meta = pod.metadata
    task = _task_fields(meta)
    if task is None:
        return None
    spec = pod.spec or Spec()
    status = pod.status or PodStatus()
    annotations = meta.annotations or {}
    terminating = meta.deletion_timestamp is not None
    container = _first(status.container_statuses, ContainerStatus())
    state = container.state or State()
    trainer = _first(spec.containers, Container())
    requested = read_resources(_requests(trainer.resources))
    allocated = _requests(container.resources)
    refusal = _find_condition(status, "PodScheduled", "False", "Unschedulable")
    return PodFact(
        **task,
        **_exit_fields(status, state, terminating),
        generation=_whole_number(annotations.get(objects.GENERATION_ANNOTATION)) or 0,
        node=spec.node_name or "",
        phase=status.phase or "Pending",
        terminating=terminating,
        killed_s=unix_seconds(meta.deletion_timestamp),
        unschedulable=(refusal.message or "Unschedulable") if refusal else "",
        unschedulable_since_s=unix_seconds(refusal.last_transition_time) if refusal else 0.0,
        waiting=(state.waiting and state.waiting.reason) or "",
        waiting_message=((state.waiting and state.waiting.message) or "")[:MAX_WAITING],
        resources=requested,
        allocated=read_resources(allocated) if allocated else None,
        created_with=_first_request(annotations.get(objects.RESOURCES_ANNOTATION, ""), requested),
        grace_s=_grace_s(annotations.get(objects.GRACE_ANNOTATION)),
        image=trainer.image or "",
    )


J = TypeVar("J", bound=JobObjectFact)


def _read_job_object(found: ServiceObject, kind: type[J]) -> J | None:
    fields = _job_fields(found.metadata)
    if fields is None:
        return None
    return kind(**fields, terminating=found.metadata.deletion_timestamp is not None)


def _read_node(node: NodeObject) -> NodeFact:
    spec = node.spec or NodeSpec()
    taints = []
    for each in spec.taints or ():
        taints.append(Taint(key=each.key, value=each.value or "", effect=each.effect))
    fact = NodeFact(
        name=node.metadata.name,
        cordoned=bool(spec.unschedulable),
        evicting=tuple([taint for taint in taints if evicts_pods(taint)]),
    )
    eviction = node_eviction(bool(spec.unschedulable), taints)
    if eviction is not None:
        fact = replace(
            fact,
            eviction_reason=eviction.reason,
            eviction_taint=eviction.taint,
            notice_s=eviction.notice_s,
        )
    for condition in (node.status and node.status.conditions) or ():
        if condition.type == "Ready":
            since_s = unix_seconds(condition.last_transition_time)
            return replace(fact, ready=condition.status == "True", since_s=since_s)
    return fact


# ---------------------------------------------------------------- labels


def _job_fields(meta: ObjectMeta) -> dict[str, Any] | None:
    job_uid = _whole_number((meta.labels or {}).get(objects.UID_LABEL))
    if job_uid is None:
        return None
    if not (meta.namespace and meta.uid):
        raise ValueError(f"{meta.name} has no namespace or no uid")
    return {"namespace": meta.namespace, "name": meta.name, "uid": meta.uid, "job_uid": job_uid}


def _task_fields(meta: ObjectMeta) -> dict[str, Any] | None:
    fields, tags = _job_fields(meta), meta.labels or {}
    role, serial = tags.get(objects.ROLE_LABEL), _whole_number(tags.get(objects.SERIAL_LABEL))
    if (
        fields is None
        or role not in get_args(Role)
        or serial is None
        or objects.JOB_LABEL not in tags
    ):
        return None
    return {**fields, "job": tags[objects.JOB_LABEL], "role": role, "serial": serial}


def _whole_number(text: str | None) -> int | None:
    return int(text) if text and WHOLE_NUMBER.fullmatch(text) else None


# ---------------------------------------------------------------- status


def _first_request(annotation: str, requested: Resources) -> Resources:
    """Return the resources in the annotation, or `requested` if it cannot be read."""
    try:
        return msgspec.json.decode(annotation, type=Resources)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return requested


def _grace_s(annotation: str | None) -> int | None:
    """Return the grace in the annotation; None if it cannot be read."""
    grace_s = _whole_number(annotation)
    return grace_s if grace_s is not None and grace_s <= MAX_GRACE_S else None


def _exit_fields(status: PodStatus, state: State, terminating: bool) -> dict[str, Any]:
    """Return exit code, time, reason and message of a pod that has ended; of a running one, the
    fields that are known already.
    """
    end = state.terminated or Terminated()
    disruption = _find_condition(status, "DisruptionTarget", "True")
    reason = status.reason or _exit_reason(end.reason or "", disruption is not None, terminating)
    reason = reason or REASON_OF_PHASE.get(status.phase or "", "")
    message = status.message or end.message or (disruption and disruption.message) or ""
    return {
        "exit_code": end.exit_code,
        "ended_s": unix_seconds(end.finished_at),
        "reason": reason[:MAX_TEXT],
        "message": message[:MAX_TEXT],
    }


def _exit_reason(of_container: str, evicted: bool, terminating: bool) -> str:
    if of_container == "OOMKilled":
        return of_container
    if evicted:
        return EVICTED
    return DELETED if terminating else of_container


def _find_condition(status: PodStatus, kind: str, value: str, reason: str = "") -> Condition | None:
    for condition in status.conditions or ():
        has_status = (condition.type, condition.status) == (kind, value)
        if has_status and reason in ("", condition.reason):
            return condition
    return None


def _requests(required: Requirements | None) -> Amounts:
    return (required.requests if required else None) or {}


def _first(items: list[S] | None, default: S) -> S:
    return items[0] if items else default


# ---------------------------------------------------------------- eviction


class NodeEviction(msgspec.Struct, frozen=True):
    """The reason why the pods of a node have to leave, the taint, and its notice in seconds (0:
    unknown).
    """

    reason: str
    taint: str = ""
    notice_s: float = 0.0


def node_eviction(
    unschedulable: bool, taints: Iterable[Taint], tolerations: Sequence[Toleration] = ()
) -> NodeEviction | None:
    """Return the most urgent reason for pods with these tolerations; None if they may stay."""
    evicting = [taint for taint in taints if evicts_pods(taint, tolerations)]
    if evicting:
        first = min(evicting, key=lambda taint: (TAKEN_AWAY.get(taint.key) or inf, taint.key))
        notice_s = TAKEN_AWAY.get(first.key, 0.0)
        return NodeEviction(TAINTED, f"{first.key}:{first.effect}", notice_s)
    return NodeEviction(CORDONED) if unschedulable else None
