"""One function for each kind of fault: it injects the fault, ends it, and returns what was hit.

    hit = await INJECTORS[fault.kind](world, fault)

Raises `Missed` if there is no target at the moment. A fault that lasts has ended when the function
returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import aiohttp
from nats.errors import Error as NatsError

from services.local.kubelet import processes
from services.trainer.checkpoint_policy import FIRST_INTERVAL_S
from shared.messages import ClusterSpecPublished
from tests.bench.chaos import commits, doubling, drains, intakes, standing, stores
from tests.bench.chaos.schedule import Fault
from tests.bench.chaos.signals import Missed, held, send
from tests.bench.chaos.watch import Late
from tests.bench.chaos.world import DISK_MIB, EVERY_S, World
from tests.flow.kills import Family, family

Injector = Callable[[World, Fault], Awaitable[str]]
LOOKS, LOOK_S = 100, 0.1
NODE_AWAY_S = 6.0  # in s, added to `hold_s`: long enough for its pods to count as lost
FILLER = "somebody-else-s"


# ---------------------------------------------------------------- tasks


async def kill_task(world: World, fault: Fault) -> str:
    role = fault.kind.split()[0]
    pod, pid = await _victim(world, fault, role, fault.who)
    send([pid], signal.SIGKILL)
    return f"{fault.who} of {pod}"


async def freeze_task(world: World, fault: Fault) -> str:
    role = fault.kind.split()[0]
    pod, pid = await _victim(world, fault, role, fault.who)
    await held([pid], fault.hold_s)
    return f"{fault.who} of {pod}"


async def kill_next(world: World, fault: Fault) -> str:
    """Kill a child process of the next generation; the running generation's child is left alone."""
    pod, pid = await _victim(world, fault, fault.who, "next")
    send([pid], signal.SIGKILL)
    return f"next child of {pod}"


async def _victim(world: World, fault: Fault, role: str, part: str) -> tuple[str, int]:
    """Return a pod of the running (or next) generation, and the pid of one of its processes.

    Wait for the process, which may start a little later.
    """
    for _ in range(LOOKS):
        coming = standing.of(world.heard, ClusterSpecPublished)[-1]
        tasks = (
            [t for t in coming.tasks if t.role == role]
            if part == "next"
            else standing.tasks(world.heard, role)
        )
        uids = {p["metadata"]["name"]: p["metadata"]["uid"] for p in await world.pods()}
        there = sorted(t.pod for t in tasks if t.pod in uids)
        if there:
            pod = there[fault.choice % len(there)]
            pid = _process(family(uids[pod]), part, coming.published_s)
            if pid is not None:
                return pod, pid
        await asyncio.sleep(LOOK_S)
    raise Missed(f"no {part} of a {role}")


def _process(found: Family, part: str, since_s: float) -> int | None:
    if part == "supervisor":
        return found.supervisor
    return found.coming(since_s) if part == "next" else found.running()


# ---------------------------------------------------------------- services and servers


async def kill_part(world: World, fault: Fault) -> str:
    """Kill a part of the stack. The stack starts it again at once, like Kubernetes."""
    names = _parts(world, fault.who)
    world.kill(*names)
    return ", ".join(names)


async def freeze_part(world: World, fault: Fault) -> str:
    names = _parts(world, fault.who)
    await held([world.pid(name) for name in names], fault.hold_s)
    return ", ".join(names)


def _parts(world: World, who: str) -> tuple[str, ...]:
    """Return the process names of a part of the stack: the bus has one for each server."""
    return world.stack.nats_parts if who == "nats" else (who,)


async def lose_cluster(world: World, fault: Fault) -> str:
    """Kill the stand-in of the cluster. All its pods end, and it comes back empty."""
    world.strangers = []
    return await kill_part(world, fault)


