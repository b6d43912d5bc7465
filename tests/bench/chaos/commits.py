"""Lose one of the three servers of the bus while a checkpoint is committed.

A commit is a write to the ledger, which needs the leader of its stream. The leader is killed or
frozen as soon as the first file of a checkpoint appears, so the write comes a moment later. The
other two servers then elect a leader, and the commit has to wait for it. A follower is killed or
frozen in the same way: its clients must connect to another server.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from shared.auth.permissions import stream_of
from shared.bus.subjects import LEDGER
from tests.bench.chaos.schedule import Fault
from tests.bench.chaos.signals import Missed, held
from tests.bench.chaos.world import EVERY_S, World

LEAST_S = 5.0  # in s: frozen for longer than a client waits for one answer
BEGINS_S, LOOK_S = 60.0, 0.01


async def kill_server(world: World, fault: Fault) -> str:
    name = await _server(world, fault)
    await _save_begins(world)
    world.kill(name)
    return f"{name}, {fault.who} of the ledger"


async def freeze_server(world: World, fault: Fault) -> str:
    name = await _server(world, fault)
    await _save_begins(world)
    await held([world.pid(name)], LEAST_S + fault.hold_s)
    return f"{name}, {fault.who} of the ledger"


async def _server(world: World, fault: Fault) -> str:
    """Return the name of the server that leads the ledger, or of a follower."""
    info = await world.watch.bus.retry_until_answered(
        lambda: world.watch.bus.js.stream_info(stream_of(LEDGER))
    )
    leader = info.cluster.leader if info.cluster else None
    if leader is None:
        raise Missed("the ledger has no leader")
    followers = [name for name in world.stack.nats_parts if name != leader]
    return leader if fault.who == "leader" else followers[fault.choice % len(followers)]


async def _save_begins(world: World) -> None:
    """Wait until the first new file of a checkpoint appears."""
    folder, until_s = world.folder / "weir" / "checkpoints", time.monotonic() + EVERY_S + BEGINS_S
    known = _checkpoint_files(folder)
    while not _checkpoint_files(folder) - known:
        if time.monotonic() > until_s:
            raise Missed("no checkpoint was begun")
        await asyncio.sleep(LOOK_S)


def _checkpoint_files(folder: Path) -> set[Path]:
    return set(folder.rglob("ckpt-*"))
