"""The stored state: a restart takes it where it fits the streams, and reads the log from its beginning where not."""

from __future__ import annotations

import pytest

from services.allocator import memory
from services.allocator.state import State
from shared import subjects
from shared.bus import Bus
from shared.messages import JobRequested
from tests.allocator.builders import node, request


async def streams_with_two_messages(bus: Bus) -> dict[str, int]:
    """Publish two orders and two facts; return each stream's last sequence."""
    asked = [await bus.publish(request(name)) for name in ("first", "second")]
    seen = [await bus.publish(node(name, cpu=1)) for name in ("n1", "n2")]
    return {subjects.ORDERS: asked[-1], subjects.FACTS: seen[-1]}


@pytest.mark.parametrize("behind", [0, 1])
async def test_a_snapshot_that_the_streams_have_reached_is_believed(bus: Bus, behind: int) -> None:
    last = await streams_with_two_messages(bus)
    kept = State(sequences={stream: sequence - behind for stream, sequence in last.items()}, cause="kept")
    await memory.remember(bus, kept)

    assert await memory.recall(bus) == kept


@pytest.mark.parametrize("ahead", [subjects.ORDERS, subjects.FACTS])
async def test_a_snapshot_that_is_ahead_of_one_of_its_streams_counts_as_absent(bus: Bus, ahead: str) -> None:
    last = await streams_with_two_messages(bus)
    await memory.remember(bus, State(sequences=last | {ahead: last[ahead] + 1}, cause="of streams that are gone"))

    assert await memory.recall(bus) == State()


async def test_a_snapshot_of_streams_that_were_made_anew_counts_as_absent(bus: Bus) -> None:
    last = await streams_with_two_messages(bus)
    await memory.remember(bus, State(sequences=last, cause="of streams that are gone"))
    for stream in last:
        await bus.js.delete_stream(stream)
    await bus.create()
    assert await bus.last_sequence(JobRequested, "default.first") == 0

    assert await memory.recall(bus) == State()


@pytest.mark.parametrize("body", [b"no snapshot", b""])
async def test_a_snapshot_that_cannot_be_read_counts_as_absent(bus: Bus, body: bytes) -> None:
    await bus.keep(memory.KEY, body)

    assert await memory.recall(bus) == State()
