"""Pods that run TensorFlow without Weir: the same cluster, the same limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import msgspec

from services.local.stack import Stack
from shared.messages import Resources
from shared.runtime.process import free_port


def cluster(counts: Mapping[str, int]) -> str:
    """Return a cluster on free ports, as JSON.

    Fixed ports do not work: gRPC shares a port silently (SO_REUSEPORT), so two benchmarks that run
    at the same time would accept each other's connections.
    """
    addresses = {
        role: [f"127.0.0.1:{free_port()}" for _ in range(count)] for role, count in counts.items()
    }
    return msgspec.json.encode(addresses).decode()


async def pods(
    stack: Stack,
    command: list[str],
    tasks: Sequence[tuple[str, int]],
    sizes: Mapping[str, Resources],
) -> None:
    """Create one pod for each task; it runs `command ROLE INDEX`."""
    async with aiohttp.ClientSession(headers=stack.kube_headers) as http:
        for role, index in tasks:
            body = _pod(role, index, [*command, role, str(index)], sizes[role])
            async with http.post(
                f"{stack.kube_url}/api/v1/namespaces/default/pods", json=body
            ) as answer:
                answer.raise_for_status()


def _pod(role: str, index: int, command: list[str], size: Resources) -> dict[str, Any]:
    cpu = {"cpu": f"{size.cpu:g}"}
    names = ("GRPC_FAIL_FAST", "use_caller"), ("TF_CPP_MIN_LOG_LEVEL", "2")
    container = {
        "name": "tensorflow",
        "image": "none",
        "command": command,
        "resources": {"requests": cpu, "limits": cpu},
        "env": [{"name": name, "value": value} for name, value in names],
    }
    return {
        "metadata": {"name": f"hand-{role}-{index}"},
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }
