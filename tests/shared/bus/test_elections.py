"""A leader whose first requests find a bus that is still electing: it waits for the answer, and
does not end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from services.allocator import service as allocator
from services.allocator import snapshot as allocator_memory
from services.launcher import service as launcher_memory
from services.monitor.service import read_last_facts
from shared.bus import bus as wire
from shared.bus.bus import Bus
from tests.conftest import WITHIN_S, NatsServer, connected

SILENT_TRIES = 3
"""So many requests have timed out before the bus answers."""
ANSWER_S = 0.3


async def decide(bus: Bus) -> None:
    await allocator.start(bus, allocator.Settings(nats_url=""))


STARTS: dict[str, Callable[[Bus], Awaitable[Any]]] = {
    "streams": Bus.verify,
    "allocator": decide,
    "allocator's snapshot": allocator_memory.load_snapshot,
    "launcher's snapshot": launcher_memory.load_snapshot,
    "monitor's facts": lambda bus: read_last_facts(bus, 10),
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
async def test_a_service_waits_for_the_bus_during_a_leader_election(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, start: Callable[[Bus], Awaitable[Any]]
) -> None:
    await (await connected(nats_server.url, "setup")).close()
    monkeypatch.setattr(wire, "ANSWER_S", ANSWER_S)
    bus = await wire.connect(nats_server.url, "allocator")

    with nats_server.hung():
        starting = asyncio.ensure_future(start(bus))
        done, _ = await asyncio.wait({starting}, timeout=SILENT_TRIES * ANSWER_S)
        assert not done, f"it ended while the bus elected: {starting.exception()!r}"

    async with asyncio.timeout(WITHIN_S):
        await starting
    await bus.close()
