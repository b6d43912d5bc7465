"""What a cluster that was killed could not say at its end, the next one says before anybody
decides. Edge.

One that is stopped in order says last that its nodes take nothing any more. After a `kill -9` of
everything the newest word of each node is of a moment when it was there, with pods that died with
it; and it may have been another machine. So each is told to be not ready, and the monitor tells of
those that there are, as they are, once it has seen them.
"""

from __future__ import annotations

import contextlib

from msgspec.structs import replace

from services.monitor.capacity import capacity_digest
from services.monitor.service import read_last_facts
from shared.bus.bus import Bus
from shared.bus.publisher import Stale
from shared.messages import CapacityChanged

AT_ONCE = 100
"""Facts that are asked for together."""


async def close_nodes(bus: Bus, now: float) -> None:
    """In the monitor's name, as long as there is none; a newer word than ours stands."""
    for heard in await read_last_facts(bus, AT_ONCE):
        if isinstance(heard.message, CapacityChanged) and heard.message.ready:
            with contextlib.suppress(Stale):
                await bus.publish(closed(heard.message, now), expect_last=heard.sequence)


def closed(told: CapacityChanged, now: float) -> CapacityChanged:
    """Without pods: whatever ended the cluster ended them."""
    shut = replace(told, ready=False, free=told.allocatable, own=(), observed_s=now)
    return replace(shut, seen=capacity_digest(shut, told.seen))
