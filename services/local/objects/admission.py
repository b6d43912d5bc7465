"""Admission: the defaults that the server sets, and the objects that it refuses.

Create: check names, give the identity, set the defaults of the kind.
Update: the identity stays. The main resource never changes the status. The status subresource sets
        only the status, labels and annotations. `generation` of a pod rises with its spec.

The spec of a pod is fixed, except its images, deadline and added tolerations. CPU and memory change
only through the `resize` subresource, and never so that the QoS class changes.

A name is a DNS-1123 subdomain; of a service, a DNS-1035 label.
"""

from __future__ import annotations

import re
from typing import Any

from services.local.objects.api_errors import bad_request, conflict, invalid
from services.local.objects.bodies import (
    Body,
    containers_of,
    labels,
    meta,
    name_of,
    namespace_of,
    spec,
    status,
    uid_of,
    with_meta,
    with_spec,
)
from services.local.objects.kinds import Kind
from services.local.objects.resources import qos_class
from shared.kube.objects import parse_quantity, whole_units

GIVEN_BY_SERVER = (
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
LEFT_TO_STATUS = ("labels", "annotations", "managedFields", "resourceVersion")


def raise_if_invalid(kind: Kind, body: Body, causes: Causes) -> None:
    if causes:
        raise invalid(kind.name, name_of(body), causes)


def kind_causes(kind: Kind, body: Body) -> Causes:
    if kind.name == "Pod":
        return pod_causes(body)
    if kind.name == "Node":
        return capacity_causes(body)
    return []


def capacity_causes(node: Body) -> Causes:
    causes: Causes = []
    for field in ("capacity", "allocatable"):
        for resource, text in (status(node).get(field) or {}).items():
            try:
                parse_quantity(text)
            except ValueError as error:
                causes.append((f"status.{field}.{resource}", f"Invalid value: {error}"))
    return causes


def with_kind(kind: Kind, body: Body) -> Body:
    """The body must be of the kind that the path names."""
    if not isinstance(body, dict):
        raise bad_request("the body is not an object")
    for field, wanted in (("kind", kind.name), ("apiVersion", kind.api_version)):
        if body.get(field) not in (None, "", wanted):
            raise bad_request(
                f"the {field} of the object ({body[field]}) does not match the expected {field} ({wanted})"
            )
    return {**body, "kind": kind.name, "apiVersion": kind.api_version}


def new_service(service: Body, address: str) -> Body:
    ports = [
        {"protocol": "TCP", "targetPort": p.get("port"), **p}
        for p in spec(service).get("ports") or []
    ]
    defaults = {
        "type": "ClusterIP",
        "sessionAffinity": "None",
        "clusterIP": address,
        "internalTrafficPolicy": "Cluster",
    }
    filled = {**defaults, **spec(service), **({"ports": ports} if ports else {})}
    return {
        **service,
        "spec": {**filled, "clusterIPs": [filled["clusterIP"]]},
        "status": {"loadBalancer": {}},
    }


def new_namespace(body: Body) -> Body:
    named = {**labels(body), "kubernetes.io/metadata.name": name_of(body)}
    return {
        **with_meta(body, labels=named),
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }


def with_defaults(kind: Kind, body: Body, ordinal: int) -> Body:
    if kind.name == "Pod":
        return with_meta(new_pod(body), generation=1)
    if kind.name == "Service":
        return new_service(body, f"10.96.{ordinal // 250 % 250}.{ordinal % 250 + 1}")
    if kind.name == "Namespace":
        return new_namespace(body)
    if kind.name == "PersistentVolumeClaim":
        return {**body, "status": {"phase": "Pending"}}
    return body


def admit_new(kind: Kind, namespace: str, body: Body, now: str, uid: str, ordinal: int) -> Body:
    given = with_kind(kind, body)
    if kind.namespaced and namespace_of(given) not in ("", namespace):
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    name = name_of(given) or (
        meta(given)["generateName"] + uid[:5] if meta(given).get("generateName") else ""
    )
    clean = with_meta(given, **dict.fromkeys((*GIVEN_BY_SERVER, "resourceVersion", "selfLink")))
    named = with_meta(clean, name=name, namespace=namespace or None)
    raise_if_invalid(
        kind, named, name_causes(kind, name) + label_causes(named) + kind_causes(kind, named)
    )
    return with_defaults(kind, with_meta(named, uid=uid, creationTimestamp=now), ordinal)


def same_identity(kind: Kind, old: Body, new: Body) -> Body:
    """Raises if the new body is about another object; otherwise what only the server gives is put
    back.
    """
    if name_of(new) != name_of(old) or namespace_of(new) not in ("", namespace_of(old)):
        raise bad_request("the name of the object does not match the name on the URL")
    if uid_of(new) not in ("", uid_of(old)):
        why = f"Precondition failed: UID in precondition: {uid_of(new)}, UID in object meta: {uid_of(old)}"
        raise conflict(kind.plural, name_of(old), why)
    kept = {field: meta(old).get(field) for field in GIVEN_BY_SERVER}
    return with_meta(new, **kept, namespace=meta(old).get("namespace"))


def admit_update(kind: Kind, old: Body, new: Body) -> Body:
    body = same_identity(kind, old, with_kind(kind, new))
    if kind.has_status:
        body = {**body, "status": status(old)}
    raise_if_invalid(kind, body, label_causes(body) + kind_causes(kind, body))
    return updated_pod(kind, old, body) if kind.name == "Pod" else body


def updated_pod(kind: Kind, old: Body, new: Body) -> Body:
    raise_if_invalid(kind, new, update_causes(old, new))
    return with_next_generation(old, new)


def with_next_generation(old: Body, new: Body) -> Body:
    """`generation` counts the changes of the spec."""
    step = 0 if spec(old) == spec(new) else 1
    return with_meta(new, generation=int(meta(old).get("generation") or 1) + step)


def admit_status(kind: Kind, old: Body, new: Body) -> Body:
    body = same_identity(kind, old, with_kind(kind, new))
    given = {field: meta(body).get(field) for field in LEFT_TO_STATUS}
    result = with_meta({**old, "status": status(body)}, **given)
    raise_if_invalid(kind, result, capacity_causes(result) if kind.name == "Node" else [])
    return result


POD_DEFAULTS: Body = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "serviceAccountName": "default",
    "serviceAccount": "default",
    "schedulerName": "default-scheduler",
    "securityContext": {},
    "enableServiceLinks": True,
    "preemptionPolicy": "PreemptLowerPriority",
    "priority": 0,
}
CONTAINER_DEFAULTS: Body = {
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "imagePullPolicy": "IfNotPresent",
}
TOLERATION_S = 300  # how long a pod stays on a node that is not ready, unless it says otherwise
NODE_TROUBLES = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
PULLS = ("Always", "IfNotPresent", "Never")
RESTARTS = ("Always", "OnFailure", "Never")
MUTABLE = (
    "activeDeadlineSeconds",
    "terminationGracePeriodSeconds",
    "tolerations",
    "schedulingGates",
)
RESIZABLE = ("cpu", "memory")


