"""Permissions: features that no job gets, and features that only the settings of the cluster allow.

namespace          one of `job_namespaces`, where there are any
image              below one of `images`, where there are any; or of the owner's pod policy
a node's folder    below one of `host_paths`; everywhere else data is on a claim
privileges         none: a request has no field for them

`pod_settings.py` has the permissions that the owner's pod policy gives.
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
    "sysctls",
}
SOURCES = {
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
}
"""As Kubernetes and people call them, without capitals and dashes."""

UNSUPPORTED = {
    "podaffinity": "not supported: Weir itself puts the tasks of a job near each other",
    "podantiaffinity": "not supported: Weir itself chooses the nodes; leave some out by"
    " `affinity.node_affinity`",
    "preferredduringschedulingignoredduringexecution": "not supported: Weir chooses among the"
    " nodes that are required; name only those",
    "tolerationseconds": "not supported: a task stays on a node for as long as the taint is"
    " tolerated",
    "topologyspreadconstraints": "not supported: Weir itself puts the tasks of a job near each"
    " other",
}
"""Parts of Kubernetes' pods that a request does not have, and why."""
SAME_KIND = "all tasks of a role are of one kind; workers of another kind are another job"
ONE_KIND = {
    "workers": SAME_KIND,
    "ps": SAME_KIND,
    "resources.worker": SAME_KIND,
    "resources.ps": SAME_KIND,
}
"""The fields that somebody might write as a list, and the reason against it."""


def forbidden_reason(path: str) -> str:
    """Return the reason against a forbidden field; empty: the field is only unknown."""
    name = path.rpartition(".")[2].lower()
    word = "".join(filter(str.isalnum, name))
    if path.startswith("volumes[") and word in SOURCES:
        return (
            "not allowed; a volume is a `claim`, a `secret`, a `config_map` or, where the cluster"
            " allows it, a `host_path`"
        )
    if word in UNSUPPORTED:
        return UNSUPPORTED[word]
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
    yield from _image_reasons(parts.get("image"), namespace, rules)
    for i, volume in enumerate(volumes):
        for why in _folder_reasons(volume, rules.host_paths):
            yield f"volumes[{i}].{why}"


def _namespace_reasons(name: str, allowed: tuple[str, ...]) -> Iterator[str]:
    """Yield the reason against a namespace without permission for jobs. Without a list of allowed
    ones every namespace is allowed.
    """
    if allowed and name not in allowed:
        yield f"namespace: jobs may not run in {name!r}; allowed are {', '.join(allowed)}"


def _image_reasons(name: str | None, namespace: str, rules: Rules) -> Iterator[str]:
    """Yield the reason against an image that is below none of the prefixes of the setting and of
    the owner's pod policy. Without a file and without prefixes every image is allowed.
    """
    if name is None:
        return
    by_policy = rules.pod_rules.rules_of(namespace).images or ()
    allowed = tuple(dict.fromkeys((*rules.images, *by_policy)))
    if not allowed and not rules.pod_rules.is_file:
        return
    for prefix in allowed:
        if prefix == "*" or _is_of(name, prefix):
            return
    if by_policy:
        yield (
            f"image: {name!r} is not allowed in namespace {namespace!r}; allowed are "
            f"{', '.join(allowed)} (WEIR_ALLOCATOR_IMAGES and the pod policy)"
        )
    else:
        names = ", ".join(allowed) or "none"
        yield f"image: {name!r} is not allowed; WEIR_ALLOCATOR_IMAGES allows {names}"


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
