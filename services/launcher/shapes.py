"""The few fields that are read of Kubernetes' objects, typed; everything else is passed over.

Law: null stands for absent, and what is of another type than Kubernetes gives it is an error of the
decoder.
"""

from __future__ import annotations

from shared.kube.objects import ApiObject
from shared.messages import Whole

Amounts = dict[str, str | int | float]


class Meta(ApiObject, frozen=True):
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
    metadata: Meta
    spec: Spec | None = None
    status: PodStatus | None = None


class ServiceObject(ApiObject, frozen=True):
    metadata: Meta


class NodeTaint(ApiObject, frozen=True):
    key: str
    effect: str


class NodeSpec(ApiObject, frozen=True):
    unschedulable: bool | None = None
    taints: list[NodeTaint] | None = None


class NodeObject(ApiObject, frozen=True):
    metadata: Meta
    spec: NodeSpec | None = None
    status: NodeStatus | None = None
