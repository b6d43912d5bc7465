"""What the bus holds: all facts are purged, orders have no room, or a minute of all of it is lost."""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import replace

from nats.errors import Error as NatsError

from services.local.stack import SERVICES
from shared import bus
from shared.permissions import ALLOCATOR
from shared.subjects import DEFAULT_NAMESPACE, FACTS, ORDERS
from tests.bench.chaos import intakes, probes, standing
from tests.bench.chaos.schedule import Fault
from tests.bench.chaos.signals import Missed, send
from tests.bench.chaos.world import World
from tests.shared.set_back import copy_stores, put_stores_back

ROOM_BYTES = 64 * 1024
"""What is left of the orders when they begin to be filled."""
SET_BACK_S = 60.0
CRAWL_S = 1.5
"""Pace of a worker meanwhile, so that no job ends before."""


async def purge_facts(world: World, fault: Fault) -> str:
    """All services are killed at once, and find no fact when they are back; trainers go on."""
    allocator = await bus.connect(world.stack.nats_url, ALLOCATOR, world.stack.credentials_of(ALLOCATOR))
    try:
        world.kill(*SERVICES)
        await allocator.js.purge_stream(FACTS)
    finally:
        await allocator.close()
    return ", ".join(SERVICES)


async def fill_orders(world: World, fault: Fault) -> str:
    """Until the stream refuses the smallest. A worker is evicted then, and its replacement cannot be decided."""
    workers = [task.pod for task in standing.tasks(world.heard, "worker")]
    if not workers:
        raise Missed("no worker")
    evicted = workers[fault.choice % len(workers)]
    async with intakes.owner_of(world.stack) as owner:
        info = await owner.js.stream_info(ORDERS)
        await owner.js.update_stream(replace(info.config, max_bytes=int(info.state.bytes) + ROOM_BYTES))
        try:
            await intakes.fill(world.watch.bus, DEFAULT_NAMESPACE)
            await _require_refusal(world)
            await world.evict(evicted)
            await asyncio.sleep(fault.hold_s)
        finally:
            await owner.js.update_stream(info.config)
    return f"{ORDERS}, and {evicted} was evicted"


async def _require_refusal(world: World) -> None:
    try:
        await world.watch.bus.request(probes.invalid_request(world))
    except NatsError:
        return
    raise intakes.NotRefused("a request was taken although the orders were full")


async def set_bus_back(world: World, fault: Fault) -> str:
    """All servers lose what they stored in the last minute, as if no disk had written it before a power failure."""
    stack, copies = world.stack, world.folder / f"stores-{fault.number}"
    pids = [world.pid(name) for name in stack.nats_parts]
    send(pids, signal.SIGSTOP)
    try:
        copied_s = time.time()
        await asyncio.to_thread(copy_stores, stack, copies)
    finally:
        send(pids, signal.SIGCONT)
    world.pace(CRAWL_S)
    await asyncio.sleep(SET_BACK_S)
    await put_stores_back(stack, copies)
    world.watch.undone.append((copied_s, time.time()))
    return f"{', '.join(stack.nats_parts)}, by {SET_BACK_S:g} s"
