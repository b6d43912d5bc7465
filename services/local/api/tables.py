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

Column = tuple[str, Callable[[Body, float], str]]  # its name and its cell

META = "meta.k8s.io/v1"
WIDE = 1  # the priority of a column that only -o wide shows
NONE = "<none>"


def seconds_since(stamped: str | None, now_s: float) -> float:
    if not stamped:
        return 0.0
    return (
        now_s - datetime.strptime(stamped[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()
    )


def duration(seconds: float) -> str:
    """As kubectl says it: 45s, 3m10s, 5h, 2d."""
    whole = max(int(seconds), 0)
    if whole < 120:
        return f"{whole}s"
    if whole < 600:
        return f"{whole // 60}m{whole % 60}s" if whole % 60 else f"{whole // 60}m"
    return (
        f"{whole // 60}m"
        if whole < 10800
        else f"{whole // 3600}h"
        if whole < 172800
        else f"{whole // 86400}d"
    )


def name_cell(body: Body, _: float) -> str:
    return name_of(body)


def age_cell(body: Body, now_s: float) -> str:
    return duration(seconds_since(meta(body).get("creationTimestamp"), now_s))


def path_cell(path: str, missing: str = NONE) -> Callable[[Body, float], str]:
    return lambda body, _: str(at_path(body, path) or missing)


def container_statuses(pod: Body) -> list[Body]:
    return status(pod).get("containerStatuses") or []


def pod_ready(pod: Body, _: float) -> str:
    return f"{sum(bool(s.get('ready')) for s in container_statuses(pod))}/{len(containers_of(pod))}"


def pod_state(pod: Body, _: float) -> str:
    if is_leaving(pod):
        return "Terminating"
    told = str(status(pod).get("reason") or status(pod).get("phase") or "")
    for one in container_statuses(pod):
        state = one.get("state") or {}
        told = (state.get("waiting") or state.get("terminated") or {}).get("reason") or told
    return told


def pod_restarts(pod: Body, _: float) -> str:
    return str(sum(int(s.get("restartCount") or 0) for s in container_statuses(pod)))


def node_state(node: Body, _: float) -> str:
    ready = {"True": "Ready", "Unknown": "Unknown"}.get(
        (condition(node, "Ready") or {}).get("status", ""), "NotReady"
    )
    return ready + (",SchedulingDisabled" if spec(node).get("unschedulable") else "")


def node_roles(node: Body, _: float) -> str:
    start = "node-role.kubernetes.io/"
    return (
        ",".join(sorted(key.removeprefix(start) for key in labels(node) if key.startswith(start)))
        or NONE
    )


def node_address(node: Body, _: float) -> str:
    return next(
        (
            a["address"]
            for a in status(node).get("addresses") or []
            if a.get("type") == "InternalIP"
        ),
        NONE,
    )


def event_age(event: Body, now_s: float) -> str:
    return duration(
        seconds_since(event.get("lastTimestamp") or meta(event).get("creationTimestamp"), now_s)
    )


def event_object(event: Body, _: float) -> str:
    about = event.get("involvedObject") or event.get("regarding") or {}
    return f"{str(about.get('kind')).lower()}/{about.get('name')}"


def service_ports(service: Body, _: float) -> str:
    return (
        ",".join(f"{p.get('port')}/{p.get('protocol')}" for p in spec(service).get("ports") or [])
        or NONE
    )


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


def columns_of(kind: Kind) -> list[tuple[str, Callable[[Body, float], str], int]]:
    narrow, wide = NARROW.get(kind.name, [NAME, AGE]), ONLY_WIDE.get(kind.name, [])
    return [(*column, 0) for column in narrow] + [(*column, WIDE) for column in wide]


def partial(body: Body) -> Body:
    return {"kind": "PartialObjectMetadata", "apiVersion": META, "metadata": meta(body)}


def row(kind: Kind, body: Body, now_s: float) -> Body:
    return {
        "cells": [cell(body, now_s) for _, cell, _ in columns_of(kind)],
        "object": partial(body),
    }


def table(kind: Kind, bodies: list[Body], now_s: float, list_meta: Body) -> Body:
    columns = [
        {
            "name": title,
            "type": "string",
            "format": "name" if title == "Name" else "",
            "description": title,
            "priority": priority,
        }
        for title, _, priority in columns_of(kind)
    ]
    return {
        "kind": "Table",
        "apiVersion": META,
        "metadata": list_meta,
        "columnDefinitions": columns,
        "rows": [row(kind, body, now_s) for body in bodies],
    }


TABLE, PARTIAL = "Table", "PartialObjectMetadata"


def requested_form(accept: str) -> str:
    """Empty: as they are."""
    return next((form for form in (TABLE, PARTIAL) if f"as={form}" in accept), "")


def format_object(form: str, kind: Kind, body: Body, now_s: float) -> Body:
    if form == TABLE:
        return table(kind, [body], now_s, {"resourceVersion": meta(body).get("resourceVersion")})
    return partial(body) if form == PARTIAL else body


def format_list(form: str, kind: Kind, bodies: list[Body], now_s: float, list_meta: Body) -> Body:
    """A list in another form than its objects have."""
    if form == TABLE:
        return table(kind, bodies, now_s, list_meta)
    return {
        "kind": f"{PARTIAL}List",
        "apiVersion": META,
        "metadata": list_meta,
        "items": [partial(b) for b in bodies],
    }