def filled_container(container: Body) -> Body:
    resources = container.get("resources") or {}
    requests = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    whole = {**resources, "requests": requests} if requests else resources
    ports = [{"protocol": "TCP", **port} for port in container.get("ports") or []]
    return {
        **CONTAINER_DEFAULTS,
        **container,
        "resources": whole,
        **({"ports": ports} if ports else {}),
    }


def with_default_tolerations(tolerations: list[Body]) -> list[Body]:
    """What the server adds for a node in trouble: the pod is let stay for PATIENCE_S."""
    known = {t.get("key") for t in tolerations if t.get("effect") in (None, "", "NoExecute")}
    if None in known:
        return tolerations
    added = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_S}
    return [*tolerations, *({"key": key, **added} for key in NODE_TROUBLES if key not in known)]


def filled_pod(pod: Body) -> Body:
    given = {**POD_DEFAULTS, **spec(pod)}
    given["containers"] = [filled_container(c) for c in containers_of(pod)]
    if spec(pod).get("initContainers"):
        given["initContainers"] = [filled_container(c) for c in spec(pod)["initContainers"]]
    return {**pod, "spec": given}


def new_pod(pod: Body) -> Body:
    filled = filled_pod(pod)
    settled = with_spec(
        filled, tolerations=with_default_tolerations(spec(filled).get("tolerations") or [])
    )
    return {**settled, "status": {"phase": "Pending", "qosClass": qos_class(settled)}}


def quantity_causes(where: str, resources: Body) -> Causes:
    causes: Causes = []
    for which in ("requests", "limits"):
        for resource, text in (resources.get(which) or {}).items():
            try:
                if parse_quantity(text) < 0:
                    causes.append(
                        (
                            f"{where}.{which}[{resource}]",
                            f'Invalid value: "{text}": must not be negative',
                        )
                    )
            except ValueError as error:
                causes.append((f"{where}.{which}[{resource}]", f"Invalid value: {error}"))
    return causes or over_limit(where, resources)


def over_limit(where: str, resources: Body) -> Causes:
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    return [
        (
            f"{where}.requests",
            f'Invalid value: "{requests[r]}": must be less than or equal to {r} limit of {limits[r]}',
        )
        for r in requests
        if r in limits and whole_units(r, requests[r]) > whole_units(r, limits[r])
    ]


