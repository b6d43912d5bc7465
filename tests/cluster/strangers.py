"""Pods of other users ("strangers"): they idle, and occupy the CPU that they request.

Their command is `sleep`, so the image of the control plane is sufficient. It also works on nodes
that do not run images.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HOME = "weir-strangers"
Body = dict[str, Any]
OPEN_TO_NONE = ("NoSchedule", "NoExecute")


def bodies(name: str, node: str, cpu: float, image: str) -> list[Body]:
    """Return their namespace, and a pod that is bound to this node without the scheduler."""
    cores = {"cpu": f"{int(cpu * 1000)}m"}
    container = {
        "name": "stranger",
        "image": image,
        "command": ["sleep", "infinity"],
        "resources": {"requests": cores, "limits": cores},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "nodeName": node,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}},
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": HOME},
            "spec": spec,
        },
    ]


def eviction(pod: str, namespace: str) -> Body:
    """Return the eviction request that `kubectl drain` sends for a pod."""
    named = {"name": pod, "namespace": namespace}
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": named}


def free(nodes: Mapping[str, Body], resource: str = "cpu") -> dict[str, float]:
    """Return the free cores (or `memory_gib`) of each node, from the monitor's facts.

    Nodes that take no tasks are left out.
    """
    return {
        name: node["free"].get(resource, 0.0) for name, node in nodes.items() if takes_tasks(node)
    }


def takes_tasks(node: Body) -> bool:
    """Return whether a node takes tasks. A missing field has the default of its message."""
    shut = any(
        taint.get("effect", "NoSchedule") in OPEN_TO_NONE for taint in node.get("taints", ())
    )
    return bool(
        node.get("ready", True)
        and node.get("schedulable", True)
        and not node.get("gone", False)
        and not shut
    )
