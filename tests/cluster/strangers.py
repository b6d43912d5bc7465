"""Pods that are not Weir's: they idle, and hold the cores that they request.

Their command is `sleep`, so that the image of the control plane will do, and so will a node that
runs no images.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HOME = "weir-strangers"
Body = dict[str, Any]
OPEN_TO_NONE = ("NoSchedule", "NoExecute")


def bodies(name: str, node: str, cpu: float, image: str) -> list[Body]:
    """Their namespace, and a pod that is on this node whatever the scheduler thinks."""
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
    """By whoever drains a node."""
    named = {"name": pod, "namespace": namespace}
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": named}


def free(nodes: Mapping[str, Body], resource: str = "cpu") -> dict[str, float]:
    """Cores (or `memory_gib`) that each node has for jobs, by the monitor's facts; without nodes
    that take none.
    """
    return {
        name: node["free"].get(resource, 0.0) for name, node in nodes.items() if takes_tasks(node)
    }


def takes_tasks(node: Body) -> bool:
    """What is left out of a fact is as its message's default has it."""
    shut = any(
        taint.get("effect", "NoSchedule") in OPEN_TO_NONE for taint in node.get("taints", ())
    )
    return bool(
        node.get("ready", True)
        and node.get("schedulable", True)
        and not node.get("gone", False)
        and not shut
    )
