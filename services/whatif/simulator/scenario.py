"""The input: the work, the machines, and the true speeds and losses.

Units: seconds, cores, GiB, devices, samples; a batch is the global one (of all workers together),
as in the surfaces. The CSV of jobs says nothing of memory, so its tasks want none; nor of a chief,
so it costs nothing. A job from a recorded log is asked for with its own request.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from services.allocator.policies.contract import Quotas
from services.whatif.simulator.losses import Curve
from services.whatif.simulator.surfaces import Surface
from shared.messages import JobRequested, Program, Resources, RoleResources, Span

Least1 = Annotated[int, Meta(ge=1)]
Least0 = Annotated[float, Meta(ge=0)]
Devices = Annotated[int, Meta(ge=0)]


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One job: its request, and its amount of work. `ps` = 0: devices side by side, without ps."""

    job: str
    model: str
    samples: int
    """In all epochs together."""
    epochs: int = 1
    submitted_s: float = 0.0
    batch: Span
    ps: Span
    workers: Span
    device_batch_max: int | None = None
    ps_cpu: float = 1.0
    worker_cpu: float = 1.0
    worker_gpu: int = 0
    priority: int = 0
    namespace: str = "default"
    asked: JobRequested | None = None
    """The real request, if it is known."""

    def request(self) -> JobRequested:
        """Return the request that a person would have sent, without a policy.

        Jobs of one model run one program: its digest is the model's.
        """
        if self.asked:
            return replace(self.asked, job=self.job, policy=None)
        digest = hashlib.sha256(self.model.encode()).hexdigest()
        return JobRequested(
            job=self.job,
            namespace=self.namespace,
            program=Program(name=f"{self.model}.py", digest=f"sha256-{digest}"),
            epochs=self.epochs,
            batch=self.batch,
            ps=self.ps,
            workers=self.workers,
            resources=self.resources(),
            device_batch_max=self.device_batch_max,
            priority=self.priority,
        )

    def resources(self) -> RoleResources:
        """Return the resources of a task of each role."""
        if self.asked:
            return self.asked.resources or RoleResources()
        return RoleResources(
            chief=Resources(),
            ps=Resources(cpu=self.ps_cpu),
            worker=Resources(cpu=self.worker_cpu, gpu=self.worker_gpu),
        )


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node, or `count` alike: `big`, or `small-1`, `small-2`, as in the cluster file of `weir
    up`.
    """

    count: Least1 = 1
    cpu: Least0 = 1.0
    memory_gib: Least0 = 4.0
    gpu: Devices = 0
    name: str = ""

    def names(self) -> list[str]:
        """Return the name of each of the nodes."""
        if self.count == 1:
            return [self.name]
        return [f"{self.name}-{number}" for number in range(1, self.count + 1)]


class Tenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Somebody else's work on one node, for some time (`to_s` absent: for ever). It has the right
    of way.
    """

    node: str
    cpu: Least0
    from_s: Least0 = 0.0
    to_s: Least0 | None = None


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[Machine, ...]
    tenants: tuple[Tenant, ...] = ()
    quotas: Quotas = {}

    def named(self) -> dict[str, Resources]:
        """Return the resources of each node."""
        found = {}
        for machine in self.nodes:
            has = Resources(
                cpu=machine.cpu,
                memory_gib=machine.memory_gib,
                gpu=machine.gpu,
            )
            for name in machine.names():
                found[name] = has
        return found


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A world to try policies on."""

    jobs: tuple[Work, ...]
    cluster: Cluster
    surfaces: Mapping[str, Surface]
    """True speeds, by model."""
    losses: Mapping[str, Curve] = {}
    """Loss by samples trained on, by model; a model without one reports no loss."""
    restart_s: float = 30.0
    """The time without training at each change of tasks, and before the first step."""
    noise: float = 0.0
    """Standard deviation of the logarithm of a job's speed from one report to the next."""
    report_s: float = 30.0
    """Every job that trains reports at each multiple of this."""
