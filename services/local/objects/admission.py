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
from collections.abc import Mapping
from typing import Any

from services.local.objects.bodies import (
    Body,
    bad_request,
    conflict,
    containers_of,
    has_ended,
    init_containers_of,
    invalid,
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
    """Return the body with its kind and version. Raises a refusal (400) if it names others."""
    if not isinstance(body, dict):
        raise bad_request("the body is not an object")
    for field, wanted in (("kind", kind.name), ("apiVersion", kind.api_version)):
        if body.get(field) not in (None, "", wanted):
            raise bad_request(
                f"the {field} of the object ({body[field]}) does not match the expected {field}"
                f" ({wanted})"
            )
    return {**body, "kind": kind.name, "apiVersion": kind.api_version}


def new_service(service: Body, address: str) -> Body:
    filled = {
        "type": "ClusterIP",
        "sessionAffinity": "None",
        "clusterIP": address,
        "internalTrafficPolicy": "Cluster",
        **spec(service),
    }
    ports = []
    for port in filled.get("ports") or []:
        ports.append({"protocol": "TCP", "targetPort": port.get("port"), **port})
    if ports:
        filled["ports"] = ports
    filled["clusterIPs"] = [filled["clusterIP"]]
    return {**service, "spec": filled, "status": {"loadBalancer": {}}}


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
    """Return a new object as it is stored. `ordinal`: selects the address of a service."""
    given = with_kind(kind, body)
    if kind.namespaced and namespace_of(given) not in ("", namespace):
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    name = name_of(given)
    prefix = meta(given).get("generateName")
    if not name and prefix:
        name = prefix + uid[:5]
    clean = with_meta(given, **dict.fromkeys((*GIVEN_BY_SERVER, "resourceVersion", "selfLink")))
    named = with_meta(clean, name=name, namespace=namespace or None)
    causes = name_causes(kind, name) + label_causes(named) + kind_causes(kind, named)
    raise_if_invalid(kind, named, causes)
    return with_defaults(kind, with_meta(named, uid=uid, creationTimestamp=now), ordinal)


def same_identity(kind: Kind, old: Body, new: Body) -> Body:
    """Return the new body with the metadata that only the server sets. Raises a refusal if the new
    body is about another object.
    """
    if name_of(new) != name_of(old) or namespace_of(new) not in ("", namespace_of(old)):
        raise bad_request("the name of the object does not match the name on the URL")
    if uid_of(new) not in ("", uid_of(old)):
        why = (
            f"Precondition failed: UID in precondition: {uid_of(new)}, UID in object meta:"
            f" {uid_of(old)}"
        )
        raise conflict(kind.plural, name_of(old), why)
    identity = {field: meta(old).get(field) for field in GIVEN_BY_SERVER}
    return with_meta(new, **identity, namespace=meta(old).get("namespace"))


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
    """Return the new pod with its `generation`, which counts the changes of the spec."""
    generation = int(meta(old).get("generation") or 1)
    if spec(old) != spec(new):
        generation += 1
    return with_meta(new, generation=generation)


def admit_status(kind: Kind, old: Body, new: Body) -> Body:
    body = same_identity(kind, old, with_kind(kind, new))
    metadata = {field: meta(body).get(field) for field in LEFT_TO_STATUS}
    result = with_meta({**old, "status": status(body)}, **metadata)
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
TOLERATION_S = 300  # time for which a pod stays on a failing node by default
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
    filled = {**CONTAINER_DEFAULTS, **container}
    resources = container.get("resources") or {}
    requests = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    if requests:
        resources = {**resources, "requests": requests}
    filled["resources"] = resources
    ports = [{"protocol": "TCP", **port} for port in container.get("ports") or []]
    if ports:
        filled["ports"] = ports
    return filled


def with_default_tolerations(tolerations: list[Body]) -> list[Body]:
    """Add the tolerations of the server: a pod stays on a failing node for `TOLERATION_S`."""
    tolerated = set()
    for each in tolerations:
        if each.get("effect") in (None, "", "NoExecute"):
            tolerated.add(each.get("key"))
    if None in tolerated:
        return tolerations
    result = list(tolerations)
    for key in NODE_TROUBLES:
        if key not in tolerated:
            result.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": TOLERATION_S,
                }
            )
    return result


