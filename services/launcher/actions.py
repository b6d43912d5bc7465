"""The actions of the launcher, as plain values. `kube.py` and the bus perform them.

Law: two actions with the same purpose have the same key. An action is not ordered again while its
key is pending. An action that is performed twice, late or in part does no harm: an existing object
is left as it is, and a missing object counts as deleted.
"""

from __future__ import annotations

import msgspec

from shared.messages import AllocationDecided, CpuLimits, JobMessage, TaskPlan


class Action(msgspec.Struct, frozen=True, kw_only=True):
    def key(self) -> str:
        raise NotImplementedError


class Publish(Action, frozen=True, kw_only=True):
    """Publish a message."""

    message: JobMessage

    def key(self) -> str:
        return f"publish {self.message.id()}"


class CreateService(Action, frozen=True, kw_only=True):
    """Create the headless service of a job, the owner of everything that is made for it."""

    decision: AllocationDecided

    def key(self) -> str:
        return f"create service {self.decision.uid} {self.decision.generation}"


class CreatePolicy(Action, frozen=True, kw_only=True):
    """Create the network policy of a job. `owner_uid`: of the job's service."""

    decision: AllocationDecided
    owner_uid: str

    def key(self) -> str:
        return f"create policy {self.decision.uid} {self.decision.generation}"


class CreateSecret(Action, frozen=True, kw_only=True):
    """Create the secret with the credentials of a job's trainers.

    `owner_uid`: of the job's service. `text`: the credentials; they are made when the action is
    performed.
    """

    decision: AllocationDecided
    owner_uid: str
    text: str = ""

    def key(self) -> str:
        return f"create secret {self.owner_uid}"


class CreatePod(Action, frozen=True, kw_only=True):
    """Create the pod of one task. An existing pod of this name and this job is left as it is.

    `owner_uid`: of the job's service. `grace_s`: the time that Kubernetes gives the pod to end,
    unless the request asks for more. `image`: of the job's running pods, empty if there are none.
    """

    decision: AllocationDecided
    task: TaskPlan
    name: str
    owner_uid: str
    grace_s: float = 0.0
    image: str = ""

    def key(self) -> str:
        return create_pod_key(self.name, self.decision.uid)


class DeletePod(Action, frozen=True, kw_only=True):
    """Delete the pod with this uid. `grace_s`: its grace period in s; None: the pod's own."""

    namespace: str
    name: str
    uid: str
    grace_s: int | None = None

    def key(self) -> str:
        return delete_pod_key(self.uid)


class DeleteService(Action, frozen=True, kw_only=True):
    """Delete the service of a job, and with it everything that it owns."""

    namespace: str
    name: str
    uid: str

    def key(self) -> str:
        return delete_service_key(self.uid)


class ResizePod(Action, frozen=True, kw_only=True):
    """Change cpu and memory of a running pod to those of the task's new plan."""

    namespace: str
    name: str
    uid: str
    task: TaskPlan
    revision: int
    cpu_limits: CpuLimits = "hard"

    def key(self) -> str:
        return f"resize pod {self.uid} {self.revision}"


CreateAction = CreateService | CreatePolicy | CreateSecret | CreatePod
"""Actions that a generation depends on: if one is refused, the generation is abandoned."""


def create_pod_key(name: str, job_uid: int) -> str:
    return f"create pod {job_uid} {name}"


def delete_pod_key(pod_uid: str) -> str:
    return f"delete pod {pod_uid}"


def delete_service_key(service_uid: str) -> str:
    return f"delete service {service_uid}"
