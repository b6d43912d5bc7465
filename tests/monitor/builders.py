"""Builders of Kubernetes objects as the API sends them; each sets only what matters."""

from __future__ import annotations

from typing import Any

import msgspec

from services.monitor import facts
from services.monitor.facts import NodeFact, PodFact

Raw = dict[str, Any]


def container(cpu: str = "1", memory: str = "1Gi", **more: Any) -> Raw:
    return {"name": "main", "resources": {"requests": {"cpu": cpu, "memory": memory}}, **more}


def pod(
    name: str = "p1", node: str = "n1", *containers: Raw, phase: str = "Running", **spec: Any
) -> Raw:
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": "1",
        },
        "spec": {"nodeName": node, "containers": list(containers) or [container()], **spec},
        "status": {"phase": phase},
    }


def ours(name: str = "mnist-worker-2", node: str = "n1", job: str = "mnist") -> Raw:
    made = pod(name, node)
    made["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "weir", "weir.dev/job": job}
    return made


def node(
    name: str = "n1", cpu: str = "8", memory: str = "16Gi", ready: str = "True", **spec: Any
) -> Raw:
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "labels": {"zone": "a"},
        },
        "spec": spec,
        "status": {
            "allocatable": {"cpu": cpu, "memory": memory, "pods": "110"},
            "capacity": {"cpu": "99"},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def pod_fact(raw: Raw | None = None) -> PodFact:
    return facts.pod_fact(msgspec.json.encode(raw or pod()))


def node_fact(raw: Raw | None = None) -> NodeFact:
    return facts.node_fact(msgspec.json.encode(raw or node()))
