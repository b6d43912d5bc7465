"""A snapshot of any size, on a real server: stored whole, or the one before stays."""

from __future__ import annotations

import os

import pytest
from nats.js.errors import NotFoundError

from shared.bus.bus import Bus
from shared.bus.snapshots import (
    MOST_PARTS,
    PART_BYTES,
    SnapshotStore,
    load_snapshot,
    store_snapshot,
)

LARGE = 2 * PART_BYTES + 1


class Deposed(Exception):
    """What `must_lead` raises here."""


def figures(snapshots: SnapshotStore) -> dict[str, object]:
    return {measure.family.name: measure.series[()] for measure in snapshots.measures()}


@pytest.mark.parametrize("sizes", [(5, LARGE), (LARGE, LARGE + 1), (LARGE, 5)])
async def test_the_last_snapshot_is_loaded_whatever_its_size_and_that_of_the_one_before(
    bus: Bus, sizes: tuple[int, ...]
) -> None:
    bodies = [os.urandom(size) for size in sizes]
    for body in bodies:
        await store_snapshot(bus, "allocator", body)

    assert await load_snapshot(bus, "allocator") == bodies[-1]


async def test_where_the_last_part_could_not_be_stored_the_snapshot_before_is_loaded(
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


async def test_parts_that_are_not_whole_count_as_absent(bus: Bus) -> None:
    await store_snapshot(bus, "allocator", os.urandom(LARGE))
    await bus.write_state("allocator.a.1", b"of another")

    with pytest.raises(NotFoundError):
        await load_snapshot(bus, "allocator")


async def test_a_snapshot_that_cannot_be_stored_is_measured_until_one_is(bus: Bus) -> None:
    now = 100.0
    snapshots = SnapshotStore(bus, "allocator", lambda: now)
    await snapshots.store(bytes(MOST_PARTS * PART_BYTES + 1))
    now = 107.0
    assert figures(snapshots) == {"weir_snapshot_bytes": 0, "weir_snapshot_failing_seconds": 7}

    await snapshots.store(b"small")

    assert figures(snapshots) == {"weir_snapshot_bytes": 5, "weir_snapshot_failing_seconds": 0}
