"""What of a TFJob no job request has a field for: each such field, and what to do instead. Pure.

`lost`: the training may depend on it, and Weir has not got it. `moot`: Weir does it in its own way.
What is in none of the tables is lost: Kubernetes knows more fields than anybody would list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from shared.kube.objects import GPU

Kind = Literal["wrong", "lost", "moot"]
Raw = Mapping[str, Any]


class Remark(NamedTuple):
    """`where`: the replica type, or empty for the job as a whole."""

    kind: Kind
    where: str
    text: str


NODES = "Weir chooses the nodes"
RESTRICTED = "pods are restricted, and whom they run as is the cluster's setting"
NONE = "a job's pods have no privileges"
OWN = "Weir has its own"
WATCHED = "Weir watches the program itself"
OVER = "a job that is over leaves nothing behind"
ANSWERS: dict[str, tuple[Kind, str]] = {
    # of the job
    "successPolicy": ("moot", "a job succeeds once every example of every epoch is trained on"),
    "enableDynamicWorker": ("moot", "every job is dynamic"),
    "cleanPodPolicy": ("moot", OVER),
    "ttlSecondsAfterFinished": ("moot", OVER),
    "backoffLimit": ("moot", "Weir replaces what is lost, and gives up by its own limits"),
    "activeDeadlineSeconds": ("lost", "no job has a deadline; `weir cancel` ends one"),
    "schedulingPolicy": (
        "moot",
        "a job starts with all of its least size or not at all, from Weir's own queue",
    ),
    "managedBy": ("moot", "this request goes to Weir"),
    # of a pod
    "restartPolicy": ("moot", "a task that is lost is replaced, and training goes on"),
    **dict.fromkeys(
        ("nodeSelector", "nodeName", "affinity", "topologySpreadConstraints"), ("lost", NODES)
    ),
    **dict.fromkeys(("tolerations", "schedulerName"), ("lost", NODES)),
    **dict.fromkeys(("hostNetwork", "hostPID", "hostIPC", "hostUsers"), ("lost", NONE)),
    **dict.fromkeys(
        ("serviceAccountName", "serviceAccount"), ("lost", "a job's pods have no access to the API")
    ),
    **dict.fromkeys(("priorityClassName", "priority"), ("lost", "give --priority N")),
    **dict.fromkeys(
        ("hostname", "subdomain", "enableServiceLinks", "terminationMessagePath"), ("moot", OWN)
    ),
    "initContainers": ("lost", "what they prepare belongs in the image or on a claim"),
    "imagePullSecrets": ("lost", "name them in the namespace's default service account"),
    "dnsPolicy": ("moot", OWN),
    # of the container
    "command": ("moot", "is not run: Weir trains PROGRAM"),
    "args": ("moot", "are not given to anybody: what they say belongs in PROGRAM"),
    "workingDir": ("moot", "the program is the only file that is needed there"),
    "ports": ("moot", OWN),
    "imagePullPolicy": ("moot", "Kubernetes' default"),
    "envFrom": ("lost", "pods have no variables of the job's: set them in the image"),
    **dict.fromkeys(("livenessProbe", "readinessProbe", "startupProbe"), ("moot", WATCHED)),
    **dict.fromkeys(("terminationMessagePolicy", "stdin", "tty", "resizePolicy"), ("moot", OWN)),
    # of a mount
    "readOnly": (
        "lost",
        "volumes are mounted so that they can be written to, as far as the claim lets them",
    ),
    **dict.fromkeys(
        ("subPath", "subPathExpr"), ("lost", "volumes are mounted whole: mount above it")
    ),
}
NOTHING = "Weir has nothing like it"
ENV = "pods have no variables of the job's: set it in the image, or in PROGRAM with os.environ"
SET_ANYWAY = {"TF_CONFIG", "TF_CPP_MIN_LOG_LEVEL", "GRPC_FAIL_FAST", "PYTHONUNBUFFERED"}
SAFE = {
    "runAsNonRoot",
    "seccompProfile",
    "allowPrivilegeEscalation",
    "readOnlyRootFilesystem",
    "fsGroupChangePolicy",
}
VOLUMES = "a volume is a claim or, where the cluster allows it, a folder of the node"


def unread_fields(raw: Raw, read: set[str], where: str, at: str = "") -> Iterator[Remark]:
    """Of each field that is not `read`; those that say what holds anyway are passed over."""
    for name, value in raw.items():
        if name not in read and not _has_no_effect(name, value):
            kind, text = _explain_field(name, value)
            yield Remark(kind, where, f"{at}{name}: {text}")


def variable_remarks(name: str, where: str) -> Iterator[Remark]:
    if name not in SET_ANYWAY:
        yield Remark("lost", where, f"env {name}: {ENV}")


def volume_remarks(raw: Raw, mounted: set[str], where: str) -> Iterator[Remark]:
    """One that is neither a claim nor a path. An emptyDir at /tmp is what every pod has."""
    name, sources = str(raw.get("name")), set(raw) - {"name", "persistentVolumeClaim", "hostPath"}
    if "emptyDir" in sources:
        kind: Kind = "moot" if mounted <= {"/tmp"} else "lost"
        yield Remark(
            kind, where, f"volume {name} (emptyDir): every pod may write in /tmp, and nowhere else"
        )
    for source in sorted(sources - {"emptyDir"}):
        yield Remark("lost", where, f"volume {name} ({source}): {VOLUMES}")


def _has_no_effect(name: str, value: object) -> bool:
    """Null, what is empty, and what asks for no more than there is."""
    if value is None or value == {} or value == [] or value == "":
        return True
    return (value is False and name != "automountServiceAccountToken") or (name, value) in DEFAULTS


DEFAULTS = [
    ("automountServiceAccountToken", False),
    ("serviceAccountName", "default"),
    ("serviceAccount", "default"),
    ("schedulerName", "default-scheduler"),
]


def _explain_field(name: str, value: Any) -> tuple[Kind, str]:
    if name == "securityContext":
        return ("moot" if isinstance(value, Mapping) and set(value) <= SAFE else "lost"), RESTRICTED
    if (
        name == "tolerations"
        and isinstance(value, list)
        and all(_tolerates_devices(each) for each in value)
    ):
        return "moot", "tasks with devices tolerate their nodes"
    if name == "schedulingPolicy" and isinstance(value, Mapping) and value.get("priorityClass"):
        return ANSWERS["priorityClassName"]
    if name == "suspend":
        return "lost", "ask for the job when it is to run"
    return ANSWERS.get(name, ("lost", NOTHING))


def _tolerates_devices(toleration: object) -> bool:
    return isinstance(toleration, Mapping) and toleration.get("key") == GPU
