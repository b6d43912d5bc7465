"""Faults of the stored data: all facts are purged, the orders are full, or a minute is lost."""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import replace

from nats.js.errors import APIError

from services.local.stack import SERVICES
from shared.auth.permissions import ALLOCATOR
from shared.bus import bus
from shared.bus.publisher import is_no_room
from shared.bus.subjects import FACTS, ORDERS, encode_message, subject_of
from shared.messages import JobRejected
from tests.bench.chaos import intakes, standing
from tests.bench.chaos.schedule import Fault
from tests.bench.chaos.signals import Missed, send
from tests.bench.chaos.world import World
from tests.shared.restored_server import copy_stores, put_stores_back

SET_BACK_S = 60.0
CRAWL_S = 1.5
"""Pause of a worker before each batch in s, so that no job ends during the fault."""


async def purge_facts(world: World, fault: Fault) -> str:
    """Kill all services at once and purge all facts, so that they restart without them."""
    allocator = await bus.connect(
        world.stack.nats_url, ALLOCATOR, world.stack.credentials_of(ALLOCATOR)
    )
    try:
        world.kill(*SERVICES)
        await allocator.js.purge_stream(FACTS)
    finally:
        await allocator.close()
    return ", ".join(SERVICES)


async def fill_orders(world: World, fault: Fault) -> str:
    """Make the orders stream full and evict a worker, whose replacement cannot be decided."""
    workers = [task.pod for task in standing.tasks(world.heard, "worker")]
    if not workers:
        raise Missed("no worker")
    evicted = workers[fault.choice % len(workers)]
    async with intakes.owner_of(world.stack) as owner:
        info = await owner.js.stream_info(ORDERS)
        await owner.js.update_stream(replace(info.config, max_bytes=int(info.state.bytes)))
        try:
            refusal = await _refusal(world)
            await world.evict(evicted)
            await asyncio.sleep(fault.hold_s)
        finally:
            await owner.js.update_stream(info.config)
    return f"{ORDERS}: {refusal}; {evicted} was evicted"


async def _refusal(world: World) -> str:
    """Return the server's error for an order of the allocator; raise `NotRefused` if stored."""
    allocator = await bus.connect(
        world.stack.nats_url, ALLOCATOR, world.stack.credentials_of(ALLOCATOR)
    )
    order = JobRejected(job="probe-full", uid=0, reasons=("a probe of the orders stream",))
    try:
        await allocator.js.publish(subject_of(order), encode_message(order))
    except APIError as error:
        if not is_no_room(error):
            raise
        return str(error.description)
    finally:
        await allocator.close()
    raise intakes.NotRefused("an order was taken although the stream was full")


async def set_bus_back(world: World, fault: Fault) -> str:
    """Reset all servers to what they had stored `SET_BACK_S` before.

    This is like a power failure after which no disk has the writes of the last minute.
    """
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
