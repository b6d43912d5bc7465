"""Small frozen facts about pods and nodes, read from the API's large objects, and resource amounts.

Law: only what is counted is kept. The `...Object` shapes declare the few fields that are read; the
decoder skips all others, so that twenty thousand pods need a few megabytes. An object that is not
valid is a `MalformedObject`: nothing of it is counted. Amounts are whole numbers, so that sums are
exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec.structs import replace

from shared.bounds import within_bounds
from shared.kube.objects import (
    GPU,
    JOB_LABEL,
    MANAGED_BY,
    OURS,
    ApiObject,
    MalformedObject,
    whole_units,
)
from shared.messages import GIB, Resources, Taint


class Amount(msgspec.Struct, frozen=True):
    """Millicores, bytes and devices."""

    milli: int = 0
    bytes: int = 0
    gpu: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.milli + other.milli, self.bytes + other.bytes, self.gpu + other.gpu)

    def minus(self, other: Amount) -> Amount:
        """Return the difference, never below 0."""
        return Amount(
            max(0, self.milli - other.milli),
            max(0, self.bytes - other.bytes),
            max(0, self.gpu - other.gpu),
        )

    def at_least(self, other: Amount) -> Amount:
        return Amount(
            max(self.milli, other.milli), max(self.bytes, other.bytes), max(self.gpu, other.gpu)
        )

    def resources(self) -> Resources:
        """Return the amount in the units of a message, within its bounds."""
        return within_bounds(
            Resources(cpu=self.milli / 1000, memory_gib=self.bytes / GIB, gpu=self.gpu)
        )


NOTHING = Amount()


def read_amount(named: Mapping[str, object] | None) -> Amount:
    """Return the amount of a `requests` or `allocatable` map. Raises `ValueError`."""
    if not named:
        return NOTHING
    counted = [whole_units(resource, named.get(resource, 0)) for resource in ("cpu", "memory", GPU)]
    if min(counted) < 0:
        raise ValueError(f"negative amount: {dict(named)}")
    return Amount(*counted)


UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?\Z", max_length=253)]
"""A DNS subdomain, as all names of nodes and pods are. A subject contains the name of a node."""


class PodFact(msgspec.Struct, frozen=True):
    """One pod: its node, its requests, and its job (empty if it is not Weir's)."""

    uid: str
    namespace: str
    name: str
    node: str
    requests: Amount
    job: str = ""
    terminating: bool = False
    ended: bool = False


class NodeFact(msgspec.Struct, frozen=True):
    uid: str
    name: str
    allocatable: Amount
    ready: bool = True
    schedulable: bool = True
    taints: tuple[Taint, ...] = ()
    labels: dict[str, str] = {}


# ---------------------------------------------------------------- the API's shapes


class ObjectMeta(ApiObject, frozen=True):
    name: Name
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class Requirements(ApiObject, frozen=True):
    requests: dict[str, str | int | float] | None = None


class Container(ApiObject, frozen=True):
    name: str = ""
    resources: Requirements | None = None
    restart_policy: str | None = None


class ContainerStatus(ApiObject, frozen=True):
    name: str = ""
    allocated_resources: dict[str, str | int | float] | None = None


class PodSpec(ApiObject, frozen=True):
    node_name: str | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    resources: Requirements | None = None
    overhead: dict[str, str | int | float] | None = None


class PodStatus(ApiObject, frozen=True):
    phase: str | None = None
    allocated_resources: dict[str, str | int | float] | None = None
    container_statuses: list[ContainerStatus] | None = None


class PodObject(ApiObject, frozen=True):
    metadata: ObjectMeta
    spec: PodSpec | None = None
    status: PodStatus | None = None

    def fact(self) -> PodFact:
        labels = self.metadata.labels or {}
        is_ours = labels.get(MANAGED_BY) == OURS
        spec = self.spec or PodSpec()
        status = self.status or PodStatus()
        return PodFact(
            uid=self.metadata.uid or f"{self.metadata.namespace}/{self.metadata.name}",
            namespace=self.metadata.namespace or "",
            name=self.metadata.name,
            node=spec.node_name or "",
            requests=effective_request(spec, status),
            job=labels.get(JOB_LABEL, "") if is_ours else "",
            terminating=self.metadata.deletion_timestamp is not None,
            ended=status.phase in ("Succeeded", "Failed"),
        )


class TaintObject(ApiObject, frozen=True):
    key: str = ""
    value: str | None = None
    effect: str = ""


class NodeSpec(ApiObject, frozen=True):
    unschedulable: bool | None = None
    taints: list[TaintObject] | None = None


class Condition(ApiObject, frozen=True):
    type: str = ""
    status: str = ""


class NodeStatus(ApiObject, frozen=True):
    allocatable: dict[str, str | int | float] | None = None
    conditions: list[Condition] | None = None

    def is_ready(self) -> bool:
        return any(
            condition.type == "Ready" and condition.status == "True"
            for condition in self.conditions or ()
        )


class NodeObject(ApiObject, frozen=True):
    metadata: ObjectMeta
    spec: NodeSpec | None = None
    status: NodeStatus | None = None

    def fact(self) -> NodeFact:
        spec = self.spec or NodeSpec()
        status = self.status or NodeStatus()
        taints = []
        for taint in spec.taints or ():
            taints.append(Taint(key=taint.key, value=taint.value or "", effect=taint.effect))
        return NodeFact(
            uid=self.metadata.uid or self.metadata.name,
            name=self.metadata.name,
            allocatable=read_amount(status.allocatable),
            ready=status.is_ready(),
            schedulable=not spec.unschedulable,
            taints=tuple(taints),
            labels=self.metadata.labels or {},
        )


def pod_fact(raw: bytes) -> PodFact:
    """Decode a pod. Raises `MalformedObject`."""
    try:
        return msgspec.json.decode(raw, type=PodObject).fact()
    except UNREADABLE as error:
        raise MalformedObject(str(error)) from error


def node_fact(raw: bytes) -> NodeFact:
    """Decode a node. Raises `MalformedObject`."""
    try:
        return msgspec.json.decode(raw, type=NodeObject).fact()
    except UNREADABLE as error:
        raise MalformedObject(str(error)) from error


# ---------------------------------------------------------------- what a pod requests


def effective_request(spec: PodSpec, status: PodStatus) -> Amount:
    """Return the request that the scheduler counts: of the pod, or of its containers, plus the
    overhead.

    A request of the pod as a whole (`spec.resources`) replaces what its containers request of the
    same resource. While a pod or a container is being resized, the larger of request and allocation
    counts.
    """
    request = container_requests(spec, status)
    whole = spec.resources.requests if spec.resources else None
    wanted = read_amount(whole).at_least(read_amount(status.allocated_resources))
    if whole and "cpu" in whole:
        request = replace(request, milli=wanted.milli)
    if whole and "memory" in whole:
        request = replace(request, bytes=wanted.bytes)
    return request + read_amount(spec.overhead)


def container_requests(spec: PodSpec, status: PodStatus) -> Amount:
    """Return the larger of containers and sidecars, and any init container beside the sidecars
    before it.

    A sidecar is an init container that restarts always.
    """
    allocated = {}
    for container_status in status.container_statuses or ():
        allocated[container_status.name] = read_amount(container_status.allocated_resources)

    sidecars = NOTHING
    peak = NOTHING
    for container in spec.init_containers or ():
        wanted = _requested_amount(container)
        if container.restart_policy == "Always":
            sidecars = sidecars + wanted
            peak = peak.at_least(sidecars)
        else:
            peak = peak.at_least(sidecars + wanted)

    running = NOTHING
    for container in spec.containers or ():
        wanted = _requested_amount(container)
        running = running + wanted.at_least(allocated.get(container.name, NOTHING))
    return (running + sidecars).at_least(peak)


def _requested_amount(container: Container) -> Amount:
    if container.resources is None:
        return NOTHING
    return read_amount(container.resources.requests)
