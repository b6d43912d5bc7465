"""Tests of the fence on a real bucket: only the generation that holds it commits checkpoints."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest

from services.trainer.checkpoint_policy import SaveHistory
from services.trainer.pod import fence
from services.trainer.pod.fence import Entry, Fence
from shared.bus import bus as wire
from shared.bus import dead_letters, subjects
from shared.bus.bus import Bus
from shared.bus.publisher import Stale
from shared.bus.subjects import LEDGER
from shared.messages import AllocationDecided, DeadLetter
from tests.conftest import NatsServer, connected
from tests.shared.restored_server import copied_store
from tests.trainer.builders import request
from tests.trainer.pod.lagging_copy import LaggingCopy

KEY = "default.digits"


async def holder(bus: Bus, generation: int, uid: int = 7) -> Fence:
    """Return the fence of a generation that has claimed it."""
    mine = await fence.open_fence(bus, KEY, uid)
    await mine.claim(generation)
    return mine


async def test_a_new_job_has_no_checkpoint(bus: Bus) -> None:
    entry = await (await fence.open_fence(bus, KEY, 7)).claim(1)

    assert (entry.generation, entry.paths, entry.step) == (1, (), 0)


async def test_the_holder_of_the_fence_commits_checkpoints_newest_first(bus: Bus) -> None:
    mine = await holder(bus, 1)

    for step in (10, 20, 30):
        entry = await mine.commit(f"/c/{step}", step, step * 32, keep=2)

    assert entry.paths == ("/c/30", "/c/20") and (entry.step, entry.samples) == (30, 960)


async def test_a_checkpoint_committed_twice_is_kept_once(bus: Bus) -> None:
    mine = await holder(bus, 1)

    await mine.commit("/c/10", 10, 320, keep=2)

    assert (await mine.commit("/c/10", 10, 320, keep=2)).paths == ("/c/10",)


async def test_a_digest_is_kept_as_long_as_its_checkpoint(bus: Bus) -> None:
    mine = await holder(bus, 1)

    for step in (10, 20, 30):
        entry = await mine.commit(f"/c/{step}", step, step * 32, keep=2, digest=f"sha256-{step}")

    assert entry.digests == {"/c/30": "sha256-30", "/c/20": "sha256-20"}


async def test_a_generation_after_an_undrained_one_counts_a_failure(
    bus: Bus,
) -> None:
    first = await holder(bus, 1)
    assert first.entry.past.failures == 0
    await first.commit("/c/10", 10, 320, keep=2, final=True)
    second = await holder(bus, 2)
    assert second.entry.past.failures == 0
    await second.commit("/c/20", 20, 640, keep=2, past=SaveHistory(ran_s=60.0, cost_s=0.5))

    assert (await holder(bus, 3)).entry.past == SaveHistory(ran_s=60.0, cost_s=0.5, failures=1)


async def test_a_generation_that_continues_after_a_drain_can_count_a_failure(
    bus: Bus,
) -> None:
    mine = await holder(bus, 1)
    await mine.commit("/c/10", 10, 320, keep=2, final=True)
    await mine.claim(1, back=True)

    assert (await holder(bus, 2)).entry.past.failures == 1


async def test_the_next_generation_finds_the_checkpoints_of_the_previous_one(bus: Bus) -> None:
    await (await holder(bus, 1)).commit("/c/10", 10, 320, keep=2)

    assert (await holder(bus, 2)).entry.paths == ("/c/10",)


async def test_a_fenced_generation_cannot_commit(bus: Bus) -> None:
    old = await holder(bus, 1)
    new = await holder(bus, 2)

    with pytest.raises(Stale):
        await old.commit("/c/gen-1", 10, 320, keep=2)
    assert (await new.refresh()).paths == ()


async def test_a_fenced_generation_cannot_commit_after_a_refresh(
    bus: Bus,
) -> None:
    old = await holder(bus, 1)
    new = await holder(bus, 2)
    await old.refresh()

    with pytest.raises(Stale):
        await old.commit("/c/gen-1", 10, 320, keep=2)
    assert (await new.refresh()).paths == ()


async def test_a_fenced_generation_cannot_claim_again(bus: Bus) -> None:
    await holder(bus, 2)

    with pytest.raises(Stale, match="generation 2 has taken over from 1"):
        await holder(bus, 1)


async def test_an_abandoned_generation_loses_the_fence_and_cannot_commit(bus: Bus) -> None:
    old, new = await holder(bus, 1), await holder(bus, 2)

    await old.claim(1, back=True)

    await old.commit("/c/10", 10, 320, keep=2)
    with pytest.raises(Stale):
        await new.commit("/c/other", 11, 352, keep=2)


async def test_a_claim_repeated_after_a_restart_of_the_pod_is_granted(bus: Bus) -> None:
    await (await holder(bus, 1)).commit("/c/10", 10, 320, keep=2)

    again = await holder(bus, 1)

    assert again.entry.paths == ("/c/10",)


async def test_an_earlier_job_with_the_same_name_leaves_nothing_to_restore(bus: Bus) -> None:
    await (await holder(bus, 9, uid=7)).commit("/c/10", 10, 320, keep=2)

    entry = (await holder(bus, 1, uid=8)).entry

    assert (entry.uid, entry.generation, entry.paths) == (8, 1, ())


async def test_a_deleted_ledger_entry_can_be_claimed(bus: Bus) -> None:
    await (await holder(bus, 1)).commit("/c/10", 10, 320, keep=2)
    await (await bus.bucket(LEDGER)).delete(KEY)

    assert (await holder(bus, 2, uid=8)).entry.paths == ()


# ------------------------------------------------------------ two jobs of one name


async def decide(bus: Bus, uid: int) -> None:
    """Publish a decision about this job, so that it is the newest about the name."""
    about = {"job": "digits", "uid": uid, "generation": 1, "revision": 1, "request": request()}
    await bus.publish(AllocationDecided(**about, tasks=(), batch=1, reason="-"))


async def entry(bus: Bus) -> Entry:
    return msgspec.json.decode((await (await bus.bucket(LEDGER)).get(KEY)).value or b"", type=Entry)


async def test_a_pod_of_a_finished_job_cannot_overwrite_the_next_jobs_entry(
    bus: Bus,
) -> None:
    await decide(bus, 7)
    old = await holder(bus, 9, uid=7)
    await decide(bus, 8)
    new = await holder(bus, 1, uid=8)
    await new.commit("/c/new", 10, 320, keep=2)

    with pytest.raises(Stale, match="job 8 has this name now, not job 7"):
        await old.claim(10)
    with pytest.raises(Stale):
        await old.commit("/c/old", 90, 2880, keep=2)
    assert ((await entry(bus)).uid, (await entry(bus)).paths) == (8, ("/c/new",))


@pytest.mark.parametrize("cleared", [False, True], ids=["not-written-yet", "cleared-away"])
async def test_a_pod_of_a_finished_job_cannot_write_the_first_entry(
    bus: Bus, cleared: bool
) -> None:
    await decide(bus, 8)
    if cleared:
        await holder(bus, 1, uid=8)
        await (await bus.bucket(LEDGER)).delete(KEY)

    with pytest.raises(Stale, match="job 8 has this name now, not job 7"):
        await holder(bus, 9, uid=7)


async def test_a_pod_of_a_finished_job_is_stale_after_a_foreign_write(
    bus: Bus,
) -> None:
    await decide(bus, 7)
    old = await holder(bus, 9, uid=7)
    await decide(bus, 8)
    await holder(bus, 1, uid=8)
    await put(bus, b"a stranger was here")

    with pytest.raises(Stale, match="job 8 has this name now, not job 7"):
        await old.commit("/c/old", 90, 2880, keep=2)


async def test_the_last_entry_of_an_earlier_job_is_replaced(bus: Bus) -> None:
    """The earlier job still writes after the decision about the next job."""
    await decide(bus, 7)
    old = await holder(bus, 9, uid=7)
    await decide(bus, 8)
    await old.commit("/c/old", 90, 2880, keep=2)

    assert (await holder(bus, 1, uid=8)).entry.paths == ()
    assert (await entry(bus)).uid == 8


async def test_a_decision_for_an_earlier_job_is_read_again(bus: Bus, nats_url: str) -> None:
    """The copy that answers may not have the decision about this job yet."""
    mine = await wire.connect(nats_url, "test")
    copy = LaggingCopy(mine)
    await decide(bus, 6)
    await copy.fall_behind(subjects.ORDERS, subjects.pattern(AllocationDecided, KEY))
    await decide(bus, 7)

    claiming = asyncio.ensure_future(holder(mine, 1, uid=7))
    await asyncio.sleep(1.0)
    assert not claiming.done()
    copy.catch_up()
    assert (await claiming).entry.generation == 1
    await mine.close()


async def test_a_decision_for_a_later_job_is_not_read_again(bus: Bus) -> None:
    await decide(bus, 8)
    began_s = time.monotonic()

    with pytest.raises(Stale, match="job 8 has this name now, not job 7"):
        await holder(bus, 1, uid=7)
    assert time.monotonic() - began_s < fence.LAG_S / 2


async def test_after_a_lost_bus_a_job_with_a_smaller_uid_takes_the_entry(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "LAG_S", 0.5)
    old = await holder(bus, 9, uid=900)
    await decide(bus, 3)
    new = await holder(bus, 1, uid=3)
    await new.commit("/c/new", 10, 320, keep=2)

    with pytest.raises(Stale, match="job 3 has this name now, not job 900"):
        await old.claim(10)
    assert ((await entry(bus)).uid, (await entry(bus)).paths) == (3, ("/c/new",))


async def test_one_of_two_simultaneous_claims_is_stale(bus: Bus) -> None:
    first, second = await fence.open_fence(bus, KEY, 7), await fence.open_fence(bus, KEY, 7)
    await first.refresh()
    await second.refresh()
    await first.claim(1)

    with pytest.raises(Stale):
        await second._write_entry(second.entry)


# ------------------------------------------------------------ entries that no generation wrote

ODD = [
    b"",
    b"{",
    b"\xff",
    b"[]",
    b"null",
    b'{"uid": "7"}',
    b'{"uid": 7, "generation": 1, "step": -1}',
]


async def put(bus: Bus, body: bytes) -> None:
    await (await bus.bucket(LEDGER)).put(KEY, body)


async def letters(bus: Bus) -> list[DeadLetter]:
    """Return all dead letters, the oldest first."""
    count = (await bus.js.stream_info(subjects.DEAD)).state.messages
    raw = [await bus.js.get_msg(subjects.DEAD, n + 1) for n in range(count)]
    return [msgspec.json.decode(each.data or b"", type=DeadLetter) for each in raw]


@pytest.mark.parametrize("body", ODD)
async def test_an_unreadable_entry_counts_as_none_and_is_dead_lettered(
    bus: Bus, body: bytes
) -> None:
    await put(bus, body)

    mine = await holder(bus, 1)

    assert (mine.entry.generation, mine.entry.paths) == (1, ())
    assert (await mine.commit("/c/10", 10, 320, keep=2)).paths == ("/c/10",)
    (letter,) = await letters(bus)
    assert (letter.subject, letter.sequence, letter.body) == (
        f"$KV.{LEDGER}.{KEY}",
        1,
        dead_letters.body_text(body),
    )
    assert letter.error


async def test_a_running_chief_replaces_an_unreadable_entry(bus: Bus) -> None:
    mine = await holder(bus, 3)
    await mine.commit("/c/10", 10, 320, keep=2)

    await put(bus, b"a stranger was here")
    assert (await mine.refresh()).paths == ("/c/10",)
    await put(bus, b"and here")

    entry = await mine.commit("/c/20", 20, 640, keep=2)
    assert entry == (await (await fence.open_fence(bus, KEY, 7)).refresh()) and entry.paths == (
        "/c/20",
        "/c/10",
    )


async def test_a_stale_pod_stays_stale(bus: Bus) -> None:
    old = await holder(bus, 1)
    await put(bus, b"a stranger was here")
    await holder(bus, 2)

    with pytest.raises(Stale):
        await old.commit("/c/10", 10, 320, keep=2)


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
    """Its claim is lost, and the earlier generation may have committed again before it looks."""
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
    ):  # else another entry has our revision: the server cannot tell that we were first
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
    stored = await (await bus.bucket(LEDGER)).get(KEY)
    assert stored.value is not None
    assert msgspec.json.decode(stored.value, type=Entry).uid == 3
