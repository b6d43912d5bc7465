"""Check the pod settings of a request: their form, and the permissions of the cluster and its
owner.

`form_reasons` refuses what no cluster allows: names that Weir sets itself, a variable without a
value, a condition on nodes that Kubernetes would not read. `policy_reasons` refuses what the
owner's pod policy (`pod_policy.py`) does not allow in the namespace.

Law: no setting takes a pod out of the Pod Security standard `restricted`, and none reaches the
process that holds the job's credentials before it has hidden them. So variables that make Python or
the dynamic linker load code are refused, and labels and annotations of Kubernetes, Weir and a TFJob
are.

`forbidden_reason` explains features that no job gets. `permission_reasons` refuses those that only
the settings of the cluster allow:

namespace          one of `job_namespaces`, unless that list is empty
image              below a prefix of `images` or of the owner's pod policy, unless neither exists
a node's folder    below one of `host_paths`; otherwise data is on a claim
privileges         none: a request has no field for them
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from services.allocator.placement.placers import ROLES
from services.allocator.pod_policy import PodRules, covers, is_listed
from services.allocator.settings import Rules
from shared.messages import (
    Affinity,
    EnvFrom,
    EnvVar,
    FieldRequirement,
    LabelRequirement,
    NodeSelectorTerm,
    ObjectRef,
    RoleResources,
    Toleration,
    Volume,
)
from shared.text import format_names

Fields = Mapping[str, Any]
SETTING = "WEIR_ALLOCATOR_POD_POLICY"
NAMES_SHOWN = 6
RESERVED_VARIABLES = ("TF_CONFIG", "HOME", "HOSTNAME", "PATH", "TMPDIR", "GRPC_FAIL_FAST")
RESERVED_BEGINNINGS = ("WEIR_", "NATS_", "PYTHON", "LD_", "KUBERNETES_")
"""Prefixes of variables that Weir sets, or that load code into the process with the credentials."""
RESERVED_DOMAINS = ("kubernetes.io", "k8s.io", "weir.dev", "kubeflow.org")
"""Reserved domains of labels and annotations, with their subdomains."""
JOB_CREDENTIALS = re.compile(r".+-nats-[0-9a-f]{8}-[0-9a-f]{4}")
"""Names of the secrets that the launcher makes (`secret_name` in `services/launcher/pods.py`)."""
SHM = "/dev/shm"
WITH_VALUES = ("In", "NotIn")
WITHOUT_VALUES = ("Exists", "DoesNotExist")


# ---------------------------------------------------------------- the form


def form_reasons(parts: Fields) -> Iterator[str]:
    """Yield the reasons against pod settings that no cluster allows. `parts`: the fields of a
    request, as far as they can be read.
    """
    yield from _variable_reasons(parts.get("env", ()))
    yield from _env_from_reasons(parts.get("env_from", ()))
    yield from _key_reasons("labels", parts.get("labels", {}))
    yield from _key_reasons("annotations", parts.get("annotations", {}))
    yield from _toleration_reasons(parts.get("tolerations", ()))
    yield from _affinity_reasons(parts.get("affinity"))
    yield from _shm_reasons(parts)
    for path, kind, name in _named_objects(parts):
        if kind in ("secrets", "image_pull_secrets") and JOB_CREDENTIALS.fullmatch(name):
            yield f"{path}: {name!r} has the credentials of a job; no request may use it"


def _variable_reasons(variables: tuple[EnvVar, ...]) -> Iterator[str]:
    for i, variable in enumerate(variables):
        where = f"env[{i}]"
        if is_reserved_variable(variable.name):
            yield f"{where}.name: {variable.name!r} is reserved for the pod or for Python"
        if (variable.value is None) == (variable.value_from is None):
            yield f"{where}: {variable.name} needs either value or value_from"
        source = variable.value_from
        if source is not None and (source.secret_key_ref is None) == (
            source.config_map_key_ref is None
        ):
            yield f"{where}.value_from: needs either secret_key_ref or config_map_key_ref"
    counts = Counter([variable.name for variable in variables])
    for name, count in counts.items():
        if count > 1:
            yield f"env: {name} occurs {count} times"


def is_reserved_variable(name: str) -> bool:
    return name in RESERVED_VARIABLES or name.startswith(RESERVED_BEGINNINGS)


def _env_from_reasons(sources: tuple[EnvFrom, ...]) -> Iterator[str]:
    for i, source in enumerate(sources):
        if (source.secret_ref is None) == (source.config_map_ref is None):
            yield f"env_from[{i}]: needs either secret_ref or config_map_ref"
        if source.prefix.startswith(RESERVED_BEGINNINGS):
            yield f"env_from[{i}].prefix: variables that begin with {source.prefix!r} are reserved"


def _key_reasons(field: str, values: Mapping[str, str]) -> Iterator[str]:
    """Refuse labels and annotations that mean something to Kubernetes or to Weir."""
    for key in values:
        domain = key.rpartition("/")[0]
        for reserved in RESERVED_DOMAINS:
            if domain == reserved or domain.endswith(f".{reserved}"):
                yield f"{field}: {key!r} is reserved, as all of {reserved}"


def _toleration_reasons(tolerations: tuple[Toleration, ...]) -> Iterator[str]:
    for i, toleration in enumerate(tolerations):
        if toleration.operator == "Exists" and toleration.value:
            yield f"tolerations[{i}].value: has to be absent if operator is Exists"
        if toleration.operator == "Equal" and not toleration.key:
            yield f"tolerations[{i}].key: is required if operator is Equal"


def _affinity_reasons(affinity: Affinity | None) -> Iterator[str]:
    if affinity is None or affinity.node_affinity is None:
        return
    selector = affinity.node_affinity.required_during_scheduling_ignored_during_execution
    where = "affinity.node_affinity.required_during_scheduling_ignored_during_execution"
    if not selector.node_selector_terms:
        yield f"{where}.node_selector_terms: needs at least one term"
    for i, term in enumerate(selector.node_selector_terms):
        for why in _term_reasons(term):
            yield f"{where}.node_selector_terms[{i}]{why}"


def _term_reasons(term: NodeSelectorTerm) -> Iterator[str]:
    if not term.match_expressions and not term.match_fields:
        yield ": needs match_expressions or match_fields; an empty term matches no node"
    for i, label in enumerate(term.match_expressions):
        why = _requirement_reason(label)
        if why:
            yield f".match_expressions[{i}]: {why}"
    for i, field in enumerate(term.match_fields):
        if len(field.values) != 1:
            yield f".match_fields[{i}].values: needs exactly one name of a node"


def _requirement_reason(wanted: LabelRequirement | FieldRequirement) -> str:
    """Return the reason against the values of a requirement; empty: there is none."""
    operator, values = wanted.operator, wanted.values
    if operator in WITH_VALUES and not values:
        return f"{operator} needs values"
    if operator in WITHOUT_VALUES and values:
        return f"{operator} takes no values"
    if operator in ("Gt", "Lt") and (len(values) != 1 or not values[0].isdecimal()):
        return f"{operator} needs one value, a whole number"
    return ""


def _shm_reasons(parts: Fields) -> Iterator[str]:
    """Refuse more shared memory than a task has, because it is a part of the task's memory."""
    shm_gib = parts.get("shm_gib")
    if shm_gib is None:
        return
    resources = parts.get("resources") or RoleResources()
    defaults = RoleResources()
    for role in ROLES:
        memory_gib = getattr(resources, role).memory_gib or getattr(defaults, role).memory_gib
        if shm_gib > memory_gib:
            yield (
                f"shm_gib: {shm_gib:g} is more than the {memory_gib:g} GiB of a {role}, "
                "and /dev/shm is a part of it"
            )
    for i, volume in enumerate(parts.get("volumes", ())):
        if posixpath.normpath(volume.mount_path) == SHM:
            yield f"volumes[{i}].mount_path: {SHM} is already mounted by shm_gib"


