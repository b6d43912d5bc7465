"""The fields of a TFJob that a job request does not have, and the remedy for each.

`lost`: training may depend on the field, and Weir does not support it. `moot`: Weir handles it in
its own way. A field that is in no table is lost: Kubernetes has too many fields for a full list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from shared.kube.objects import GPU

Kind = Literal["wrong", "lost", "moot"]
Raw = Mapping[str, Any]


class Remark(NamedTuple):
    """A remark on a field. `where`: the replica type, empty for the whole job."""

    kind: Kind
    where: str
    text: str


NODES = "Weir chooses the nodes"
JOB_FILE = "is not taken from a TFJob; a job file has `{}`"
RESTRICTED = "pods are restricted; the cluster sets their user"
NONE = "a job's pods have no privileges"
OWN = "Weir sets its own"
WATCHED = "Weir itself detects a program that hangs"
OVER = "Weir removes all pods of a finished job"
ANSWERS: dict[str, tuple[Kind, str]] = {
    # of the job
    "successPolicy": ("moot", "a job succeeds after every example of every epoch"),
    "enableDynamicWorker": ("moot", "every job is elastic"),
    "cleanPodPolicy": ("moot", OVER),
    "ttlSecondsAfterFinished": ("moot", OVER),
    "backoffLimit": ("moot", "Weir replaces lost tasks, up to the limits of its own settings"),
    "activeDeadlineSeconds": ("lost", "no job has a deadline; `weir cancel` ends one"),
    "schedulingPolicy": (
        "moot",
        "a job starts with all tasks of its minimum size or none, from Weir's own queue",
    ),
    "managedBy": ("moot", "Weir manages this job"),
    # of a pod
    "restartPolicy": ("moot", "a lost task is replaced, and training continues"),
    "nodeSelector": ("lost", JOB_FILE.format("node_selector")),
    "affinity": ("lost", JOB_FILE.format("affinity")),
    "tolerations": ("lost", JOB_FILE.format("tolerations")),
    **dict.fromkeys(("nodeName", "topologySpreadConstraints", "schedulerName"), ("lost", NODES)),
    **dict.fromkeys(("hostNetwork", "hostPID", "hostIPC", "hostUsers"), ("lost", NONE)),
    **dict.fromkeys(
        ("serviceAccountName", "serviceAccount"), ("lost", JOB_FILE.format("service_account"))
    ),
    "priorityClassName": ("lost", "give --priority N; " + JOB_FILE.format("priority_class")),
    "priority": ("lost", "give --priority N"),
    **dict.fromkeys(
        ("hostname", "subdomain", "enableServiceLinks", "terminationMessagePath"), ("moot", OWN)
    ),
    "initContainers": ("lost", "put the files that they prepare into the image or on a claim"),
    "imagePullSecrets": ("lost", JOB_FILE.format("image_pull_secrets")),
    "dnsPolicy": ("moot", OWN),
    # of the container
    "command": ("moot", "is not run: Weir trains PROGRAM"),
    "args": ("moot", "are not used: write their values into PROGRAM"),
    "workingDir": ("moot", "is not used: a pod runs in its own folder"),
    "ports": ("moot", OWN),
    "imagePullPolicy": ("moot", "Kubernetes' default"),
    "envFrom": ("lost", JOB_FILE.format("env_from")),
    **dict.fromkeys(("livenessProbe", "readinessProbe", "startupProbe"), ("moot", WATCHED)),
    **dict.fromkeys(("terminationMessagePolicy", "stdin", "tty", "resizePolicy"), ("moot", OWN)),
    # of a mount
    "readOnly": (
        "lost",
        "volumes are mounted with write access, if the claim allows it",
    ),
    **dict.fromkeys(
        ("subPath", "subPathExpr"), ("lost", "whole volumes are mounted: use the folder above it")
    ),
}
NOTHING = "Weir does not support it"
ENV = JOB_FILE.format("env")
SET_ANYWAY = {"TF_CONFIG", "TF_CPP_MIN_LOG_LEVEL", "GRPC_FAIL_FAST", "PYTHONUNBUFFERED"}
SAFE = {
    "runAsNonRoot",
    "seccompProfile",
    "allowPrivilegeEscalation",
    "readOnlyRootFilesystem",
    "fsGroupChangePolicy",
}
VOLUMES = (
    "a TFJob's volume is a claim or, where the cluster allows it, a folder of the node; a job file"
    " also has `secret` and `config_map`"
)


def unread_fields(raw: Raw, read: set[str], where: str, at: str = "") -> Iterator[Remark]:
    """Yield a remark on each field that is not `read`, except those without an effect."""
    for name, value in raw.items():
        if name not in read and not _has_no_effect(name, value):
            kind, text = _explain_field(name, value)
            yield Remark(kind, where, f"{at}{name}: {text}")


def variable_remarks(name: str, where: str) -> Iterator[Remark]:
    if name not in SET_ANYWAY:
        yield Remark("lost", where, f"env {name}: {ENV}")


def volume_remarks(raw: Raw, mounted: set[str], where: str) -> Iterator[Remark]:
    """Yield remarks on a volume that is neither a claim nor a path. Every pod has an emptyDir at
    /tmp.
    """
    name, sources = str(raw.get("name")), set(raw) - {"name", "persistentVolumeClaim", "hostPath"}
    if "emptyDir" in sources:
        kind: Kind = "moot" if mounted <= {"/tmp"} else "lost"
        text = f"volume {name} (emptyDir): a pod can only write to /tmp"
        yield Remark(kind, where, text)
    for source in sorted(sources - {"emptyDir"}):
        yield Remark("lost", where, f"volume {name} ({source}): {VOLUMES}")


def _has_no_effect(name: str, value: object) -> bool:
    """Return True for null, an empty value, and a value that is the default anyway."""
    if value is None or value == {} or value == [] or value == "":
        return True
    if value is False and name != "automountServiceAccountToken":
        return True
    return (name, value) in DEFAULTS


DEFAULTS = [
    ("automountServiceAccountToken", False),
    ("serviceAccountName", "default"),
    ("serviceAccount", "default"),
    ("schedulerName", "default-scheduler"),
]


def _explain_field(name: str, value: Any) -> tuple[Kind, str]:
    if name == "securityContext":
        is_safe = isinstance(value, Mapping) and set(value) <= SAFE
        return ("moot" if is_safe else "lost"), RESTRICTED
    if name == "tolerations" and isinstance(value, list) and all(map(_tolerates_devices, value)):
        return "moot", "tasks with devices tolerate their nodes"
    if name == "schedulingPolicy" and isinstance(value, Mapping) and value.get("priorityClass"):
        return ANSWERS["priorityClassName"]
    if name == "suspend":
        return "lost", "submit the job at the time of its start"
    return ANSWERS.get(name, ("lost", NOTHING))


def _tolerates_devices(toleration: object) -> bool:
    return isinstance(toleration, Mapping) and toleration.get("key") == GPU
