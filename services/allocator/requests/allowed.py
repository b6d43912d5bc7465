"""What a cluster gives to nobody, and what it gives only where it says so.

namespace          one of `job_namespaces`, where there are any
image              below one of `images`, where there are any
a node's folder    below one of `host_paths`; everywhere else data is on a claim
privileges         none; nor secrets, service accounts and the like: a request has no field for them
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from services.allocator.rules import Rules
from shared.messages import Volume

PRIVILEGES = {
    *("privileged", "privilegeescalation", "allowprivilegeescalation", "capabilities", "securitycontext", "sysctls"),
    *("hostnetwork", "hostpid", "hostipc", "hostports", "hostusers", "runasuser", "runasroot", "root", "seccomp"),
    *("seccompprofile", "apparmor", "apparmorprofile", "selinux", "selinuxoptions", "procmount"),
    *("serviceaccount", "serviceaccountname", "automountserviceaccounttoken", "priorityclassname", "runtimeclassname"),
}
SOURCES = {
    *("secret", "secretname", "secrets", "configmap", "projected", "downwardapi", "csi", "ephemeral", "emptydir"),
    *("nfs", "iscsi", "image", "hostpath", "persistentvolumeclaim"),
}
"""As Kubernetes and people call them, without capitals and dashes."""


def never(path: str) -> str:
    """Why nobody may have a field of this name; empty where it is only unknown."""
    word = "".join(c for c in path.rpartition(".")[2].lower() if c.isalnum())
    if path.startswith("volumes[") and word in SOURCES:
        return "a volume is a `claim`, or a `host_path` where the cluster allows it, and nothing else"
    return "a job's pods have no privileges, and cannot be given any" if word in PRIVILEGES else ""


def reasons(parts: Mapping[str, Any], rules: Rules) -> Iterator[str]:
    """Against what a request names; `parts`: its fields, as far as they can be read."""
    yield from _namespace(parts.get("namespace", "default"), rules.job_namespaces)
    yield from _image(parts.get("image"), rules.images)
    for i, volume in enumerate(parts.get("volumes", ())):
        yield from (f"volumes[{i}].{why}" for why in _folder(volume, rules.host_paths))


def _namespace(name: str, allowed: tuple[str, ...]) -> Iterator[str]:
    if allowed and name not in allowed:
        yield f"namespace: jobs may not run in {name!r}; they may in {', '.join(allowed)}"


def _image(name: str | None, allowed: tuple[str, ...]) -> Iterator[str]:
    if name is not None and allowed and not any(_is_of(name, prefix) for prefix in allowed):
        yield f"image: {name!r} is not allowed; WEIR_ALLOCATOR_IMAGES allows {', '.join(allowed)}"


def _is_of(name: str, prefix: str) -> bool:
    """Below a prefix that ends with `/`; else that very image, whatever its tag and digest."""
    rest = name.removeprefix(prefix)
    if rest == name and prefix:
        return False
    return prefix.endswith("/") or not rest or (rest[0] in ":@" and "/" not in rest)


def _folder(volume: Volume, allowed: tuple[str, ...]) -> Iterator[str]:
    path = volume.host_path
    if path is None:
        return
    if not path.startswith("/") or ".." in path.split("/"):
        yield f"host_path: {path!r} is not an absolute path without `..`"
    elif not allowed:
        yield f"host_path: {path!r} is a folder of the node, which no job may see here; use a `claim`"
    elif not any(f"{path}/".startswith(f"{folder.rstrip('/')}/") for folder in allowed):
        yield f"host_path: {path!r} is not below a folder of the node that jobs may see: {', '.join(allowed)}"