# ---------------------------------------------------------------- the permission


def policy_reasons(parts: Fields, rules: Rules) -> Iterator[str]:
    """Yield the reasons against everything that the owner's policy does not allow in the
    namespace.
    """
    namespace = parts.get("namespace", "default")
    allowed = rules.pod_rules.rules_of(namespace)
    for path, kind, name in _named_objects(parts):
        patterns = getattr(allowed, kind) or ()
        if not is_listed(name, patterns):
            yield f"{path}: {name!r} {_refusal(namespace, kind, patterns)}"
    yield from _node_reasons(parts, allowed, namespace)
    for i, toleration in enumerate(parts.get("tolerations", ())):
        if not any(covers(each, toleration) for each in allowed.tolerations or ()):
            known = [describe_toleration(each) for each in allowed.tolerations or ()]
            refusal = _refusal(namespace, "tolerations", known)
            yield f"tolerations[{i}]: {describe_toleration(toleration)} {refusal}"
    yield from _size_reasons(parts.get("resources"), allowed, namespace)
    highest = allowed.highest_priority
    priority = parts.get("priority", 0)
    if highest is not None and priority > highest:
        yield (
            f"priority: {priority} is more than {highest}, "
            f"the highest in namespace {namespace!r} ({SETTING})"
        )


def _refusal(namespace: str, kind: str, allowed: Any) -> str:
    """Return the last part of a reason. `kind`: the name of the policy's list."""
    names = f"allowed: {format_names(list(allowed), NAMES_SHOWN)}" if allowed else "none is allowed"
    return f"is not allowed in namespace {namespace!r}; {names} ({kind} of {SETTING})"


