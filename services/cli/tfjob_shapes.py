"""The fields of a TFJob that a job request takes, typed as Kubernetes has them; null stands for
absent.
"""

from __future__ import annotations

import msgspec

from shared.kube.objects import whole_units

CONTAINER = "tensorflow"
Amounts = dict[str, str | int | float]


class Shape(msgspec.Struct, frozen=True, rename="camel"):
    """A piece of a manifest."""


class Requirements(Shape, frozen=True):
    requests: Amounts | None = None
    limits: Amounts | None = None


class Mount(Shape, frozen=True):
    name: str
    mount_path: str


class Variable(Shape, frozen=True):
    name: str


class Container(Shape, frozen=True):
    name: str | None = None
    image: str | None = None
    resources: Requirements | None = None
    volume_mounts: list[Mount] | None = None
    env: list[Variable] | None = None


class Claim(Shape, frozen=True):
    claim_name: str


class HostPath(Shape, frozen=True):
    path: str


class Volume(Shape, frozen=True):
    name: str
    persistent_volume_claim: Claim | None = None
    host_path: HostPath | None = None


class PodSpec(Shape, frozen=True):
    containers: list[Container] | None = None
    volumes: list[Volume] | None = None
    termination_grace_period_seconds: int | None = None


class Template(Shape, frozen=True):
    spec: PodSpec | None = None


class Replica(Shape, frozen=True):
    replicas: int | None = None
    template: Template | None = None

    @property
    def pod(self) -> PodSpec:
        return (self.template or Template()).spec or PodSpec()


class Spec(Shape, frozen=True):
    tf_replica_specs: dict[str, Replica]


class Meta(Shape, frozen=True):
    name: str | None = None
    namespace: str | None = None
    annotations: dict[str, str] | None = None


class TFJob(Shape, frozen=True):
    metadata: Meta
    spec: Spec


def container(replica: Replica) -> Container | None:
    """The one that trains."""
    return next((c for c in replica.pod.containers or () if c.name == CONTAINER), None)


def number(resource: str, quantity: str | int | float | None, unit: int) -> float | None:
    """So many `unit`s; None for what is absent, or is no quantity (the remarks say so)."""
    try:
        found = None if quantity is None else whole_units(resource, quantity)
    except ValueError:
        return None
    return None if found is None else found if unit == 1 else found / unit
