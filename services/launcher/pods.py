"""What a trainer's pod and a job's service look like to Kubernetes: plain manifests, made from a
decision.

The service is headless and owns the pods, so that deleting it removes the job. A pod is bound by
affinity to the node that was chosen, so the scheduler has the last word; what it requests is its
limit, of cpu only where that is hard; and it never restarts: a lost task is decided anew. What it
may do is in `confinement.py`.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec
from msgspec.structs import replace

from services.launcher import confinement, labels
from services.launcher.actions import CreatePod, CreateSecret
from services.launcher.checkpoints import (
    checkpoint_dir,
    checkpoint_mounts,
    checkpoint_volumes,
    continue_from,
)
from services.launcher.quantities import quantities
from services.launcher.settings import Settings
from shared.kube.objects import GPU
from shared.messages import AllocationDecided, CpuLimits, JobRequested, Resources, Volume

Body = dict[str, Any]
CONTAINER, PORT = (
    "tensorflow",
    "tfjob-port",
)  # as a TFJob's: old selectors, dashboards and log queries go on working
COMMAND = ["python", "-m", "services.trainer"]
CREDENTIALS, UID_KEPT = "nats.creds", 13  # two groups of a uid's digits


def service(decision: AllocationDecided) -> Body:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": decision.job,
            "namespace": decision.namespace,
            "labels": labels.job_labels(decision.job, decision.uid),
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {labels.JOB: decision.job, labels.UID: str(decision.uid)},
            "ports": [{"name": PORT, "port": 2222}],
        },
    }


def secret(order: CreateSecret) -> Body:
    """The trainers' credentials, for as long as the job's service is there."""
    decision = order.decision
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "immutable": True,
        "metadata": {
            "name": secret_name(decision.job, order.owner_uid),
            "namespace": decision.namespace,
            "labels": labels.job_labels(decision.job, decision.uid),
            "ownerReferences": [labels.owner(decision.job, order.owner_uid)],
        },
        "data": {CREDENTIALS: base64.b64encode(order.text.encode()).decode()},
    }


def secret_name(job: str, owner_uid: str) -> str:
    """Never used twice, because a service's uid is not."""
    return f"{job}-nats-{owner_uid[:UID_KEPT]}"


def pod(order: CreatePod, settings: Settings) -> Body:
    body = _pod(order, settings)
    body["spec"]["containers"][0]["env"] += [
        *_certificates(settings),
        *_credentials(order, settings),
    ]
    return body


def _certificates(settings: Settings) -> list[Body]:
    return (
        [{"name": "WEIR_NATS_CA", "value": settings.trainer_nats_ca}]
        if settings.trainer_nats_ca
        else []
    )


def _credentials(order: CreatePod, settings: Settings) -> list[Body]:
    """How a pod is given them; who runs in it takes them out of its environment at once."""
    if not settings.signing_key:
        return []
    source = {"name": secret_name(order.decision.job, order.owner_uid), "key": CREDENTIALS}
    return [{"name": "WEIR_NATS_CREDS_TEXT", "valueFrom": {"secretKeyRef": source}}]


def _pod(order: CreatePod, settings: Settings) -> Body:
    decision, task = order.decision, order.task
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": order.name,
            "namespace": decision.namespace,
            "labels": labels.task_labels(decision.job, decision.uid, task),
            "annotations": {
                labels.GENERATION: str(decision.generation),
                labels.RESOURCES: msgspec.json.encode(task.resources).decode(),
                labels.GRACE: str(round(decision.request.grace_s)),
            },
            "ownerReferences": [labels.owner(decision.job, order.owner_uid)],
        },
        "spec": _spec(order, settings),
    }


def resize(resources: Resources, cpu_limits: CpuLimits) -> Body:
    """The patch for a pod's `resize` subresource: cpu and memory only, devices cannot change."""
    container = {"name": CONTAINER, "resources": amounts(replace(resources, gpu=0), cpu_limits)}
    return {"spec": {"containers": [container]}}


def amounts(resources: Resources, cpu_limits: CpuLimits) -> Body:
    """Requests and limits. Soft: no limit of cpu; the kernel weighs a pod by what it requests."""
    wanted = quantities(resources)
    limits = wanted if cpu_limits == "hard" else {k: v for k, v in wanted.items() if k != "cpu"}
    return {"requests": wanted, "limits": limits}


