"""Permissions: features that no job gets, and features that only the settings of the cluster allow.

namespace          one of `job_namespaces`, where there are any
image              below one of `images`, where there are any
a node's folder    below one of `host_paths`; everywhere else data is on a claim
privileges         none; nor secrets, service accounts and the like: a request has no field for them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from services.allocator.settings import Rules
from shared.messages import Volume

PRIVILEGES = {
    "allowprivilegeescalation",
    "apparmor",
    "apparmorprofile",
    "automountserviceaccounttoken",
    "capabilities",
    "hostipc",
    "hostnetwork",
    "hostpid",
    "hostports",
    "hostusers",
    "priorityclassname",
    "privileged",
    "privilegeescalation",
    "procmount",
    "root",
    "runasroot",
    "runasuser",
    "runtimeclassname",
    "seccomp",
    "seccompprofile",
    "securitycontext",
    "selinux",
    "selinuxoptions",
    "serviceaccount",
    "serviceaccountname",
    "sysctls",
}
SOURCES = {
    "configmap",
    "csi",
    "downwardapi",
    "emptydir",
    "ephemeral",
    "hostpath",
    "image",
    "iscsi",
    "nfs",
    "persistentvolumeclaim",
    "projected",
    "secret",
    "secretname",
    "secrets",
}
"""As Kubernetes and people call them, without capitals and dashes."""


def forbidden_reason(path: str) -> str:
    """Return the reason against a forbidden field; empty: the field is only unknown."""
    name = path.rpartition(".")[2].lower()
    word = "".join(filter(str.isalnum, name))
    if path.startswith("volumes[") and word in SOURCES:
        return "not allowed; a volume is a `claim` or, where the cluster allows it, a `host_path`"
    if word in PRIVILEGES:
        return "not allowed: a job's pods get no privileges"
    return ""


def permission_reasons(parts: Mapping[str, Any], rules: Rules) -> Iterator[str]:
    """Yield the reasons against the namespace, the image and the folders that a request names.

    `parts`: its fields, as far as they can be read.
    """
    namespace = parts.get("namespace", "default")
    volumes = parts.get("volumes", ())
    yield from _namespace_reasons(namespace, rules.job_namespaces)
    yield from _image_reasons(parts.get("image"), rules.images)
    for i, volume in enumerate(volumes):
        for why in _folder_reasons(volume, rules.host_paths):
            yield f"volumes[{i}].{why}"


def _namespace_reasons(name: str, allowed: tuple[str, ...]) -> Iterator[str]:
    """Yield the reason against a namespace without permission for jobs. Without a list of allowed
    ones every namespace is allowed.
    """
    if allowed and name not in allowed:
        yield f"namespace: jobs may not run in {name!r}; allowed are {', '.join(allowed)}"


def _image_reasons(name: str | None, allowed: tuple[str, ...]) -> Iterator[str]:
    """Yield the reason against an image that is below none of the allowed prefixes. Without
    prefixes every image is allowed.
    """
    if name is None or not allowed:
        return
    for prefix in allowed:
        if _is_of(name, prefix):
            return
    yield f"image: {name!r} is not allowed; WEIR_ALLOCATOR_IMAGES allows {', '.join(allowed)}"


def _is_of(name: str, prefix: str) -> bool:
    """Return True if an image is below a prefix that ends with `/`, or is that very image, with any
    tag and digest.
    """
    if not name.startswith(prefix):
        return False
    rest = name.removeprefix(prefix)
    if prefix.endswith("/") or not rest:
        return True
    return rest[0] in ":@" and "/" not in rest


def _folder_reasons(volume: Volume, allowed: tuple[str, ...]) -> Iterator[str]:
    """Refuse a folder of the node that the cluster does not allow."""
    path = volume.host_path
    if path is None:
        return
    if not path.startswith("/") or ".." in path.split("/"):
        yield f"host_path: {path!r} is not an absolute path without `..`"
    elif not allowed:
        yield (
            f"host_path: {path!r} is a folder of the node, and this cluster allows none; use a"
            " `claim`"
        )
    elif not any(_is_below(path, folder) for folder in allowed):
        yield (
            f"host_path: {path!r} is not below a folder of the node that is allowed: "
            f"{', '.join(allowed)}"
        )


def _is_below(path: str, folder: str) -> bool:
    """Return True if a path is a folder or below it."""
    beginning = folder.rstrip("/") + "/"
    return f"{path}/".startswith(beginning)
