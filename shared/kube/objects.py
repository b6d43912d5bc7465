"""Parts of Kubernetes API objects, its quantities (`250m`, `1.5Gi`, `1e3`), and the taints that
evict a node's pods, with the grace period that a task gets; and the labels by which Weir knows its
own objects, and people find them with `kubectl -l`.

Null stands for absent. A quantity is parsed exactly, and is a whole number then (thousandths of a
core, bytes, devices, pods), rounded up as the scheduler does, so that sums are exact. No quantity
is larger than `LARGEST`, as in Kubernetes.

A pod that does not tolerate a NoExecute taint is deleted at once. Autoscalers and the spot notices
of clouds announce the end of a node with a taint of a known name; most of them only keep new pods
off. "Not ready" and "unreachable" are taints too, but do not mean that pods have to leave.

    grace = max(requested, min(MARGIN * change, most))

requested: `grace_s` of the request; change: the longest of the last measured times from a decision
to the first update of its generation (pods, preparation, drain, save, restore); most: the bound of
the platform.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache

import msgspec

from shared.messages import CORDONED, TAINTED, JobRequested, Taint, TaskPlan, Toleration


class MalformedObject(ValueError):
    """An object that is not valid in Kubernetes; the text names the place."""


class ApiObject(msgspec.Struct, frozen=True, rename="camel"):
    """A piece of an API object."""


class ListMeta(ApiObject, frozen=True):
    resource_version: str | None = None
    continue_: str | None = msgspec.field(name="continue", default=None)


class ListPage(ApiObject, frozen=True):
    """One page of a list. Its objects are not decoded."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class WatchLine(ApiObject, frozen=True):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class Versioned(ApiObject, frozen=True):
    """The part that every object and every bookmark has."""

    metadata: ListMeta


class Status(ApiObject, frozen=True):
    """A refusal of the API server."""

    code: int | None = None
    reason: str | None = None
    message: str | None = None


GPU = "nvidia.com/gpu"
LARGEST = Fraction((1 << 63) - 1)

