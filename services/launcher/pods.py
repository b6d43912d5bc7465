"""The manifests of a trainer's pod and of a job's service, made from a decision.

The service is headless and owns the pods, so that deleting it removes the job. Node affinity binds
a pod to the chosen node, so the scheduler has the last word. Requests equal limits; cpu has a limit
only where it is hard. A pod never restarts: a lost task is decided again.

A program is untrusted code. Its pod passes the Pod Security standard `restricted`, never runs as
root, has no capability and no API token, and has a read-only root. Beside its volumes and
checkpoints it may write only to /tmp, which is empty at the start, limited, and deleted with the
pod. HOME is there too, because libraries keep caches at home.

Law: a pod sees the checkpoint folder of its own job and, read-only, the one that it continues from;
nothing else of the claim.

The API server rewrites quantities ("1000m" becomes "1"), so they are compared as numbers, in
millicores and MiB.
"""

from __future__ import annotations

import base64
import posixpath
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from services.launcher.actions import CreatePod, CreateSecret
from services.launcher.settings import Settings
from shared import checkpoints
from shared.kube import labels
from shared.kube.objects import GIB, GPU, whole_units
from shared.messages import AllocationDecided, CpuLimits, JobRequested, Resources, Volume

Body = dict[str, Any]
CONTAINER, PORT = (
    "tensorflow",
    "tfjob-port",
)  # as a TFJob's: old selectors, dashboards and log queries go on working
COMMAND = ["python", "-m", "services.trainer"]
CREDENTIALS, UID_KEPT = "nats.creds", 13  # two groups of a uid's digits


def service_manifest(decision: AllocationDecided) -> Body:
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


def secret_manifest(order: CreateSecret) -> Body:
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


def pod_manifest(order: CreatePod, settings: Settings) -> Body:
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


def resize_patch(resources: Resources, cpu_limits: CpuLimits) -> Body:
    """The patch for a pod's `resize` subresource: cpu and memory only, devices cannot change."""
    container = {
        "name": CONTAINER,
        "resources": container_resources(replace(resources, gpu=0), cpu_limits),
    }
    return {"spec": {"containers": [container]}}


def container_resources(resources: Resources, cpu_limits: CpuLimits) -> Body:
    """Requests and limits. Soft: no limit of cpu; the kernel weighs a pod by what it requests."""
    wanted = to_quantities(resources)
    limits = wanted if cpu_limits == "hard" else {k: v for k, v in wanted.items() if k != "cpu"}
    return {"requests": wanted, "limits": limits}


def _spec(order: CreatePod, settings: Settings) -> Body:
    task, request = order.task, order.decision.request
    volumes = [
        *_volumes(request),
        *checkpoint_volumes(order.decision, settings),
        tmp_volume(settings),
    ]
    return {
        "hostname": order.name,
        "subdomain": order.decision.job,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _grace_s(order),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": _on_node(task.node),
        "securityContext": pod_security_context(settings),
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
        "resources": container_resources(order.task.resources, request.cpu_limits),
        "securityContext": SECURITY_CONTEXT,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*mounts, tmp_mount()],
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
        **home_variable(settings),
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


FOLDER, VOLUME = "/tmp", "weir-tmp"  # requests cannot name a volume `weir-...`
SECURITY_CONTEXT: Body = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def pod_security_context(settings: Settings) -> Body:
    """Its security context. Which user it runs as, the image says, unless the settings do."""
    user = settings.run_as_user
    return {
        "runAsNonRoot": True,
        "runAsGroup": settings.run_as_group,  # else a user that the image does not know has the group of root
        "fsGroup": settings.fs_group,
        "seccompProfile": {"type": "RuntimeDefault"},
        **({"runAsUser": user} if user is not None else {}),
    }


def tmp_volume(settings: Settings) -> Body:
    return {"name": VOLUME, "emptyDir": {"sizeLimit": f"{round(settings.tmp_gib * 1024)}Mi"}}


def tmp_mount() -> Body:
    return {"name": VOLUME, "mountPath": FOLDER}


def home_variable(settings: Settings) -> dict[str, str]:
    return {"HOME": settings.home} if settings.home else {}


CHECKPOINTS = "weir-checkpoints"


def checkpoint_dir(decision: AllocationDecided, settings: Settings) -> str:
    """Return the path or URL of the job's own folder, as its pods see it."""
    return _in_pod(_own_folder(decision), settings)


def continue_from(decision: AllocationDecided, settings: Settings) -> str:
    """Return the path or URL of the finished job's folder that this one continues from; empty if
    there is none.
    """
    earlier = decision.request.checkpoint.continue_from
    return _in_pod(earlier, settings) if earlier else ""


def checkpoint_mounts(decision: AllocationDecided, settings: Settings) -> list[dict[str, Any]]:
    """Return the mounts of a container, at the same paths as if the whole claim were mounted."""
    if not settings.checkpoint_claim:
        return []
    folders = {_own_folder(decision): False}
    if earlier := decision.request.checkpoint.continue_from:
        folders.setdefault(earlier, True)
    return [
        _mount(folder, read_only, settings)
        for folder, read_only in folders.items()
        if "://" not in folder
    ]


def _own_folder(decision: AllocationDecided) -> str:
    return checkpoints.checkpoint_location(
        decision.request, decision.uid, decision.checkpoint_folder
    )


def _in_pod(folder: str, settings: Settings) -> str:
    return folder if "://" in folder else posixpath.join(settings.checkpoint_dir, folder)


def _mount(folder: str, read_only: bool, settings: Settings) -> dict[str, Any]:
    mount = {
        "name": CHECKPOINTS,
        "mountPath": _in_pod(folder, settings),
        "subPath": posixpath.normpath(folder),
    }
    return {**mount, "readOnly": True} if read_only else mount


def checkpoint_volumes(decision: AllocationDecided, settings: Settings) -> list[dict[str, Any]]:
    """Return the claim as a volume of the pod, if anything of it is mounted."""
    if not checkpoint_mounts(decision, settings):
        return []
    return [
        {"name": CHECKPOINTS, "persistentVolumeClaim": {"claimName": settings.checkpoint_claim}}
    ]


def to_quantities(resources: Resources) -> dict[str, str]:
    """As a container's requests and limits have them."""
    found = {"cpu": f"{millicores(resources)}m", "memory": f"{mebibytes(resources)}Mi"}
    return {**found, GPU: str(resources.gpu)} if resources.gpu else found


def read_resources(listed: Mapping[str, object]) -> Resources:
    return Resources(
        cpu=whole_units("cpu", listed.get("cpu", 0)) / 1000,
        memory_gib=whole_units("memory", listed.get("memory", 0)) / GIB,
        gpu=whole_units(GPU, listed.get(GPU, 0)),
    )


def millicores(resources: Resources) -> int:
    return round(resources.cpu * 1000)


def mebibytes(resources: Resources) -> int:
    return round(resources.memory_gib * 1024)


def is_same_size(one: Resources, other: Resources) -> bool:
    """Alike in what can change in place."""
    return (millicores(one), mebibytes(one)) == (millicores(other), mebibytes(other))


def is_growth(old: Resources, new: Resources) -> bool:
    return millicores(new) >= millicores(old) and mebibytes(new) >= mebibytes(old)
