"""Builders of Kubernetes objects that set only what a test needs."""

from __future__ import annotations

from typing import Any

Body = dict[str, Any]

FOREVER = "import time; time.sleep(600)"


def container(
    command: list[str] | None = None, cpu: str = "", memory: str = "", limit: str = "", **more: Any
) -> Body:
    requests = {k: v for k, v in (("cpu", cpu), ("memory", memory)) if v}
    limits = {"cpu": limit} if limit else {}
    resources = {k: v for k, v in (("requests", requests), ("limits", limits)) if v}
    return {
        "name": "main",
        "image": "none",
        "command": command or ["true"],
        "resources": resources,
        **more,
    }


def pod(
    name: str = "",
    *containers: Body,
    labels: dict[str, str] | None = None,
    meta: Body | None = None,
    **spec: Any,
) -> Body:
    whole = {"containers": list(containers) or [container()], "restartPolicy": "Never", **spec}
    named = {"name": name} if name else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**named, "labels": labels or {}, **(meta or {})},
        "spec": whole,
    }


def python(program: str, *arguments: str, **more: Any) -> Body:
    return container(["python", "-c", program, *arguments], **more)


def idle(name: str = "", **more: Any) -> Body:
    """Return a pod that no scheduler handles."""
    return pod(name, schedulerName="nobody", **more)


def node(
    name: str,
    cpu: str = "4",
    memory: str = "8Gi",
    ready: str = "True",
    pods: str = "110",
    **spec: Any,
) -> Body:
    conditions = [{"type": "Ready", "status": ready}]
    allocatable = {"cpu": cpu, "memory": memory, "pods": pods}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": spec,
        "status": {"allocatable": allocatable, "capacity": allocatable, "conditions": conditions},
    }


def pinned_pod(*names: str, operator: str = "In") -> Body:
    """Return an affinity to nodes by name, as the launcher writes it."""
    field = {"key": "metadata.name", "operator": operator, "values": list(names)}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