def _named_objects(parts: Fields) -> Iterator[tuple[str, str, str]]:
    """Yield the path of each name in a request, the list of the policy that allows it, and the
    name.
    """
    for i, volume in enumerate(parts.get("volumes", ())):
        yield from _objects_of_volume(f"volumes[{i}]", volume)
    for i, variable in enumerate(parts.get("env", ())):
        yield from _objects_of_variable(f"env[{i}].value_from", variable)
    for i, source in enumerate(parts.get("env_from", ())):
        if source.secret_ref is not None:
            yield f"env_from[{i}].secret_ref.name", "secrets", source.secret_ref.name
        if source.config_map_ref is not None:
            yield f"env_from[{i}].config_map_ref.name", "config_maps", source.config_map_ref.name
    yield from _objects_of_pod(parts)


def _objects_of_pod(parts: Fields) -> Iterator[tuple[str, str, str]]:
    pull_secrets: tuple[ObjectRef, ...] = parts.get("image_pull_secrets", ())
    for i, ref in enumerate(pull_secrets):
        yield f"image_pull_secrets[{i}].name", "image_pull_secrets", ref.name
    account = parts.get("service_account")
    if account is not None and account != "default":
        yield "service_account", "service_accounts", account
    if parts.get("priority_class") is not None:
        yield "priority_class", "priority_classes", parts["priority_class"]
    for field in ("labels", "annotations"):
        for key in parts.get(field, {}):
            yield field, field, key


def _objects_of_variable(path: str, variable: EnvVar) -> Iterator[tuple[str, str, str]]:
    source = variable.value_from
    if source is None:
        return
    if source.secret_key_ref is not None:
        yield f"{path}.secret_key_ref.name", "secrets", source.secret_key_ref.name
    if source.config_map_key_ref is not None:
        yield f"{path}.config_map_key_ref.name", "config_maps", source.config_map_key_ref.name


def _objects_of_volume(path: str, volume: Volume) -> Iterator[tuple[str, str, str]]:
    for field, kind in (("claim", "claims"), ("secret", "secrets"), ("config_map", "config_maps")):
        name = getattr(volume, field)
        if name is not None:
            yield f"{path}.{field}", kind, name


def _node_reasons(parts: Fields, allowed: PodRules, namespace: str) -> Iterator[str]:
    """Refuse conditions on nodes in a namespace without node pools."""
    if allowed.node_pools:
        return
    for field in ("node_selector", "affinity"):
        if parts.get(field):
            yield f"{field}: {_refusal(namespace, 'node_pools', ())}"


def _size_reasons(
    resources: RoleResources | None, allowed: PodRules, namespace: str
) -> Iterator[str]:
    """Refuse larger tasks than the policy allows."""
    largest = allowed.largest_task
    if largest is None:
        return
    for role in ROLES:
        wanted = getattr(resources or RoleResources(), role)
        for name in ("cpu", "memory_gib", "gpu"):
            most = getattr(largest, name)
            amount = getattr(wanted, name)
            if most is not None and amount > most:
                yield (
                    f"resources.{role}.{name}: {amount:g} is more than {most:g}, the largest in"
                    f" namespace {namespace!r} (largest_task of {SETTING})"
                )


def describe_toleration(toleration: Toleration) -> str:
    """Return a toleration as `kubectl` writes a taint; `*`: any."""
    text = toleration.key or "*"
    if toleration.operator == "Equal":
        text += f"={toleration.value}"
    return f"{text}:{toleration.effect or '*'}"


# ---------------------------------------------------------------- what some clusters allow, or none


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
"""The names in Kubernetes and in common use, in lower case and without punctuation."""

UNSUPPORTED = {
    "podaffinity": "not supported: Weir itself puts the tasks of a job near each other",
    "podantiaffinity": "not supported: Weir itself chooses the nodes; exclude some with"
    " `affinity.node_affinity`",
    "preferredduringschedulingignoredduringexecution": "not supported: Weir chooses among the"
    " nodes that the required terms allow; give only those",
    "tolerationseconds": "not supported: a task stays on a node for as long as the taint is"
    " tolerated",
    "topologyspreadconstraints": "not supported: Weir itself puts the tasks of a job near each"
    " other",
}
"""Pod fields of Kubernetes that a request does not support, and the reason."""
SAME_KIND = "all tasks of a role have the same resources; for others, submit another job"
ONE_KIND = {
    "workers": SAME_KIND,
    "ps": SAME_KIND,
    "resources.worker": SAME_KIND,
    "resources.ps": SAME_KIND,
}
"""Fields that a user may write as a list, and the reason against it."""


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
