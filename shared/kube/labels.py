"""The labels and names by which Weir knows its own, and by which people find them with `kubectl
-l`.
"""

from __future__ import annotations

from shared.messages import TaskPlan

MANAGED_BY, OURS = "app.kubernetes.io/managed-by", "weir"
SELECTOR = f"{MANAGED_BY}={OURS}"
JOB, UID, ROLE, SERIAL, INDEX = (
    f"weir.dev/{word}" for word in ("job", "uid", "role", "serial", "index")
)
GENERATION, RESOURCES = (
    "weir.dev/generation",
    "weir.dev/resources",
)  # annotations: with what a pod was made
GRACE = "weir.dev/grace-seconds"  # annotation: the request's `grace_s`


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
        JOB: job,
        UID: str(uid),
    }


def task_labels(job: str, uid: int, task: TaskPlan) -> dict[str, str]:
    labels = {
        **job_labels(job, uid),
        "app.kubernetes.io/component": task.role,
        "training.kubeflow.org/replica-type": task.role,
        "training.kubeflow.org/replica-index": str(task.index),
        ROLE: task.role,
        SERIAL: str(task.serial),
        INDEX: str(task.index),
    }
    return (
        {**labels, "training.kubeflow.org/job-role": "master"} if task.role == "chief" else labels
    )
