"""The stored snapshot: a restart takes it where it fits the streams, and reads them from their
beginning where not.
"""

from __future__ import annotations

import pytest

from services.launcher import snapshot
from services.launcher.snapshot import Snapshot
from services.launcher.view import BusState
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.messages import TrainingResumed
from tests.launcher.builders import JOB, UID, decided

KEPT = BusState(finished={f"default.{JOB}.{UID}": 1.0})


async def streams_with_two_messages(bus: Bus) -> dict[str, int]:
    """Publish two orders and two facts; return each stream's last sequence."""
    orders = [await bus.publish(decided(generation, "c0 p1")) for generation in (1, 2)]
    resumed = [TrainingResumed(job=JOB, uid=UID, generation=n, step=1, samples=1) for n in (1, 2)]
    facts = [await bus.publish(message) for message in resumed]
    return {subjects.ORDERS: orders[-1], subjects.FACTS: facts[-1]}


@pytest.mark.parametrize("behind", [0, 1])
async def test_a_snapshot_within_its_streams_is_loaded(bus: Bus, behind: int) -> None:
    last = await streams_with_two_messages(bus)
    kept = Snapshot(
        after={stream: sequence - behind for stream, sequence in last.items()}, told=KEPT
    )
    await snapshot.store_snapshot(bus, kept)

    assert await snapshot.load_snapshot(bus) == kept


@pytest.mark.parametrize("ahead", [subjects.ORDERS, subjects.FACTS])
async def test_a_snapshot_ahead_of_a_stream_counts_as_absent(bus: Bus, ahead: str) -> None:
    last = await streams_with_two_messages(bus)
    await snapshot.store_snapshot(bus, Snapshot(after=last | {ahead: last[ahead] + 1}, told=KEPT))

    assert await snapshot.load_snapshot(bus) == Snapshot()


@pytest.mark.parametrize("body", [b"no snapshot", b""])
async def test_an_unreadable_snapshot_counts_as_absent(bus: Bus, body: bytes) -> None:
    await bus.write_state(snapshot.KEY, body)

    assert await snapshot.load_snapshot(bus) == Snapshot()
