"""What the launcher can order: values in the imperative. `kube.py` and the bus perform them.

Law: each has a key, the same whenever the same is wanted. While a key is under way it is not
ordered again, and to perform one twice, too late or half does no harm: what is there is left, what
is gone is gone.
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
        return f"say {self.message.id()}"


class CreateService(Action, frozen=True, kw_only=True):
    """Make the headless service of a job: the owner of everything made for it."""

    decision: AllocationDecided

    def key(self) -> str:
        return f"create service {self.decision.uid} {self.decision.generation}"


class CreatePolicy(Action, frozen=True, kw_only=True):
    """Let a job's pods be reached by that job's pods alone."""

    decision: AllocationDecided
    owner_uid: str  # the service's

    def key(self) -> str:
        return f"create policy {self.decision.uid} {self.decision.generation}"


class CreateSecret(Action, frozen=True, kw_only=True):
    """Keep the credentials of a job's trainers for its pods. `text`: they themselves, made when it
    is performed.
    """

    decision: AllocationDecided
    owner_uid: str  # the service's
    text: str = ""

    def key(self) -> str:
        return f"create secret {self.owner_uid}"


class CreatePod(Action, frozen=True, kw_only=True):
    """Make the pod of one task. A pod of that name which is the job's own is left as it is."""

    decision: AllocationDecided
    task: TaskPlan
    name: str
    owner_uid: str  # the service's
    grace_s: float = 0.0  # that Kubernetes gives it to end; the request's, where that is longer

    def key(self) -> str:
        return f"create pod {self.decision.uid} {self.name}"


class DeletePod(Action, frozen=True, kw_only=True):
    """Remove this very pod (`uid`), after `grace_s`; absent: as long as the pod itself asks for."""

    namespace: str
    name: str
    uid: str
    grace_s: int | None = None

    def key(self) -> str:
        return f"delete pod {self.uid}"


class DeleteService(Action, frozen=True, kw_only=True):
    """Remove a job's service, and by ownership everything that was made for the job."""

    namespace: str
    name: str
    uid: str

    def key(self) -> str:
        return f"delete service {self.uid}"


class ResizePod(Action, frozen=True, kw_only=True):
    """Change cpu and memory in place, to what the task's new plan says."""

    namespace: str
    name: str
    uid: str
    task: TaskPlan
    revision: int
    cpu_limits: CpuLimits = "hard"

    def key(self) -> str:
        return f"resize pod {self.uid} {self.revision}"


CreateAction = CreateService | CreatePolicy | CreateSecret | CreatePod
"""What a generation cannot be without: where it is refused, the generation is given up."""


def create_pod_key(pod_name: str, job_uid: int) -> str:
    """The key under which a pod's making is under way."""
    return f"create pod {job_uid} {pod_name}"
