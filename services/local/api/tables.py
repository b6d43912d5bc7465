"""The forms of a response: full objects, a table for `kubectl get`, or metadata only.

Written by hand: the server computes the cells, and the official client has no code for it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from services.local.objects.bodies import (
    Body,
    at_path,
    condition,
    container_statuses,
    containers_of,
    is_leaving,
    labels,
    meta,
    name_of,
    node_of,
    spec,
    status,
)
from services.local.objects.kinds import Kind

Cell = Callable[[Body, float], str]
Column = tuple[str, Cell]  # its name and its cell

META = "meta.k8s.io/v1"
WIDE = 1  # the priority of a column that only -o wide shows
NONE = "<none>"


def seconds_since(timestamp: str | None, now_s: float) -> float:
    if not timestamp:
        return 0.0
    parsed = datetime.strptime(timestamp[:19], "%Y-%m-%dT%H:%M:%S")
    return now_s - parsed.replace(tzinfo=UTC).timestamp()


def duration(seconds: float) -> str:
    """Return a duration in the form of kubectl: 45s, 3m10s, 5h, 2d."""
    whole = max(int(seconds), 0)
    minutes, rest_s = divmod(whole, 60)
    if whole < 120:
        return f"{whole}s"
    if whole < 600 and rest_s:
        return f"{minutes}m{rest_s}s"
    if whole < 10800:
        return f"{minutes}m"
    if whole < 172800:
        return f"{whole // 3600}h"
    return f"{whole // 86400}d"


def name_cell(body: Body, _: float) -> str:
    return name_of(body)


def age_cell(body: Body, now_s: float) -> str:
    return duration(seconds_since(meta(body).get("creationTimestamp"), now_s))


def path_cell(path: str, missing: str = NONE) -> Cell:
    return lambda body, _: str(at_path(body, path) or missing)


def pod_ready(pod: Body, _: float) -> str:
    ready = sum(bool(each.get("ready")) for each in container_statuses(pod))
    return f"{ready}/{len(containers_of(pod))}"


def pod_state(pod: Body, _: float) -> str:
    if is_leaving(pod):
        return "Terminating"
    reason = str(status(pod).get("reason") or status(pod).get("phase") or "")
    for each in container_statuses(pod):
        state = each.get("state") or {}
        details = state.get("waiting") or state.get("terminated") or {}
        reason = details.get("reason") or reason
    return reason


def pod_restarts(pod: Body, _: float) -> str:
    return str(sum(int(each.get("restartCount") or 0) for each in container_statuses(pod)))


def node_state(node: Body, _: float) -> str:
    ready = (condition(node, "Ready") or {}).get("status", "")
    state = {"True": "Ready", "Unknown": "Unknown"}.get(ready, "NotReady")
    if spec(node).get("unschedulable"):
        state += ",SchedulingDisabled"
    return state


def node_roles(node: Body, _: float) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = [key.removeprefix(prefix) for key in labels(node) if key.startswith(prefix)]
    return ",".join(sorted(roles)) or NONE


def node_address(node: Body, _: float) -> str:
    for each in status(node).get("addresses") or []:
        if each.get("type") == "InternalIP":
            return str(each["address"])
    return NONE


def event_age(event: Body, now_s: float) -> str:
    last = event.get("lastTimestamp") or meta(event).get("creationTimestamp")
    return duration(seconds_since(last, now_s))


def event_object(event: Body, _: float) -> str:
    about = event.get("involvedObject") or event.get("regarding") or {}
    return f"{str(about.get('kind')).lower()}/{about.get('name')}"


def service_ports(service: Body, _: float) -> str:
    ports = []
    for each in spec(service).get("ports") or []:
        ports.append(f"{each.get('port')}/{each.get('protocol')}")
    return ",".join(ports) or NONE


def data_size(body: Body, _: float) -> str:
    return str(len(body.get("data") or {}))


NAME, AGE = ("Name", name_cell), ("Age", age_cell)
NARROW: dict[str, list[Column]] = {
    "Pod": [NAME, ("Ready", pod_ready), ("Status", pod_state), ("Restarts", pod_restarts), AGE],
    "Node": [
        NAME,
        ("Status", node_state),
        ("Roles", node_roles),
        AGE,
        ("Version", path_cell("status.nodeInfo.kubeletVersion")),
    ],
    "Namespace": [NAME, ("Status", path_cell("status.phase")), AGE],
    "Event": [
        ("Last Seen", event_age),
        ("Type", path_cell("type")),
        ("Reason", path_cell("reason")),
        ("Object", event_object),
        ("Message", path_cell("message")),
    ],
    "Service": [
        NAME,
        ("Type", path_cell("spec.type")),
        ("Cluster-IP", path_cell("spec.clusterIP")),
        ("Ports", service_ports),
        AGE,
    ],
    "Lease": [NAME, ("Holder", path_cell("spec.holderIdentity")), AGE],
    "ConfigMap": [NAME, ("Data", data_size), AGE],
    "Secret": [NAME, ("Type", path_cell("type", "Opaque")), ("Data", data_size), AGE],
    "PersistentVolumeClaim": [
        NAME,
        ("Status", path_cell("status.phase")),
        ("Volume", path_cell("spec.volumeName", "")),
        AGE,
    ],
}
ONLY_WIDE: dict[str, list[Column]] = {
    "Pod": [("IP", path_cell("status.podIP")), ("Node", lambda pod, _: node_of(pod) or NONE)],
    "Node": [
        ("Internal-IP", node_address),
        ("CPU", path_cell("status.allocatable.cpu")),
        ("Memory", path_cell("status.allocatable.memory")),
        ("Kernel-Version", path_cell("status.nodeInfo.kernelVersion")),
        ("Container-Runtime", path_cell("status.nodeInfo.containerRuntimeVersion")),
    ],
}


def columns_of(kind: Kind) -> list[tuple[str, Cell, int]]:
    """Return the name, cell and priority of each column."""
    narrow, wide = NARROW.get(kind.name, [NAME, AGE]), ONLY_WIDE.get(kind.name, [])
    return [(*column, 0) for column in narrow] + [(*column, WIDE) for column in wide]


def partial(body: Body) -> Body:
    return {"kind": "PartialObjectMetadata", "apiVersion": META, "metadata": meta(body)}


def row(kind: Kind, body: Body, now_s: float) -> Body:
    cells = [cell(body, now_s) for _, cell, _ in columns_of(kind)]
    return {"cells": cells, "object": partial(body)}


def table(kind: Kind, bodies: list[Body], now_s: float, list_meta: Body) -> Body:
    definitions = []
    for title, _, priority in columns_of(kind):
        definitions.append(
            {
                "name": title,
                "type": "string",
                "format": "name" if title == "Name" else "",
                "description": title,
                "priority": priority,
            }
        )
    return {
        "kind": "Table",
        "apiVersion": META,
        "metadata": list_meta,
        "columnDefinitions": definitions,
        "rows": [row(kind, body, now_s) for body in bodies],
    }


TABLE, PARTIAL = "Table", "PartialObjectMetadata"


def requested_form(accept: str) -> str:
    """Return the form that an Accept header requests; empty: full objects."""
    for form in (TABLE, PARTIAL):
        if f"as={form}" in accept:
            return form
    return ""


def format_object(form: str, kind: Kind, body: Body, now_s: float) -> Body:
    if form == TABLE:
        return table(kind, [body], now_s, {"resourceVersion": meta(body).get("resourceVersion")})
    return partial(body) if form == PARTIAL else body


def format_list(form: str, kind: Kind, bodies: list[Body], now_s: float, list_meta: Body) -> Body:
    """Return a list as a table or as metadata only."""
    if form == TABLE:
        return table(kind, bodies, now_s, list_meta)
    return {
        "kind": f"{PARTIAL}List",
        "apiVersion": META,
        "metadata": list_meta,
        "items": list(map(partial, bodies)),
    }
