"""The manifests of a job's service and secret and of its trainers' pods, from a decision.

The service is headless and owns the pods, so that deleting it removes the job. Node affinity binds
a pod to the chosen node, and the scheduler still checks it. Requests equal limits; cpu has a limit
only if it is hard. A pod never restarts: a lost task needs a new decision.

A program is untrusted code. Its pod passes the Pod Security standard `restricted`, never runs as
root, has no capability and no API token, and has a read-only root. Beside its volumes and
checkpoints it may write only to /tmp, which is empty at the start, limited, and deleted with the
pod. HOME is there too, because libraries keep caches at home.

A request's own settings (variables, labels, tolerations and so on) are added where they are in
Kubernetes. Weir's variables, labels and annotations come after them and win. Secrets and ConfigMaps
are named only, so the launcher reads none.

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
from shared.kube import objects
from shared.kube.objects import GPU, GPU_TOLERATION, tolerations_of, whole_units
from shared.messages import (
    GIB,
    Affinity,
    AllocationDecided,
    CpuLimits,
    EnvFrom,
    EnvVar,
    FieldRequirement,
    JobRequested,
    LabelRequirement,
    NodeSelectorTerm,
    Resources,
    Toleration,
    Volume,
)

Body = dict[str, Any]
CONTAINER, PORT = "tensorflow", "tfjob-port"
"""The names that a TFJob uses, so that existing selectors, dashboards and log queries still work.
"""
COMMAND = ["python", "-m", "services.trainer"]
CREDENTIALS = "nats.creds"
UID_CHARACTERS = 13
"""The characters of the first two groups of a uid."""


def service_manifest(decision: AllocationDecided) -> Body:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": decision.job,
            "namespace": decision.namespace,
            "labels": objects.job_labels(decision.job, decision.uid),
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {objects.JOB_LABEL: decision.job, objects.UID_LABEL: str(decision.uid)},
            "ports": [{"name": PORT, "port": 2222}],
        },
    }


def secret_manifest(order: CreateSecret) -> Body:
    """Return the secret with the trainers' credentials; the job's service owns it."""
    decision = order.decision
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "immutable": True,
        "metadata": {
            "name": secret_name(decision.job, order.owner_uid),
            "namespace": decision.namespace,
            "labels": objects.job_labels(decision.job, decision.uid),
            "ownerReferences": [objects.owner(decision.job, order.owner_uid)],
        },
        "data": {CREDENTIALS: base64.b64encode(order.text.encode()).decode()},
    }


def secret_name(job: str, owner_uid: str) -> str:
    """Return a name that is never used again, because the uid of a service is not."""
    return f"{job}-nats-{owner_uid[:UID_CHARACTERS]}"


def pod_manifest(order: CreatePod, settings: Settings) -> Body:
    decision, task = order.decision, order.task
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": order.name,
            "namespace": decision.namespace,
            "labels": {
                **decision.request.labels,
                **objects.task_labels(decision.job, decision.uid, task),
            },
            "annotations": {
                **decision.request.annotations,
                objects.GENERATION_ANNOTATION: str(decision.generation),
                objects.RESOURCES_ANNOTATION: msgspec.json.encode(task.resources).decode(),
                objects.GRACE_ANNOTATION: str(round(decision.request.grace_s)),
            },
            "ownerReferences": [objects.owner(decision.job, order.owner_uid)],
        },
        "spec": _pod_spec(order, settings),
    }


def resize_patch(resources: Resources, cpu_limits: CpuLimits) -> Body:
    """Return the patch of a pod's `resize` subresource: cpu and memory, because devices are
    fixed.
    """
    container = {
        "name": CONTAINER,
        "resources": container_resources(replace(resources, gpu=0), cpu_limits),
    }
    return {"spec": {"containers": [container]}}


def container_resources(resources: Resources, cpu_limits: CpuLimits) -> Body:
    """Return requests and limits. With soft limits cpu has none: the kernel weighs a pod by its
    request.
    """
    requests = to_quantities(resources)
    limits = dict(requests)
    if cpu_limits == "soft":
        del limits["cpu"]
    return {"requests": requests, "limits": limits}


def _pod_spec(order: CreatePod, settings: Settings) -> Body:
    task, request = order.task, order.decision.request
    volumes = [
        *_request_volumes(request),
        *_shm_volumes(request),
        *checkpoint_volumes(order.decision, settings),
        tmp_volume(settings),
    ]
    spec: Body = {
        "hostname": order.name,
        "subdomain": order.decision.job,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _grace_s(order),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": _node_affinity(task.node, request.affinity),
        "securityContext": pod_security_context(settings),
        "containers": [_container(order, settings)],
        "volumes": volumes,
    }
    priority_class = request.priority_class or settings.priority_class
    if priority_class:
        spec["priorityClassName"] = priority_class
    tolerations = tolerations_of(request)
    if task.resources.gpu and GPU_TOLERATION not in tolerations:
        tolerations = (*tolerations, GPU_TOLERATION)
    if tolerations:
        spec["tolerations"] = [_toleration(each) for each in tolerations]
    if request.node_selector:
        spec["nodeSelector"] = dict(request.node_selector)
    if request.service_account:
        spec["serviceAccountName"] = request.service_account
    if request.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": ref.name} for ref in request.image_pull_secrets]
    return spec


def _toleration(toleration: Toleration) -> Body:
    """Return a toleration as the API expects it, without its empty fields."""
    found: Body = {"operator": toleration.operator}
    for field in ("key", "value", "effect"):
        if getattr(toleration, field):
            found[field] = getattr(toleration, field)
    return found


def _grace_s(order: CreatePod) -> int:
    return round(max(order.grace_s, order.decision.request.grace_s))


def _container(order: CreatePod, settings: Settings) -> Body:
    request = order.decision.request
    mounts = [_mount(volume) for volume in request.volumes]
    if request.shm_gib is not None:
        mounts.append({"name": SHM_VOLUME, "mountPath": SHM_FOLDER})
    mounts += [*checkpoint_mounts(order.decision, settings), tmp_mount()]
    container: Body = {
        "name": CONTAINER,
        "image": trainer_image(order, settings),
        "command": COMMAND,
        "env": _environment(order, settings),
        "resources": container_resources(order.task.resources, request.cpu_limits),
        "securityContext": SECURITY_CONTEXT,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    if request.env_from:
        container["envFrom"] = [_env_from(source) for source in request.env_from]
    port = int(settings.task_ports.split(",")[0])
    if port:
        container["ports"] = [{"name": PORT, "containerPort": port}]
    return container


def trainer_image(order: CreatePod, settings: Settings) -> str:
    return order.decision.request.image or order.image or settings.image


def _environment(order: CreatePod, settings: Settings) -> list[Body]:
    """Return the variables of a trainer: those of the request, then Weir's own. It removes the
    credentials at once, so that no program can read them. They come last: Kubernetes replaces
    `$(NAME)` in a value by the variables before it only.
    """
    values = _task_variables(order, settings)
    variables: list[Body] = []
    for variable in order.decision.request.env:
        if variable.name not in values or variable.name in CHANGEABLE_VARIABLES:
            variables.append(_env_variable(variable))
            values.pop(variable.name, None)
    variables += [{"name": name, "value": value} for name, value in values.items()]
    for name, path in POD_FIELDS.items():
        variables.append({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
    if settings.trainer_nats_ca:
        variables.append({"name": "WEIR_NATS_CA", "value": settings.trainer_nats_ca})
    if settings.signing_key:
        secret = secret_name(order.decision.job, order.owner_uid)
        source = {"secretKeyRef": {"name": secret, "key": CREDENTIALS}}
        variables.append({"name": "WEIR_NATS_CREDS_TEXT", "valueFrom": source})
    return variables


def _task_variables(order: CreatePod, settings: Settings) -> dict[str, str]:
    decision, task = order.decision, order.task
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
        "WEIR_TRAINER_GRACE_S": f"{round(decision.request.grace_s)}",
        "WEIR_TRAINER_GRACE_MOST_S": f"{_grace_s(order)}",
        "WEIR_TRAINER_REDO_S": f"{settings.redo_s:g}",
        "WEIR_NOISE_SHARE": f"{settings.noise_share:g}",
        "WEIR_TRAINER_STUCK_S": f"{settings.stuck_s:g}",
        "WEIR_TRAINER_STUCK_EARLY_S": f"{settings.stuck_early_s:g}",
        "WEIR_TRAINER_STUCK_PATIENCE": f"{settings.stuck_patience:g}",
        "GRPC_FAIL_FAST": "use_caller",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **home_variable(settings),
    }
    if earlier := continue_from(decision, settings):
        values["WEIR_TRAINER_CONTINUE_FROM"] = earlier
    return values


CHANGEABLE_VARIABLES = ("TF_CPP_MIN_LOG_LEVEL",)
"""Weir's own variables that a request may set."""


