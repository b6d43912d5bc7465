"""Tests of snapshots of any size on a real server: each is stored completely or not at all.

In the second case, the one before stays.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from nats.js.errors import NotFoundError

from shared.auth.permissions import stream_of
from shared.bus.bus import Bus
from shared.bus.consumer import StreamSetBack
from shared.bus.snapshots import (
    MOST_PARTS,
    PART_BYTES,
    NoSnapshot,
    SnapshotAhead,
    SnapshotStore,
    encode_state,
    load_snapshot,
    load_state,
    store_snapshot,
)
from shared.bus.subjects import ORDERS, STATE
from tests.conftest import NatsServer
from tests.shared.restored_server import copied_store

LARGE = 2 * PART_BYTES + 1


class Deposed(Exception):
    """Raised by `must_lead` in these tests."""


def figures(snapshots: SnapshotStore) -> dict[str, object]:
    return {measure.family.name: measure.series[()] for measure in snapshots.measures()}


@pytest.mark.parametrize("sizes", [(5, LARGE), (LARGE, LARGE + 1), (LARGE, 5)])
async def test_the_last_snapshot_is_loaded_for_any_sizes_of_it_and_its_predecessor(
    bus: Bus, sizes: tuple[int, ...]
) -> None:
    bodies = [os.urandom(size) for size in sizes]
    for body in bodies:
        await store_snapshot(bus, "allocator", body)

    assert await load_snapshot(bus, "allocator") == bodies[-1]


async def test_an_incomplete_snapshot_falls_back_to_the_one_before(
    bus: Bus,
) -> None:
    before = os.urandom(LARGE)
    await store_snapshot(bus, "allocator", before)
    left = 2

    def lead_for_two_parts() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Deposed

    bus.must_lead = lead_for_two_parts
    with pytest.raises(Deposed):
        await store_snapshot(bus, "allocator", os.urandom(LARGE))

    assert await load_snapshot(bus, "allocator") == before


async def test_incomplete_parts_count_as_absent(bus: Bus) -> None:
    await store_snapshot(bus, "allocator", os.urandom(LARGE))
    await bus.write_state("allocator.a.1", b"of another")

    with pytest.raises(NotFoundError):
        await load_snapshot(bus, "allocator")


async def test_a_snapshot_that_fits_restored_streams_is_not_replaced(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    await store_snapshot(bus, "allocator", b"first")
    copy = await copied_store(nats_server, tmp_path / "copy")
    await bus.last_stored(stream_of(STATE))  # waits until the bus answers
    await store_snapshot(bus, "allocator", b"second")
    await copy.put_back()
    await bus.last_stored(stream_of(STATE))

    with pytest.raises(StreamSetBack, match="the entry allocator of weir-state is older"):
        await SnapshotStore(bus, "allocator").store(b"third")
    assert await load_snapshot(bus, "allocator") == b"first"


async def test_failing_snapshots_are_measured_until_one_succeeds(bus: Bus) -> None:
    now = 100.0
    snapshots = SnapshotStore(bus, "allocator", lambda: now)
    await snapshots.store(bytes(MOST_PARTS * PART_BYTES + 1))
    now = 107.0
    assert figures(snapshots) == {"weir_snapshot_bytes": 0, "weir_snapshot_failing_seconds": 7}

    await snapshots.store(b"small")

    assert figures(snapshots) == {"weir_snapshot_bytes": 5, "weir_snapshot_failing_seconds": 0}


class Counted(msgspec.Struct, frozen=True):
    """A state of one number, and the last sequence of each stream that it has read."""

    number: int
    after: dict[str, int]


async def load_counted(bus: Bus) -> Counted:
    return await load_state(bus, "allocator", Counted, lambda state: state.after)


async def test_a_state_round_trips(bus: Bus) -> None:
    state = Counted(3, {ORDERS: 0})
    await SnapshotStore(bus, "allocator").store(encode_state(state))

    assert await load_counted(bus) == state


async def test_an_absent_or_unreadable_state_is_no_snapshot(bus: Bus) -> None:
    with pytest.raises(NoSnapshot):
        await load_counted(bus)
    await store_snapshot(bus, "allocator", b"of another version")

    with pytest.raises(NoSnapshot):
        await load_counted(bus)


async def test_a_state_ahead_of_a_stream_is_no_snapshot(bus: Bus) -> None:
    await store_snapshot(bus, "allocator", encode_state(Counted(3, {ORDERS: 9})))

    with pytest.raises(SnapshotAhead) as raised:
        await load_counted(bus)
    assert (raised.value.stream, raised.value.sequence, raised.value.last) == (ORDERS, 9, 0)