def filled_pod(pod: Body) -> Body:
    filled = {**POD_DEFAULTS, **spec(pod)}
    filled["containers"] = list(map(filled_container, containers_of(pod)))
    if init_containers_of(pod):
        filled["initContainers"] = list(map(filled_container, init_containers_of(pod)))
    return {**pod, "spec": filled}


def new_pod(pod: Body) -> Body:
    filled = filled_pod(pod)
    tolerations = with_default_tolerations(spec(filled).get("tolerations") or [])
    filled = with_spec(filled, tolerations=tolerations)
    return {**filled, "status": {"phase": "Pending", "qosClass": qos_class(filled)}}


def quantity_causes(where: str, resources: Body) -> Causes:
    causes: Causes = []
    for which in ("requests", "limits"):
        for resource, text in (resources.get(which) or {}).items():
            fault = quantity_fault(text)
            if fault:
                causes.append((f"{where}.{which}[{resource}]", f"Invalid value: {fault}"))
    return causes or over_limit(where, resources)


def quantity_fault(text: Any) -> str:
    try:
        amount = parse_quantity(text)
    except ValueError as error:
        return str(error)
    return f'"{text}": must not be negative' if amount < 0 else ""


def over_limit(where: str, resources: Body) -> Causes:
    """Return the requests that are larger than their limits."""
    limits = resources.get("limits") or {}
    causes: Causes = []
    for resource, request in (resources.get("requests") or {}).items():
        if resource not in limits:
            continue
        limit = limits[resource]
        if whole_units(resource, request) > whole_units(resource, limit):
            fault = f"must be less than or equal to {resource} limit of {limit}"
            causes.append((f"{where}.requests", f'Invalid value: "{request}": {fault}'))
    return causes


def container_causes(where: str, container: Body, seen: set[str]) -> Causes:
    """`seen`: the names of earlier containers; the name of this one is added."""
    name = str(container.get("name") or "")
    causes = quantity_causes(f"{where}.resources", container.get("resources") or {})
    if not LABEL.match(name) or len(name) > 63:
        fault = f'Invalid value: "{name}": must be a lowercase RFC 1123 label'
        causes.append((f"{where}.name", fault))
    if name in seen:
        causes.append((f"{where}.name", f'Duplicate value: "{name}"'))
    if not container.get("image"):
        causes.append((f"{where}.image", "Required value"))
    pull = container.get("imagePullPolicy")
    if pull and pull not in PULLS:
        supported = ", ".join(f'"{each}"' for each in PULLS)
        fault = f'Unsupported value: "{pull}": supported values: {supported}'
        causes.append((f"{where}.imagePullPolicy", fault))
    seen.add(name)
    return causes


def pod_causes(pod: Body) -> Causes:
    causes: Causes = [] if containers_of(pod) else [("spec.containers", "Required value")]
    seen: set[str] = set()
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec(pod).get(field) or []):
            causes += container_causes(f"spec.{field}[{index}]", container, seen)
    restart = spec(pod).get("restartPolicy", "Always")
    if restart not in RESTARTS:
        fault = f'Unsupported value: "{restart}": supported values: {RESTARTS}'
        causes.append(("spec.restartPolicy", fault))
    return causes


def fixed_part(pod: Body) -> Body:
    """Return the part of the spec that no update may change."""
    fixed: Body = {}
    for key, value in spec(pod).items():
        if key not in MUTABLE and value not in (None, [], {}):
            fixed[key] = value
    for field in ("containers", "initContainers"):
        containers = spec(pod).get(field) or []
        fixed[field] = [without_key(each, "image") for each in containers]
    return fixed


