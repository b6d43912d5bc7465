"""The stack on this machine, with what is needed to hurt it: a gate before the API, a small disk, strangers, a pace.

Eight places of one core on paper, on three nodes, and a little more for a probe; a task takes one. Strangers hold three
of them while a job starts, so that it starts with 1 ps + 2 workers and grows to 2 + 3 once they have left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from services.cli import store
from services.local.node_spec import TenantSpec
from services.local.stack import SERVICES, Stack, free_port
from services.local.tenancy import pod_spec
from shared import bus
from shared.bus import Heard
from shared.messages import JobRequested
from tests.bench.chaos import standing
from tests.bench.chaos.gate import Gate, gate
from tests.bench.chaos.watch import Watch
from tests.flow.stage import PACED, SLEEP
from tests.trainer import fleet

PLACES = """nodes:
  - {name: node-1, cpu: 3.2, memory_gib: 9}
  - {name: node-2, cpu: 3.2, memory_gib: 9}
  - {name: node-3, cpu: 2.2, memory_gib: 6}
"""
STRANGERS = (("node-3", 2.0), ("node-2", 1.0))
NAMESPACE = "tenants"
TASK = {"cpu": 1.0, "memory_gib": 2.0}
EXAMPLES, BATCH, EVERY_S = 250, 16, 4.0
REQUEST: dict[str, Any] = {
    "batch": {"start": BATCH, "min": BATCH, "max": BATCH},
    "ps": {"start": 1, "min": 1, "max": 2},
    "workers": {"start": 2, "min": 2, "max": 3},
    "resources": {"chief": TASK, "ps": TASK, "worker": TASK},
    "policy": "config-manager",
    "checkpoint": {"every_s": EVERY_S},
    "grace_s": 5.0,
}
QUICK = {
    "WEIR_ALLOCATOR_WINDOW_S": "0.3",
    "WEIR_ALLOCATOR_COOLDOWN_S": "0.5",
    "WEIR_ALLOCATOR_BACKOFF_S": "1",
    "WEIR_ALLOCATOR_BACKOFF_MAX_S": "4",
    "WEIR_ALLOCATOR_PAYBACK_FACTOR": "-1000",  # every growth pays: this is not about speed
    "WEIR_ALLOCATOR_SNAPSHOT_S": "2",
    "WEIR_LAUNCHER_SNAPSHOT_S": "5",
    "WEIR_LAUNCHER_UNSCHEDULABLE_S": "5",
    "WEIR_LAUNCHER_NODE_LOST_S": "3",
}
DISK_MIB = 32
BEAT = """

_counted = dataset


def dataset(start, stop):
    made = _counted(start, stop)
    if stop - start > 1:
        with open({beats!r}, "a") as beats:
            beats.write(f"{{time.time():.3f}}\\n")
    return made
