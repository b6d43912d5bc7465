"""A node is drained while its neighbours are full: its tasks have to leave and have no place to
go.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from shared.kube.objects import parse_quantity
from tests.bench.chaos import probes
from tests.bench.chaos.schedule import Fault
from tests.bench.chaos.world import TASK, World

NO_PLACE_S = 10.0  # besides `hold_s`: longer than the grace of the tasks that are evicted
GOES_ON_S = 180.0


async def drain_node(world: World, fault: Fault) -> str:
    """As `kubectl drain` does: cordon, then evict. Later the neighbours have room; the node stays
    closed until then.
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
    """Strangers take all that is free on the other nodes, where a task would fit."""
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
