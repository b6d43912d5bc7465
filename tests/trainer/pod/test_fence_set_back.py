"""The fence on a ledger that lost its last entries."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.bus.bus import Bus
from shared.bus.publisher import Stale
from tests.conftest import NatsServer, connected
from tests.shared.restored_server import copied_store
from tests.trainer.pod.test_fence import KEY, holder


async def test_the_holder_continues_on_a_restored_ledger(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    mine = await holder(bus, 1)
    await mine.commit("/c/10", 10, 320, keep=2)
    copy = await copied_store(nats_server, tmp_path / "copy")
    for step in (20, 30):
        await mine.commit(f"/c/{step}", step, step * 32, keep=2)

    await copy.put_back()
    entry = await mine.commit("/c/40", 40, 1280, keep=2)

    assert entry.paths == ("/c/40", "/c/30")
    assert (await (await holder(bus, 2)).refresh()).paths == ("/c/40", "/c/30")


async def test_a_holder_without_commits_continues_on_a_restored_ledger(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    copy = await copied_store(nats_server, tmp_path / "copy")
    mine = await holder(bus, 1)
    await mine.commit("/c/10", 10, 320, keep=2)

    await copy.put_back()

    assert (await mine.commit("/c/20", 20, 640, keep=2)).paths == ("/c/20", "/c/10")


@pytest.mark.parametrize("older_commits", [0, 1, 3])
async def test_the_later_generation_keeps_a_restored_ledger(
    nats_server: NatsServer, bus: Bus, tmp_path: Path, older_commits: int
) -> None:
    """Its claim is lost, and the earlier one may have committed again before it looks."""
    older = await holder(bus, 1)
    await older.commit("/c/10", 10, 320, keep=2)
    copy = await copied_store(nats_server, tmp_path / "copy")
    other = await connected(nats_server.url, "other")
    later = await holder(other, 2)
    await later.commit("/c/20", 20, 640, keep=2)

    await copy.put_back()
    for step in range(11, 11 + older_commits):
        await older.commit(f"/c/{step}", step, step * 32, keep=2)

    if (
        older_commits < 3
    ):  # else another has written where ours was: the server cannot tell that we were first
        assert (await later.commit("/c/30", 30, 960, keep=2)).generation == 2
        with pytest.raises(Stale):
            await older.commit("/c/12", 12, 384, keep=2)
    else:
        with pytest.raises(Stale):
            await later.commit("/c/30", 30, 960, keep=2)
        assert (await holder(other, 2)).entry.generation == 2, "a new claim takes over"
    await other.close()


async def test_another_jobs_entry_is_not_overwritten(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    await holder(bus, 5, uid=3)
    copy = await copied_store(nats_server, tmp_path / "copy")
    mine = await holder(bus, 1)
    await mine.commit("/c/10", 10, 320, keep=2)

    await copy.put_back()

    with pytest.raises(Stale):
        await mine.commit("/c/20", 20, 640, keep=2)
    assert KEY == "default.digits"