def _spec(order: CreatePod, settings: Settings) -> Body:
    task, request = order.task, order.decision.request
    volumes = [
        *_volumes(request),
        *checkpoint_volumes(order.decision, settings),
        confinement.volume(settings),
    ]
    return {
        "hostname": order.name,
        "subdomain": order.decision.job,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _grace_s(order),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": _on_node(task.node),
        "securityContext": confinement.of_pod(settings),
        "containers": [_container(order, settings)],
        "volumes": volumes,
        **({"priorityClassName": settings.priority_class} if settings.priority_class else {}),
        **({"tolerations": [{"key": GPU, "operator": "Exists"}]} if task.resources.gpu else {}),
    }


def _grace_s(order: CreatePod) -> int:
    return round(max(order.grace_s, order.decision.request.grace_s))


def _container(order: CreatePod, settings: Settings) -> Body:
    request = order.decision.request
    mounts = [{"name": v.name, "mountPath": v.mount_path} for v in request.volumes]
    mounts += checkpoint_mounts(order.decision, settings)
    port = int(settings.task_ports.split(",")[0])
    return {
        "name": CONTAINER,
        "image": request.image or settings.image,
        "command": COMMAND,
        "env": [*_env(order, settings), *_pod_env()],
        "resources": amounts(order.task.resources, request.cpu_limits),
        "securityContext": confinement.CONTAINER,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*mounts, confinement.mount()],
        **({"ports": [{"name": PORT, "containerPort": port}]} if port else {}),
    }


def _env(order: CreatePod, settings: Settings) -> list[Body]:
    decision = order.decision
    task = order.task
    request = order.decision.request
    values = {
        "WEIR_NATS_URL": settings.trainer_nats_url or settings.nats_url,
        "WEIR_LOG_LEVEL": settings.log_level,
        "WEIR_TRAINER_JOB": decision.job,
        "WEIR_TRAINER_NAMESPACE": decision.namespace,
        "WEIR_TRAINER_UID": str(decision.uid),
        "WEIR_TRAINER_ROLE": task.role,
        "WEIR_TRAINER_SERIAL": str(task.serial),
        "WEIR_TRAINER_PORTS": settings.task_ports,
        "WEIR_TRAINER_CHECKPOINT_DIR": checkpoint_dir(decision, settings),
        "WEIR_TRAINER_CPU": f"{task.resources.cpu:g}",
        "WEIR_TRAINER_MEMORY_GIB": f"{task.resources.memory_gib:g}",
        "WEIR_TRAINER_GRACE_S": f"{round(request.grace_s)}",
        "WEIR_TRAINER_GRACE_MOST_S": f"{_grace_s(order)}",
        "WEIR_TRAINER_REDO_S": f"{settings.redo_s:g}",
        "WEIR_TRAINER_STUCK_S": f"{settings.stuck_s:g}",
        "WEIR_TRAINER_STUCK_EARLY_S": f"{settings.stuck_early_s:g}",
        "WEIR_TRAINER_STUCK_PATIENCE": f"{settings.stuck_patience:g}",
        "GRPC_FAIL_FAST": "use_caller",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **confinement.home(settings),
    }
    if earlier := continue_from(decision, settings):
        values["WEIR_TRAINER_CONTINUE_FROM"] = earlier
    return [{"name": name, "value": value} for name, value in values.items()]


def _pod_env() -> list[Body]:
    """What only Kubernetes knows, once the pod is placed."""
    fields = {
        "WEIR_TRAINER_POD": "metadata.name",
        "WEIR_TRAINER_POD_UID": "metadata.uid",
        "WEIR_TRAINER_NODE": "spec.nodeName",
        "WEIR_TRAINER_HOST": "status.podIP",
    }
    return [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in fields.items()
    ]


def _on_node(node: str) -> Body:
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    required = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _volumes(request: JobRequested) -> list[Body]:
    return [{"name": volume.name, **_source(volume)} for volume in request.volumes]


def _source(volume: Volume) -> Body:
    if volume.claim is not None:
        return {"persistentVolumeClaim": {"claimName": volume.claim}}
    return (
        {"hostPath": {"path": volume.host_path}}
        if volume.host_path is not None
        else {"emptyDir": {}}
    )