def without_key(fields: Body, left_out: str) -> Body:
    return {key: value for key, value in fields.items() if key != left_out}


def update_causes(old: Body, new: Body) -> Causes:
    if fixed_part(old) == fixed_part(new):
        return []
    return [
        (
            "spec",
            (
                "Forbidden: pod updates may not change fields other than"
                " `spec.containers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations`"
                " (only additions to existing tolerations)"
            ),
        )
    ]


def without_resizable(container: Body) -> Body:
    """Return a container without the resources that a resize may change."""
    resources = container.get("resources") or {}
    fixed: Body = {}
    for which in ("requests", "limits"):
        amounts = dict(resources.get(which) or {})
        for resource in RESIZABLE:
            amounts.pop(resource, None)
        fixed[which] = amounts
    return {**container, "resources": fixed}


def with_new_resources(old: Body, wanted: Body) -> Body:
    """Return the old pod with the wanted resources, and no other change."""
    by_name = {each.get("name"): each.get("resources") or {} for each in containers_of(wanted)}
    return filled_pod(with_container_resources(old, by_name))


def with_container_resources(pod: Body, by_name: Mapping[Any, Body]) -> Body:
    """Return the pod with other resources of the containers that `by_name` names."""
    containers = []
    for each in containers_of(pod):
        resources = by_name.get(each["name"], each.get("resources"))
        containers.append({**each, "resources": resources})
    return with_spec(pod, containers=containers)


def resize_causes(old: Body, wanted: Body) -> Causes:
    new = with_new_resources(old, wanted)
    causes = pod_causes(new)
    fixed_before = list(map(without_resizable, containers_of(old)))
    if fixed_before != list(map(without_resizable, containers_of(new))):
        causes.append(("spec", "Forbidden: only cpu and memory resources are mutable"))
    if not causes and qos_class(new) != status(old).get("qosClass"):
        causes.append(
            ("metadata", "Invalid value: Pod QOS Class may not change as a result of resizing")
        )
    if has_ended(old):
        causes.append(("spec", "Forbidden: the pod has ended"))
    return causes


def scheduling_gates(pod: Body) -> list[Any]:
    return spec(pod).get("schedulingGates") or []


Causes = list[tuple[str, str]]

LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
SERVICE_LABEL = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
QUALIFIED = re.compile(r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")

NAME_RULES = {
    "Namespace": (
        LABEL,
        63,
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-'",
    ),
    "Service": (
        SERVICE_LABEL,
        63,
        (
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', and start "
            "with an alphabetic character"
        ),
    ),
}
SUBDOMAIN_RULE = (
    SUBDOMAIN,
    253,
    (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or"
        " '.', and must start and end with an alphanumeric character"
    ),
)


def name_causes(kind: Kind, name: str) -> Causes:
    if not name:
        return [("metadata.name", "Required value: name or generateName is required")]
    pattern, longest, rule = NAME_RULES.get(kind.name, SUBDOMAIN_RULE)
    if len(name) > longest:
        return [("metadata.name", f'Invalid value: "{name}": must be no more than {longest} bytes')]
    if not pattern.match(name):
        return [("metadata.name", f'Invalid value: "{name}": {rule}')]
    return []


def is_label_key(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if slash and not SUBDOMAIN.match(prefix):
        return False
    return len(name) <= 63 and bool(QUALIFIED.match(name))


def is_label_value(value: object) -> bool:
    if not isinstance(value, str):
        return False
    return not value or (len(value) <= 63 and bool(QUALIFIED.match(value)))


def label_causes(body: Body) -> Causes:
    keys: Causes = []
    values: Causes = []
    for key, value in labels(body).items():
        if not is_label_key(key):
            keys.append(("metadata.labels", f'Invalid value: "{key}": not a qualified name'))
        if not is_label_value(value):
            values.append(("metadata.labels", f'Invalid value: "{value}": not a valid label'))
    return keys + values