"""
"""Each batch of each worker leaves a moment in a file: it is read there, and applied within milliseconds."""


class World:
    """`disk_by`: how the disk is made small, `tmpfs` or `permissions` (where nobody may mount)."""

    def __init__(self, stack: Stack, watch: Watch, door: Gate, folder: Path, disk_by: str) -> None:
        self.stack, self.watch, self.door, self.folder, self.disk_by = stack, watch, door, folder, disk_by
        self.http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0))
        self.strangers: list[str] = []
        self.uid, self.job = 0, ""
        self.made = 0

    # ------------------------------------------------------------ jobs

    async def submit(self, job: str, epochs: int, **fields: Any) -> int:
        """Ask for a job of the counting program, which from then on is the one that is looked at; its uid."""
        kept = {"name": "counting.py", "digest": await store.keep(self.watch.bus, self._program())}
        body = {**REQUEST, **fields, "job": job, "epochs": epochs, "program": kept}
        self.uid, self.job = await self.watch.bus.request(msgspec.convert(body, JobRequested)), job
        return self.uid

    def _program(self) -> bytes:
        text = (fleet.PROGRAMS / "counting.py").read_text()
        paced = text.replace(PACED, repr(str(self.folder / "pace")))
        return (paced + BEAT.format(beats=str(self.folder / "beats"))).encode()

    def pace(self, seconds: float) -> None:
        """How long a worker waits before each batch from now on."""
        written = self.folder / "pace.new"
        written.write_text(str(seconds))
        written.rename(self.folder / "pace")

    def beats(self, from_s: float, to_s: float) -> list[float]:
        """When batches were read, between two moments."""
        path = self.folder / "beats"
        found = sorted(float(line) for line in path.read_text().splitlines() if line) if path.exists() else []
        return [at for at in found if from_s <= at <= to_s]

    @property
    def heard(self) -> list[Heard]:
        """Of the job that is looked at."""
        return standing.of_job(self.watch.heard, self.uid)

    # ------------------------------------------------------------ the cluster

    async def pods(self, namespace: str = "default") -> list[dict[str, Any]]:
        return await self.listed(f"namespaces/{namespace}/pods")

    async def nodes(self) -> list[dict[str, Any]]:
        return await self.listed("nodes")

    async def listed(self, path: str) -> list[dict[str, Any]]:
        async with self.http.get(f"{self.stack.kube_url}/api/v1/{path}") as answer:
            answer.raise_for_status()
            items: list[dict[str, Any]] = (await answer.json())["items"]
            return items

    async def stands(self) -> bool:
        """Whether each pod of the running generation runs, as the cluster has it."""
        try:
            phases = {pod["metadata"]["name"]: pod["status"].get("phase") for pod in await self.pods()}
        except (aiohttp.ClientError, TimeoutError):
            return False
        return all(phases.get(task.pod) == "Running" for task in standing.tasks(self.heard))

    async def evict(self, pod: str) -> None:
        async with self.http.delete(f"{self.stack.kube_url}/api/v1/namespaces/default/pods/{pod}") as answer:
            answer.raise_for_status()

    async def strangers_come(self) -> None:
        self.strangers = [await self.stranger(node, cpu) for node, cpu in STRANGERS]

    async def strangers_leave(self) -> None:
        leaving, self.strangers = self.strangers, []
        for name in leaving:
            await self.stranger_leaves(name)

    async def stranger(self, node: str, cpu: float) -> str:
        """Somebody else's pod, that only sleeps; its name."""
        self.made += 1
        name, namespaces = f"stranger-{self.made}", f"{self.stack.kube_url}/api/v1/namespaces"
        spec = pod_spec(TenantSpec(node=node, cpu=cpu))
        spec["containers"][0]["command"] = SLEEP
        await (await self.http.post(namespaces, json={"metadata": {"name": NAMESPACE}})).read()
        body = {"metadata": {"name": name}, "spec": spec}
        async with self.http.post(f"{namespaces}/{NAMESPACE}/pods", json=body) as answer:
            answer.raise_for_status()
        return name

    async def stranger_leaves(self, name: str) -> None:
        """One that has gone with its cluster is no error."""
        url = f"{self.stack.kube_url}/api/v1/namespaces/{NAMESPACE}/pods/{name}"
        await (await self.http.delete(url)).read()


# ---------------------------------------------------------------- putting it up


def mounted(disk: Path) -> bool:
    """A small disk of its own at this folder, where this user may mount."""
    disk.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(disk)]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0


@contextlib.contextmanager
def small_disk(disk: Path):  # type: ignore[no-untyped-def]
    """Yields how it is made small."""
    by = "tmpfs" if mounted(disk) else "permissions"
    try:
        yield by
    finally:
        if by == "tmpfs":
            subprocess.run(["umount", "--lazy", str(disk)], check=True)


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    file, port = folder / "cluster.yaml", free_port()
    file.write_text(PLACES)
    through = {f"WEIR_{name}_KUBE_URL": f"http://127.0.0.1:{port}" for name in ("MONITOR", "LAUNCHER")}
    with small_disk(folder / "weir" / "checkpoints") as disk_by:
        async with (
            Stack(folder / "weir", file, {**QUICK, **through}, services=()) as stack,
            gate(port, stack.kube_port) as door,
        ):
            for name in SERVICES:
                await stack.start(name)
            watch = Watch(await bus.connect(stack.nats_url, "chaos", stack.operator))
            here = World(stack, watch, door, folder, disk_by)
            try:
                yield here
            finally:
                await here.http.close()
                await watch.close()
                await asyncio.gather(*(stack.parts.pop(name).stop() for name in SERVICES))
