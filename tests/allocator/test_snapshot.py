"""Tests of the stored state: a restart loads it if it fits the streams.

Otherwise it reads the log from the beginning.
"""

from __future__ import annotations

import zlib

import msgspec
import pytest

from services.allocator import snapshot
from services.allocator.state.state import CONSUMED, State, apply
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.messages import (
    ChangeRequested,
    JobAccepted,
    JobChanged,
    JobRequested,
    QuotaBound,
    QuotaChanged,
    Span,
)
from tests.allocator.builders import node, request


async def streams_with_two_messages(bus: Bus) -> dict[str, int]:
    """Publish two orders and two facts; return each stream's last sequence."""
    asked = [await bus.publish(request(name)) for name in ("first", "second")]
    seen = [await bus.publish(node(name, cpu=1)) for name in ("n1", "n2")]
    return {subjects.ORDERS: asked[-1], subjects.FACTS: seen[-1]}


@pytest.mark.parametrize("behind", [0, 1])
async def test_a_snapshot_within_its_streams_is_loaded(bus: Bus, behind: int) -> None:
    last = await streams_with_two_messages(bus)
    kept = State(
        sequences={stream: sequence - behind for stream, sequence in last.items()}, cause="kept"
    )
    await snapshot.store_snapshot(bus, kept)

    assert await snapshot.load_snapshot(bus) == kept


@pytest.mark.parametrize("ahead", [subjects.ORDERS, subjects.FACTS])
async def test_a_snapshot_ahead_of_a_stream_counts_as_absent(bus: Bus, ahead: str) -> None:
    last = await streams_with_two_messages(bus)
    await snapshot.store_snapshot(
        bus, State(sequences=last | {ahead: last[ahead] + 1}, cause="of streams that are gone")
    )

    assert await snapshot.load_snapshot(bus) == State()


async def test_a_snapshot_of_recreated_streams_counts_as_absent(bus: Bus) -> None:
    last = await streams_with_two_messages(bus)
    await snapshot.store_snapshot(bus, State(sequences=last, cause="of streams that are gone"))
    for stream in last:
        await bus.js.delete_stream(stream)
    await bus.create()
    assert await bus.last_sequence(JobRequested, "default.first") == 0

    assert await snapshot.load_snapshot(bus) == State()


@pytest.mark.parametrize("body", [b"no snapshot", b""])
async def test_an_unreadable_snapshot_counts_as_absent(bus: Bus, body: bytes) -> None:
    await bus.write_state(snapshot.KEY, body)

    assert await snapshot.load_snapshot(bus) == State()


async def test_messages_skipped_by_an_older_leader_are_read_again(bus: Bus) -> None:
    """A snapshot of 0.2.0 is ahead of messages that it did not know.

    These are a quota, a change with its answer, and a request.
    """
    uid = await bus.publish(request("net"))
    accepted = JobAccepted(job="net", uid=uid, request=request("net"), accepted_s=1.0)
    await bus.publish(accepted)
    quota = QuotaChanged(
        namespace="default",
        seen="1",
        bounds=(QuotaBound(quota="q", resource="cpu", hard=8.0, used=2.0),),
    )
    await bus.publish(quota)
    first = await bus.publish(ChangeRequested(job="net", priority=3, request_id="a"))
    workers = Span(start=1, min=1, max=4)
    await bus.publish(
        JobChanged(job="net", uid=uid, answers=first, priority=3, ps=workers, workers=workers)
    )
    second = ChangeRequested(job="net", priority=4, request_id="b")
    unanswered = await bus.publish(second)
    last = {stream: await bus.last_stored(stream) for stream in (subjects.ORDERS, subjects.FACTS)}
    before = apply(State(), accepted, subjects.ORDERS, 2, 1.0)
    old = msgspec.json.encode(msgspec.structs.replace(before, sequences=last))
    await bus.write_state(snapshot.KEY, zlib.compress(old))

    state = await snapshot.load_snapshot_for_leader(bus)

    assert state.sequences == last
    assert state.quotas == {"default": quota}
    assert state.jobs["default.net"].request.priority == 3
    assert state.changes == {unanswered: second}


async def test_a_snapshot_has_the_message_kinds_of_its_writer(bus: Bus) -> None:
    """So a later version can tell which messages were skipped."""
    await snapshot.store_snapshot(bus, State())

    entry = await (await bus.bucket(subjects.STATE)).get(snapshot.KEY)
    stored = msgspec.json.decode(zlib.decompress(entry.value or b""), type=State)
    assert stored.known == tuple(map(subjects.tag_of, CONSUMED))
