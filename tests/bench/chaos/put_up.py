"""Start the stack, with a proxy in front of the API server and a small disk for the checkpoints.

The three nodes have capacity for eight tasks of one core, and a little more for a probe. Pods of
other users occupy three of these cores while a job starts, so it starts with 1 ps + 2 workers and
grows to 2 + 3 after they have been deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from services.local.stack import SERVICES, Stack
from shared.bus import bus
from shared.runtime.process import free_port
from tests.bench.chaos import intakes
from tests.bench.chaos.gate import gate
from tests.bench.chaos.watch import Watch
from tests.bench.chaos.world import DISK_MIB, World

PLACES = """nodes:
  - {name: node-1, cpu: 3.2, memory_gib: 9}
  - {name: node-2, cpu: 3.2, memory_gib: 9}
  - {name: node-3, cpu: 2.2, memory_gib: 6}
"""
QUICK = {
    "WEIR_ALLOCATOR_WINDOW_S": "0.3",
    "WEIR_ALLOCATOR_COOLDOWN_S": "0.5",
    "WEIR_ALLOCATOR_BACKOFF_S": "1",
    "WEIR_ALLOCATOR_BACKOFF_MAX_S": "4",
    "WEIR_ALLOCATOR_PAYBACK_FACTOR": "-1000",  # every growth is worth its pause
    "WEIR_ALLOCATOR_SNAPSHOT_S": "2",
    "WEIR_LAUNCHER_SNAPSHOT_S": "5",
    "WEIR_LAUNCHER_UNSCHEDULABLE_S": "5",
    "WEIR_LAUNCHER_NODE_LOST_S": "3",
}


SERVERS = 3
"""Servers of the bus. Without one of them the bus works, without all three there is no bus."""


def mounted(disk: Path) -> bool:
    """Mount a small disk on this folder; return False if this user may not mount."""
    disk.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(disk)]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0


@contextlib.contextmanager
def small_disk(disk: Path):  # type: ignore[no-untyped-def]
    """Yield how the disk is made small: `tmpfs` or `permissions`."""
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
    through = {
        f"WEIR_{name}_KUBE_URL": f"http://127.0.0.1:{port}" for name in ("MONITOR", "LAUNCHER")
    }
    with small_disk(folder / "weir" / "checkpoints") as disk_by:
        async with (
            Stack(
                folder / "weir", file, {**QUICK, **through}, services=(), nats_servers=SERVERS
            ) as stack,
            gate(port, stack.kube_port) as door,
            intakes.submitters(stack) as submitters,
        ):
            for name in SERVICES:
                await stack.start(name)
            watch = Watch(await bus.connect(stack.nats_url, "chaos", stack.operator))
            here = World(stack, watch, door, folder, disk_by)
            here.submitters = submitters
            try:
                yield here
            finally:
                await here.http.close()
                await watch.close()
                await asyncio.gather(*(stack.parts.pop(name).stop() for name in SERVICES))