def container_causes(where: str, container: Body, seen: set[str]) -> Causes:
    name = str(container.get("name") or "")
    causes = quantity_causes(f"{where}.resources", container.get("resources") or {})
    if not LABEL.match(name) or len(name) > 63:
        causes.append(
            (f"{where}.name", f'Invalid value: "{name}": must be a lowercase RFC 1123 label')
        )
    if name in seen:
        causes.append((f"{where}.name", f'Duplicate value: "{name}"'))
    if not container.get("image"):
        causes.append((f"{where}.image", "Required value"))
    pull = container.get("imagePullPolicy")
    if pull and pull not in PULLS:
        supported = ", ".join(f'"{each}"' for each in PULLS)
        causes.append(
            (
                f"{where}.imagePullPolicy",
                f'Unsupported value: "{pull}": supported values: {supported}',
            )
        )
    seen.add(name)
    return causes


def pod_causes(pod: Body) -> Causes:
    causes: Causes = [] if containers_of(pod) else [("spec.containers", "Required value")]
    seen: set[str] = set()
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec(pod).get(field) or []):
            causes += container_causes(f"spec.{field}[{index}]", container, seen)
    if spec(pod).get("restartPolicy", "Always") not in RESTARTS:
        causes.append(
            (
                "spec.restartPolicy",
                f'Unsupported value: "{spec(pod)["restartPolicy"]}": supported values: {RESTARTS}',
            )
        )
    return causes


def fixed_part(pod: Body) -> Body:
    kept = {
        key: value
        for key, value in spec(pod).items()
        if key not in MUTABLE and value not in (None, [], {})
    }
    for field in ("containers", "initContainers"):
        kept[field] = [
            {k: v for k, v in c.items() if k != "image"} for c in spec(pod).get(field) or []
        ]
    return kept


def update_causes(old: Body, new: Body) -> Causes:
    if fixed_part(old) == fixed_part(new):
        return []
    return [
        (
            "spec",
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`, "
            "`spec.activeDeadlineSeconds`, `spec.tolerations` (only additions to existing tolerations)",
        )
    ]


def without_resizable(container: Body) -> Body:
    """A container without what a resize may change."""
    resources = container.get("resources") or {}
    parts = {
        w: {r: q for r, q in (resources.get(w) or {}).items() if r not in RESIZABLE}
        for w in ("requests", "limits")
    }
    return {**container, "resources": parts}


def with_new_resources(old: Body, wanted: Body) -> Body:
    """The old pod with the wanted resources and nothing else."""
    by_name = {c.get("name"): c.get("resources") or {} for c in containers_of(wanted)}
    new = [
        {**c, "resources": by_name.get(c["name"], c.get("resources"))} for c in containers_of(old)
    ]
    return filled_pod(with_spec(old, containers=new))


def resize_causes(old: Body, wanted: Body) -> Causes:
    new, causes = with_new_resources(old, wanted), pod_causes(with_new_resources(old, wanted))
    if [without_resizable(c) for c in containers_of(old)] != [
        without_resizable(c) for c in containers_of(new)
    ]:
        causes.append(("spec", "Forbidden: only cpu and memory resources are mutable"))
    if not causes and qos_class(new) != status(old).get("qosClass"):
        causes.append(
            ("metadata", "Invalid value: Pod QOS Class may not change as a result of resizing")
        )
    if status(old).get("phase") in ("Succeeded", "Failed"):
        causes.append(("spec", "Forbidden: the pod has ended"))
    return causes


def scheduling_gates(pod: Body) -> list[Any]:
    return spec(pod).get("schedulingGates") or []


Causes = list[tuple[str, str]]

LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
SERVICE_LABEL = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
QUALIFIED = re.compile(r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")

RULES = {
    "Namespace": (
        LABEL,
        63,
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-'",
    ),
    "Service": (
        SERVICE_LABEL,
        63,
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', and start "
        "with an alphabetic character",
    ),
}
OTHERWISE = (
    SUBDOMAIN,
    253,
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character",
)


def name_causes(kind: Kind, name: str) -> Causes:
    if not name:
        return [("metadata.name", "Required value: name or generateName is required")]
    pattern, longest, why = RULES.get(kind.name, OTHERWISE)
    if len(name) > longest:
        return [("metadata.name", f'Invalid value: "{name}": must be no more than {longest} bytes')]
    return [] if pattern.match(name) else [("metadata.name", f'Invalid value: "{name}": {why}')]


def key_is_good(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    return (
        (not slash or bool(SUBDOMAIN.match(prefix)))
        and len(name) <= 63
        and bool(QUALIFIED.match(name))
    )


def value_is_good(value: object) -> bool:
    return (
        isinstance(value, str) and len(value) <= 63 and (not value or bool(QUALIFIED.match(value)))
    )


def label_causes(body: Body) -> Causes:
    found = (meta(body).get("labels") or {}).items()
    keys = [
        ("metadata.labels", f'Invalid value: "{key}": not a qualified name')
        for key, _ in found
        if not key_is_good(key)
    ]
    bad = [
        ("metadata.labels", f'Invalid value: "{value}": not a valid label')
        for _, value in found
        if not value_is_good(value)
    ]
    return keys + bad