_SHAPE = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?\d{1,3}))?")
_UNITS = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    None: Fraction(1),
}
_UNITS |= {unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", 1)}
_UNITS |= {f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", 1)}


def parse_quantity(quantity: object) -> Fraction:
    """Return a quantity in its base unit. Raises `ValueError`."""
    text = str(quantity)
    found = _SHAPE.fullmatch(text)
    if not found:
        raise ValueError(
            f"quantities must match the regular expression {_SHAPE.pattern!r}: {text!r}"
        )
    number, unit, exponent = found.groups()
    value = Fraction(number) * (Fraction(10) ** int(exponent) if exponent else _UNITS[unit])
    return max(-LARGEST, min(value, LARGEST))


def whole_units(resource: str, quantity: object) -> int:
    """Return thousandths of a core for `cpu`, and the resource's own unit for all others."""
    return _whole(1000 if resource == "cpu" else 1, str(quantity))


@lru_cache(maxsize=4096)
def _whole(times: int, quantity: str) -> int:
    """Return a quantity in whole units. Cached: reading a pod takes 7 us with the cache, 27
    without; a large cluster has 150,000 (`make bench-scale`).
    """
    value = parse_quantity(quantity) * times
    return -(-value.numerator // value.denominator)


# ---------------------------------------------------------------- eviction

NO_EXECUTE = "NoExecute"
OF_READINESS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
TOLERATED = (*OF_READINESS, GPU)
TAKEN_AWAY: dict[str, float] = {
    "ToBeDeletedByClusterAutoscaler": 0.0,
    "karpenter.sh/disrupted": 0.0,
    "karpenter.sh/disruption": 0.0,
    "node.cloudprovider.kubernetes.io/shutdown": 0.0,
    "cloud.google.com/impending-node-termination": 30.0,
    "aws-node-termination-handler/spot-itn": 120.0,
    "aws-node-termination-handler/asg-lifecycle-termination": 0.0,
    "aws-node-termination-handler/scheduled-maintenance": 0.0,
    "aws-node-termination-handler/rebalance-recommendation": 0.0,
}
"""Taints that announce a node's end, and the seconds between the taint and that end; 0: unknown."""


GPU_TOLERATION = Toleration(key=GPU, operator="Exists")
"""Tolerations of all pods of jobs with devices, because clouds taint the nodes that have some."""


def tolerations_of(request: JobRequested) -> tuple[Toleration, ...]:
    """Return the tolerations of a job's pods."""
    sizes = request.resources
    if sizes is not None and (sizes.chief.gpu or sizes.ps.gpu or sizes.worker.gpu):
        return (*request.tolerations, GPU_TOLERATION)
    return request.tolerations


def is_tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(tolerates(toleration, taint) for toleration in tolerations)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect):
        return False
    if not toleration.key:
        return toleration.operator == "Exists"
    if toleration.key != taint.key:
        return False
    return toleration.operator == "Exists" or toleration.value == taint.value


def evicts_pods(taint: Taint, tolerations: Iterable[Toleration] = ()) -> bool:
    """Return True if pods with these tolerations have to leave. No pod stays on a node that is
    about to be removed.
    """
    if taint.key in TAKEN_AWAY:
        return True
    if taint.effect != NO_EXECUTE or taint.key in TOLERATED:
        return False
    return not is_tolerated(taint, tolerations)


def leaving_reason(
    schedulable: bool, taints: Iterable[Taint], tolerations: Sequence[Toleration] = ()
) -> str:
    """Return the strongest reason why pods with these tolerations have to leave a node; empty if
    they may stay.
    """
    if any(evicts_pods(taint, tolerations) for taint in taints):
        return TAINTED
    return "" if schedulable else CORDONED


MARGIN = 1.5
MEASUREMENTS_KEPT = 3
"""The number of measurements that count."""


def grace_period(asked_s: float, changes_s: Sequence[float], most_s: float) -> float:
    """Return the grace period in s; the requested one if nothing was measured."""
    return max(asked_s, min(MARGIN * max(changes_s, default=0.0), most_s))


def add_measurement(changes_s: Sequence[float], change_s: float) -> tuple[float, ...]:
    """Return the last measurements with one more. 0 is no measurement."""
    if change_s > 0:
        changes_s = (*changes_s, change_s)
    return tuple(changes_s[-MEASUREMENTS_KEPT:])


# ---------------------------------------------------------------- labels


MANAGED_BY, OURS = "app.kubernetes.io/managed-by", "weir"
SELECTOR = f"{MANAGED_BY}={OURS}"
JOB_LABEL = "weir.dev/job"
UID_LABEL = "weir.dev/uid"
ROLE_LABEL = "weir.dev/role"
SERIAL_LABEL = "weir.dev/serial"
INDEX_LABEL = "weir.dev/index"
GENERATION_ANNOTATION = "weir.dev/generation"  # the generation for which a pod was created
RESOURCES_ANNOTATION = "weir.dev/resources"
GRACE_ANNOTATION = "weir.dev/grace-seconds"  # the request's `grace_s`


def owner(service: str, uid: str) -> dict[str, object]:
    """Return the owner of every object of a job: the job's service."""
    return {"apiVersion": "v1", "kind": "Service", "name": service, "uid": uid, "controller": True}


def job_labels(job: str, uid: int) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "weir-trainer",
        "app.kubernetes.io/instance": job,
        "app.kubernetes.io/part-of": "weir",
        MANAGED_BY: OURS,
        "training.kubeflow.org/job-name": job,
        "training.kubeflow.org/operator-name": OURS,
        JOB_LABEL: job,
        UID_LABEL: str(uid),
    }


def task_labels(job: str, uid: int, task: TaskPlan) -> dict[str, str]:
    labels = {
        **job_labels(job, uid),
        "app.kubernetes.io/component": task.role,
        "training.kubeflow.org/replica-type": task.role,
        "training.kubeflow.org/replica-index": str(task.index),
        ROLE_LABEL: task.role,
        SERIAL_LABEL: str(task.serial),
        INDEX_LABEL: str(task.index),
    }
    return (
        {**labels, "training.kubeflow.org/job-role": "master"} if task.role == "chief" else labels
    )
