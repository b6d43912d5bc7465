"""Drain a node while the other nodes are full: its tasks must leave and fit on no other node."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from shared.kube.objects import parse_quantity
from tests.bench.chaos import probes
from tests.bench.chaos.schedule import Fault
from tests.bench.chaos.world import TASK, World

NO_PLACE_S = 10.0  # in s, added to `hold_s`: longer than the grace period of the evicted tasks
GOES_ON_S = 180.0


async def drain_node(world: World, fault: Fault) -> str:
    """Cordon a node and evict its pods, like `kubectl drain`. Later make room on the other nodes.

    The node stays cordoned until training has continued.
    """
    node, pods = await world.occupied_node(fault.choice)
    evicted = sorted(pod["metadata"]["name"] for pod in pods)
    await world.cordon(node, True)
    try:
        await _fill_neighbours(world, node)
        for name in evicted:
            await world.evict_politely(name)
        await asyncio.sleep(NO_PLACE_S + fault.hold_s)
        freed_s = time.time()
        await world.strangers_leave()
        await probes.training(world, freed_s, GOES_ON_S)
    finally:
        await world.strangers_leave()
        await world.cordon(node, False)
    return f"{node} with {', '.join(evicted)}"


async def _fill_neighbours(world: World, drained: str) -> None:
    """Fill the other nodes on which a task fits with pods of other users."""
    used: dict[str, float] = {}
    for pod in await world.listed("pods"):
        node = pod["spec"].get("nodeName", "")
        used[node] = used.get(node, 0.0) + _requested_cpu(pod)
    for node in await world.nodes():
        name = node["metadata"]["name"]
        free = float(parse_quantity(node["status"]["allocatable"]["cpu"])) - used.get(name, 0.0)
        if name != drained and free >= TASK["cpu"]:
            world.strangers.append(await world.stranger(name, round(free, 3)))


def _requested_cpu(pod: dict[str, Any]) -> float:
    containers = pod["spec"]["containers"]
    return sum(
        float(parse_quantity(each["resources"].get("requests", {}).get("cpu", "0")))
        for each in containers
    )