def _env_variable(variable: EnvVar) -> Body:
    source = variable.value_from
    if source is None:
        return {"name": variable.name, "value": variable.value or ""}
    for kind, ref in (
        ("secretKeyRef", source.secret_key_ref),
        ("configMapKeyRef", source.config_map_key_ref),
    ):
        if ref is not None:
            reference = {"name": ref.name, "key": ref.key}
            return {"name": variable.name, "valueFrom": {kind: reference}}
    raise ValueError(f"{variable.name} has no value")  # admission refuses it


def _env_from(source: EnvFrom) -> Body:
    found: Body = {"prefix": source.prefix} if source.prefix else {}
    if source.secret_ref is not None:
        found["secretRef"] = {"name": source.secret_ref.name}
    if source.config_map_ref is not None:
        found["configMapRef"] = {"name": source.config_map_ref.name}
    return found


POD_FIELDS = {
    "WEIR_TRAINER_POD": "metadata.name",
    "WEIR_TRAINER_POD_UID": "metadata.uid",
    "WEIR_TRAINER_NODE": "spec.nodeName",
    "WEIR_TRAINER_HOST": "status.podIP",
}
"""Variables that Kubernetes sets once the pod has a node."""


def _node_affinity(node: str, requested: Affinity | None) -> Body:
    """Return the affinity to the chosen node, in each term that the request has: a node has to
    fulfil one of them as a whole.
    """
    chosen = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms: list[Body] = []
    for term in _requested_terms(requested):
        fields = [_requirement(field) for field in term.match_fields]
        own: Body = {"matchFields": [*fields, chosen]}
        if term.match_expressions:
            own["matchExpressions"] = [_requirement(label) for label in term.match_expressions]
        terms.append(own)
    required = {"nodeSelectorTerms": terms or [{"matchFields": [chosen]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _requested_terms(requested: Affinity | None) -> tuple[NodeSelectorTerm, ...]:
    if requested is None or requested.node_affinity is None:
        return ()
    affinity = requested.node_affinity
    return affinity.required_during_scheduling_ignored_during_execution.node_selector_terms


def _requirement(wanted: LabelRequirement | FieldRequirement) -> Body:
    found: Body = {"key": wanted.key, "operator": wanted.operator}
    if wanted.values:
        found["values"] = list(wanted.values)
    return found


def _request_volumes(request: JobRequested) -> list[Body]:
    return [{"name": volume.name, **_volume_source(volume)} for volume in request.volumes]


def _volume_source(volume: Volume) -> Body:
    if volume.claim is not None:
        return {"persistentVolumeClaim": {"claimName": volume.claim}}
    if volume.host_path is not None:
        return {"hostPath": {"path": volume.host_path}}
    if volume.secret is not None:
        return {"secret": {"secretName": volume.secret, "defaultMode": READABLE}}
    if volume.config_map is not None:
        return {"configMap": {"name": volume.config_map}}
    return {"emptyDir": {}}


def _mount(volume: Volume) -> Body:
    """Return the mount of a volume. The files of a Secret or ConfigMap are read-only."""
    mount: Body = {"name": volume.name, "mountPath": volume.mount_path}
    if volume.secret is not None or volume.config_map is not None:
        mount["readOnly"] = True
    return mount


def _shm_volumes(request: JobRequested) -> list[Body]:
    """Return the shared memory of the pod, if the request names its size."""
    if request.shm_gib is None:
        return []
    size = f"{round(request.shm_gib * 1024)}Mi"
    return [{"name": SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": size}}]


READABLE = 0o440
"""The mode of a secret's files: for the pod's user, by its group."""
SHM_FOLDER = "/dev/shm"
SHM_VOLUME = "weir-shm"
TMP_FOLDER = "/tmp"
TMP_VOLUME = "weir-tmp"
"""Requests cannot name a volume `weir-...`."""
SECURITY_CONTEXT: Body = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def pod_security_context(settings: Settings) -> Body:
    """Return the security context of a pod. Without `run_as_user` the image names the user. A user
    that the image does not know would have root's group, so the group is set.
    """
    context: Body = {
        "runAsNonRoot": True,
        "runAsGroup": settings.run_as_group,
        "fsGroup": settings.fs_group,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if settings.run_as_user is not None:
        context["runAsUser"] = settings.run_as_user
    return context


def tmp_volume(settings: Settings) -> Body:
    return {"name": TMP_VOLUME, "emptyDir": {"sizeLimit": f"{round(settings.tmp_gib * 1024)}Mi"}}


def tmp_mount() -> Body:
    return {"name": TMP_VOLUME, "mountPath": TMP_FOLDER}


def home_variable(settings: Settings) -> dict[str, str]:
    return {"HOME": settings.home} if settings.home else {}


CHECKPOINT_VOLUME = "weir-checkpoints"


def checkpoint_dir(decision: AllocationDecided, settings: Settings) -> str:
    """Return the path or URL of the job's own folder, as its pods see it."""
    return _path_in_pod(_own_folder(decision), settings)


def continue_from(decision: AllocationDecided, settings: Settings) -> str:
    """Return the path or URL of the finished job's folder that this one continues from; empty if
    there is none.
    """
    earlier = decision.request.checkpoint.continue_from
    return _path_in_pod(earlier, settings) if earlier else ""


def checkpoint_mounts(decision: AllocationDecided, settings: Settings) -> list[dict[str, Any]]:
    """Return the mounts of a container, at the same paths as if the whole claim were mounted."""
    if not settings.checkpoint_claim:
        return []
    folders = {_own_folder(decision): False}
    if earlier := decision.request.checkpoint.continue_from:
        folders.setdefault(earlier, True)
    mounts = []
    for folder, read_only in folders.items():
        if "://" in folder:
            continue
        mount = {
            "name": CHECKPOINT_VOLUME,
            "mountPath": _path_in_pod(folder, settings),
            "subPath": posixpath.normpath(folder),
        }
        mounts.append({**mount, "readOnly": True} if read_only else mount)
    return mounts


def _own_folder(decision: AllocationDecided) -> str:
    return checkpoints.checkpoint_location(
        decision.request, decision.uid, decision.checkpoint_folder
    )


def _path_in_pod(folder: str, settings: Settings) -> str:
    return folder if "://" in folder else posixpath.join(settings.checkpoint_dir, folder)


def checkpoint_volumes(decision: AllocationDecided, settings: Settings) -> list[dict[str, Any]]:
    """Return the claim as a volume of the pod, if anything of it is mounted."""
    if not checkpoint_mounts(decision, settings):
        return []
    return [
        {
            "name": CHECKPOINT_VOLUME,
            "persistentVolumeClaim": {"claimName": settings.checkpoint_claim},
        }
    ]


def to_quantities(resources: Resources) -> dict[str, str]:
    """Return the quantities for the requests and limits of a container."""
    found = {"cpu": f"{millicores(resources)}m", "memory": f"{mebibytes(resources)}Mi"}
    if resources.gpu:
        found[GPU] = str(resources.gpu)
    return found


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
    """Return True if cpu and memory, which can change in place, are equal."""
    return (millicores(one), mebibytes(one)) == (millicores(other), mebibytes(other))


def is_growth(old: Resources, new: Resources) -> bool:
    """Return True if neither cpu nor memory shrinks."""
    return millicores(new) >= millicores(old) and mebibytes(new) >= mebibytes(old)