async def cut_off(world: World, fault: Fault) -> str:
    """Make the API server unreachable for monitor and launcher, or freeze it; pods run on."""
    if fault.who == "frozen":
        await held([world.pid("cluster")], fault.hold_s)
        return "the API server, frozen"
    world.door.shut()
    await asyncio.sleep(fault.hold_s)
    world.door.open()
    return "the API server, for monitor and launcher"


# ---------------------------------------------------------------- nodes


async def lose_node(world: World, fault: Fault) -> str:
    """Make a node of the running generation not ready, and kill or freeze its pods' processes.

    Afterwards, the node is ready again.
    """
    node, hit = await world.occupied_node(fault.choice)
    await _ready(world, node, "Unknown")
    try:
        await _silence(hit, fault)
    finally:
        await _ready(world, node, "True")
    return f"{node} with {', '.join(sorted(p['metadata']['name'] for p in hit))}"


async def _silence(pods: Iterable[dict[str, Any]], fault: Fault) -> None:
    pids = [
        pid for pod in pods for pid in processes.processes_by_pod().get(pod["metadata"]["uid"], [])
    ]
    if fault.who == "silent":
        await held(pids, NODE_AWAY_S + fault.hold_s)
    else:
        send(pids, signal.SIGKILL)
        await asyncio.sleep(NODE_AWAY_S + fault.hold_s)


async def _ready(world: World, node: str, status: str) -> None:
    """Set the Ready condition of a node, like the node controller."""
    url, condition = (
        f"{world.stack.kube_url}/api/v1/nodes/{node}/status",
        {"type": "Ready", "status": status},
    )
    headers = {"Content-Type": "application/strategic-merge-patch+json"}
    body = {
        "status": {
            "conditions": [
                {**condition, "reason": "NodeStatusUnknown" if status != "True" else "KubeletReady"}
            ]
        }
    }
    async with world.http.patch(url, json=body, headers=headers) as answer:
        answer.raise_for_status()


# ---------------------------------------------------------------- disk


async def fill_disk(world: World, fault: Fault) -> str:
    """Make the checkpoint folder full, for longer than a checkpoint interval."""
    disk = world.folder / "weir" / "checkpoints"
    full = _filled if world.disk_by == "tmpfs" else _forbidden
    with full(disk):
        await asyncio.sleep((EVERY_S or FIRST_INTERVAL_S) + fault.hold_s)
    return f"{disk.name}, by {world.disk_by}"


@contextlib.contextmanager
def _filled(disk: Path):  # type: ignore[no-untyped-def]
    filler = disk / FILLER
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                for _ in range(DISK_MIB << 8):
                    file.write(b"\0" * size)
    try:
        yield
    finally:
        filler.unlink(missing_ok=True)


@contextlib.contextmanager
def _forbidden(disk: Path):  # type: ignore[no-untyped-def]
    folders = [disk, *(path for path in disk.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        yield
    finally:
        for folder in folders:
            folder.chmod(0o755)


TROUBLE = (Missed, Late, intakes.NotRefused, aiohttp.ClientError, NatsError, TimeoutError)
INJECTORS: dict[str, Injector] = {
    "worker killed": kill_task,
    "ps killed": kill_task,
    "chief killed": kill_task,
    "worker frozen": freeze_task,
    "ps frozen": freeze_task,
    "chief frozen": freeze_task,
    "next child killed": kill_next,
    "node lost": lose_node,
    "service killed": kill_part,
    "service frozen": freeze_part,
    "nats-server killed": kill_part,
    "nats-server frozen": freeze_part,
    "cluster lost": lose_cluster,
    "API cut off": cut_off,
    "disk full": fill_disk,
    "messages doubled": doubling.double,
    "nats killed in commit": commits.kill_server,
    "nats frozen in commit": commits.freeze_server,
    "intake full": intakes.fill_intake,
    "node drained": drains.drain_node,
    "facts purged": stores.purge_facts,
    "orders full": stores.fill_orders,
    "bus set back": stores.set_bus_back,
}
