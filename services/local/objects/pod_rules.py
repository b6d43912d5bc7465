"""What makes a pod a good pod: what the server fills in, what it refuses, and what may change
later.

A pod's spec is fixed but for its image, its deadline, added tolerations, and labels that no one
here reads. Cpu and memory change through the `resize` subresource alone, and never so that the
pod's quality of service becomes another.
"""

from typing import Any

from services.local.objects.bodies import Body, containers_of, spec, status, with_spec
from services.local.objects.naming import LABEL, Causes
from services.local.objects.requests import quality_of
from shared.kube.objects import parse_quantity, whole_units

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
PATIENCE_S = 300  # how long a pod stays on a node that is not ready, unless it says otherwise
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


def patient(tolerations: list[Body]) -> list[Body]:
    """What the server adds for a node in trouble: the pod is let stay for PATIENCE_S."""
    known = {t.get("key") for t in tolerations if t.get("effect") in (None, "", "NoExecute")}
    if None in known:
        return tolerations
    added = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": PATIENCE_S}
    return [*tolerations, *({"key": key, **added} for key in NODE_TROUBLES if key not in known)]


def filled_pod(pod: Body) -> Body:
    given = {**POD_DEFAULTS, **spec(pod)}
    given["containers"] = [filled_container(c) for c in containers_of(pod)]
    if spec(pod).get("initContainers"):
        given["initContainers"] = [filled_container(c) for c in spec(pod)["initContainers"]]
    return {**pod, "spec": given}


def new_pod(pod: Body) -> Body:
    filled = filled_pod(pod)
    settled = with_spec(filled, tolerations=patient(spec(filled).get("tolerations") or []))
    return {**settled, "status": {"phase": "Pending", "qosClass": quality_of(settled)}}


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


def bare(container: Body) -> Body:
    """A container without what a resize may change."""
    resources = container.get("resources") or {}
    parts = {
        w: {r: q for r, q in (resources.get(w) or {}).items() if r not in RESIZABLE}
        for w in ("requests", "limits")
    }
    return {**container, "resources": parts}


def resized(old: Body, wanted: Body) -> Body:
    """The old pod with the wanted resources and nothing else."""
    by_name = {c.get("name"): c.get("resources") or {} for c in containers_of(wanted)}
    new = [
        {**c, "resources": by_name.get(c["name"], c.get("resources"))} for c in containers_of(old)
    ]
    return filled_pod(with_spec(old, containers=new))


def resize_causes(old: Body, wanted: Body) -> Causes:
    new, causes = resized(old, wanted), pod_causes(resized(old, wanted))
    if [bare(c) for c in containers_of(old)] != [bare(c) for c in containers_of(new)]:
        causes.append(("spec", "Forbidden: only cpu and memory resources are mutable"))
    if not causes and quality_of(new) != status(old).get("qosClass"):
        causes.append(
            ("metadata", "Invalid value: Pod QOS Class may not change as a result of resizing")
        )
    if status(old).get("phase") in ("Succeeded", "Failed"):
        causes.append(("spec", "Forbidden: the pod has ended"))
    return causes


def gates_of(pod: Body) -> list[Any]:
    return spec(pod).get("schedulingGates") or []
