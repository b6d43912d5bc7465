"""How an object enters the store: what the server fills in, what it takes from nobody, and what it
refuses.

New:    names are checked, identity is given, kinds get their defaults.
Update: identity stays; the main resource never changes the status and the status subresource changes nothing
        else but labels and annotations; `generation` of a pod rises with its spec.
"""

from services.local.objects.bodies import (
    Body,
    labels,
    meta,
    name_of,
    namespace_of,
    spec,
    status,
    uid_of,
    with_meta,
)
from services.local.objects.kinds import Kind
from services.local.objects.naming import Causes, label_causes, name_causes
from services.local.objects.pod_rules import new_pod, pod_causes, update_causes
from services.local.objects.refusals import bad_request, conflict, invalid
from shared.kube.objects import parse_quantity

GIVEN_BY_SERVER = (
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
LEFT_TO_STATUS = ("labels", "annotations", "managedFields", "resourceVersion")


def check(kind: Kind, body: Body, causes: Causes) -> None:
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


def typed(kind: Kind, body: Body) -> Body:
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


def defaulted(kind: Kind, body: Body, ordinal: int) -> Body:
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
    given = typed(kind, body)
    if kind.namespaced and namespace_of(given) not in ("", namespace):
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    name = name_of(given) or (
        meta(given)["generateName"] + uid[:5] if meta(given).get("generateName") else ""
    )
    clean = with_meta(given, **dict.fromkeys((*GIVEN_BY_SERVER, "resourceVersion", "selfLink")))
    named = with_meta(clean, name=name, namespace=namespace or None)
    check(kind, named, name_causes(kind, name) + label_causes(named) + kind_causes(kind, named))
    return defaulted(kind, with_meta(named, uid=uid, creationTimestamp=now), ordinal)


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
    body = same_identity(kind, old, typed(kind, new))
    if kind.has_status:
        body = {**body, "status": status(old)}
    check(kind, body, label_causes(body) + kind_causes(kind, body))
    return updated_pod(kind, old, body) if kind.name == "Pod" else body


def updated_pod(kind: Kind, old: Body, new: Body) -> Body:
    check(kind, new, update_causes(old, new))
    return risen(old, new)


def risen(old: Body, new: Body) -> Body:
    """`generation` counts the changes of the spec."""
    step = 0 if spec(old) == spec(new) else 1
    return with_meta(new, generation=int(meta(old).get("generation") or 1) + step)


def admit_status(kind: Kind, old: Body, new: Body) -> Body:
    body = same_identity(kind, old, typed(kind, new))
    given = {field: meta(body).get(field) for field in LEFT_TO_STATUS}
    result = with_meta({**old, "status": status(body)}, **given)
    check(kind, result, capacity_causes(result) if kind.name == "Node" else [])
    return result
