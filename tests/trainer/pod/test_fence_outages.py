"""Tests of the fence while the bus stalls, dies, elects a leader or loses an answer.

Every call returns once the ledger has answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from services.trainer.pod import fence
from services.trainer.pod.fence import Entry, Fence
from shared.auth.permissions import bucket_subject as entry_subject
from shared.auth.permissions import stream_of
from shared.bus import bus as wire
from shared.bus.bus import Bus
from shared.bus.publisher import Stale
from shared.bus.subjects import LEDGER
from shared.runtime.process import free_port
from tests.bench.chaos.gate import Gate, gate
from tests.conftest import WITHIN_S, NatsServer, connected
from tests.shared.bus.three_servers import three_servers
from tests.trainer.pod.lagging_copy import LaggingCopy

KEY = "default.digits"
ANSWER_S = 0.5
"""Timeout of a request in s. Every outage lasts until at least one request has timed out."""
Call = Callable[[Fence], Awaitable[Entry]]
CALLS: dict[str, Call] = {
    "look": lambda mine: mine.refresh(),
    "claim": lambda mine: mine.claim(2),
    "commit": lambda mine: mine.commit("/c/20", 20, 640, keep=2),
}
AFTER = {"look": (1, ("/c/10",)), "claim": (2, ("/c/10",)), "commit": (1, ("/c/20", "/c/10"))}
"""Generation and paths of the entry after each call."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "ANSWER_S", ANSWER_S)
    monkeypatch.setattr(wire, "PING_S", ANSWER_S)


@asynccontextmanager
async def on(url: str) -> AsyncIterator[Bus]:
    """Yield another connection to a server that has the streams."""
    made = await wire.connect(url, "test")
    try:
        yield made
    finally:
        await made.client.close()


async def holder(bus: Bus, generation: int = 1) -> Fence:
    mine = await fence.open_fence(bus, KEY, 7)
    await mine.claim(generation)
    return mine


async def begun(bus: Bus) -> Fence:
    """Return the fence of a generation that has claimed it and committed one checkpoint."""
    mine = await holder(bus)
    await mine.commit("/c/10", 10, 320, keep=2)
    return mine


async def waits(log: list[EventDict], call: asyncio.Future[Entry]) -> None:
    """Wait until the call has logged that it waits for the ledger; check the log entry."""
    async with asyncio.timeout(WITHIN_S):
        while not any(entry["event"].startswith("Ledger") for entry in log):
            assert not call.done(), f"it did not wait: {call!r}"
            await asyncio.sleep(0.02)
    told = next(entry for entry in log if entry["event"].startswith("Ledger"))
    assert told["key"] == KEY and "nothing is lost" in told["remedy"]


async def revision(bus: Bus) -> int:
    return int((await (await bus.bucket(LEDGER)).get(KEY)).revision or 0)


async def result(call: asyncio.Future[Entry]) -> Entry:
    async with asyncio.timeout(WITHIN_S):
        return await call


# ------------------------------------------------------------ one server


@pytest.mark.parametrize("name", CALLS)
async def test_a_frozen_server_delays_calls_and_fails_none(
    nats_server: NatsServer, name: str
) -> None:
    async with on_streams(nats_server) as bus:
        mine = await begun(bus)
        with capture_logs() as log:
            with nats_server.hung():
                call = asyncio.ensure_future(CALLS[name](mine))
                await waits(log, call)
            entry = await result(call)

        assert (entry.generation, entry.paths) == AFTER[name]
        assert entry == await (await fence.open_fence(bus, KEY, 7)).refresh()


@pytest.mark.parametrize("name", CALLS)
async def test_a_restarted_server_delays_calls_and_fails_none(
    nats_server: NatsServer, name: str
) -> None:
    async with on_streams(nats_server) as bus:
        mine = await begun(bus)
        with capture_logs() as log:
            await nats_server.kill()
            call = asyncio.ensure_future(CALLS[name](mine))
            await waits(log, call)
            await nats_server.start()
            entry = await result(call)

        assert (entry.generation, entry.paths) == AFTER[name]
        assert entry == await (await fence.open_fence(bus, KEY, 7)).refresh()


@asynccontextmanager
async def on_streams(server: NatsServer) -> AsyncIterator[Bus]:
    made = await connected(server.url, "test")
    try:
        yield made
    finally:
        await made.client.close()


async def test_the_wait_of_a_write_is_measured(nats_server: NatsServer) -> None:
    async with on_streams(nats_server) as bus:
        mine = await begun(bus)
        assert mine.waited_s < ANSWER_S
        with capture_logs() as log:
            with nats_server.hung():
                call = asyncio.ensure_future(mine.commit("/c/20", 20, 640, keep=2))
                await waits(log, call)
            await result(call)

        assert mine.waited_s >= ANSWER_S


async def test_a_commit_and_a_claim_of_one_pod_are_ordered(
    nats_server: NatsServer,
) -> None:
    async with on_streams(nats_server) as bus:
        mine = await begun(bus)
        with capture_logs() as log:
            with nats_server.hung():
                commit = asyncio.ensure_future(mine.commit("/c/20", 20, 640, keep=2, final=True))
                await waits(log, commit)
                claim = asyncio.ensure_future(mine.claim(2))
            await result(commit)
            entry = await result(claim)

        assert (entry.generation, entry.paths, entry.past.failures) == (2, ("/c/20", "/c/10"), 0)


# ------------------------------------------------------------ lost answers


@asynccontextmanager
async def behind_a_gate(bus: Bus, nats_url: str) -> AsyncIterator[tuple[Gate, Bus]]:
    """Yield a gate and a connection through it, whose answers the gate can drop.

    `bus` is not behind the gate and sees what the server has.
    """
    port = free_port()
    async with (
        gate(port, int(nats_url.rsplit(":", 1)[1])) as door,
        on(f"nats://127.0.0.1:{port}") as mine,
    ):
        yield door, mine


async def dropped(
    door: Gate, bus: Bus, call: Callable[[], Awaitable[Entry]]
) -> asyncio.Future[Entry]:
    """Start a write and drop its answer. Return once the server has stored it."""
    before = await revision(bus)
    door.mute_at = f"HPUB $KV.{LEDGER}.{KEY}".encode()
    made = asyncio.ensure_future(call())
    async with asyncio.timeout(WITHIN_S):
        while await revision(bus) == before:
            await asyncio.sleep(0.01)
    return made


def let_answer(door: Gate) -> None:
    door.shut()
    door.mute = False
    door.open()


async def test_a_commit_with_a_lost_answer_is_stored_once(bus: Bus, nats_url: str) -> None:
    async with behind_a_gate(bus, nats_url) as (door, mine):
        held = await begun(mine)
        call = await dropped(door, bus, lambda: held.commit("/c/20", 20, 640, keep=2))
        stored = await revision(bus)
        let_answer(door)

        assert (await result(call)).paths == ("/c/20", "/c/10")
        assert await revision(bus) == stored
        assert (await held.commit("/c/30", 30, 960, keep=2)).paths == ("/c/30", "/c/20")


async def test_a_claim_with_a_lost_answer_counts_one_failure(bus: Bus, nats_url: str) -> None:
    async with behind_a_gate(bus, nats_url) as (door, mine):
        await begun(mine)
        second = await fence.open_fence(mine, KEY, 7)
        call = await dropped(door, bus, lambda: second.claim(2))
        let_answer(door)

        entry = await result(call)
        assert (entry.generation, entry.past.failures) == (2, 1)


async def test_a_pod_fenced_during_its_wait_is_stale(bus: Bus, nats_url: str) -> None:
    async with behind_a_gate(bus, nats_url) as (door, mine):
        held = await begun(mine)
        with capture_logs() as log:
            door.shut()
            call = asyncio.ensure_future(held.commit("/c/20", 20, 640, keep=2))
            await waits(log, call)
            await holder(bus, generation=2)
            door.open()

            with pytest.raises(Stale):
                await result(call)
        assert (await (await fence.open_fence(bus, KEY, 7)).refresh()).paths == ("/c/10",)


async def test_a_pod_fenced_after_its_commit_is_stale_and_the_commit_is_kept(
    bus: Bus, nats_url: str
) -> None:
    async with behind_a_gate(bus, nats_url) as (door, mine):
        held = await begun(mine)
        call = await dropped(door, bus, lambda: held.commit("/c/20", 20, 640, keep=2))
        await holder(bus, generation=2)
        let_answer(door)

        with pytest.raises(Stale):
            await result(call)
        assert (await (await fence.open_fence(bus, KEY, 7)).refresh()).paths == ("/c/20", "/c/10")


# ------------------------------------------------------------ lagging replicas


LAGS_S = 1.5
"""Time in s that a busy replica may lag."""


async def fall_behind(copy: LaggingCopy) -> None:
    await copy.fall_behind(stream_of(LEDGER), entry_subject(LEDGER, KEY))


@pytest.mark.parametrize("had_begun", [True, False], ids=["an-older-entry", "no-entry"])
async def test_a_claim_waits_for_a_lagging_replica(
    bus: Bus, nats_url: str, had_begun: bool
) -> None:
    async with on(nats_url) as mine:
        copy = LaggingCopy(mine)
        if had_begun:
            await holder(bus)
        await fall_behind(copy)
        await (await holder(bus)).commit("/c/10", 10, 320, keep=2)

        with capture_logs() as log:
            call = asyncio.ensure_future((await fence.open_fence(mine, KEY, 7)).claim(2))
            await asyncio.sleep(LAGS_S)
            assert not call.done()
            copy.catch_up()
            entry = await result(call)

    assert (entry.generation, entry.paths) == (2, ("/c/10",))
    assert [each["why"] for each in log if each["event"] == "LedgerLags"] == [
        f"{KEY}: another holder has written since"
    ]


async def test_the_wait_of_a_claim_is_bounded(
    bus: Bus, nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "LAG_S", 0.5)
    async with on(nats_url) as mine:
        await fall_behind(LaggingCopy(mine))
        await begun(bus)

        with pytest.raises(Stale, match="another holder has written since"):
            await result(asyncio.ensure_future(holder(mine, generation=2)))


async def test_a_refresh_from_a_lagging_replica_loses_nothing(bus: Bus, nats_url: str) -> None:
    async with on(nats_url) as mine:
        copy = LaggingCopy(mine)
        held = await holder(mine)
        await fall_behind(copy)
        await held.commit("/c/10", 10, 320, keep=2)

        assert (await held.refresh()).paths == ("/c/10",)
        assert (await held.commit("/c/20", 20, 640, keep=2)).paths == ("/c/20", "/c/10")


async def test_a_commit_with_a_lost_answer_waits_for_a_lagging_replica(
    bus: Bus, nats_url: str
) -> None:
    async with behind_a_gate(bus, nats_url) as (door, mine):
        copy = LaggingCopy(mine)
        held = await holder(mine)
        await fall_behind(copy)
        await held.commit("/c/10", 10, 320, keep=2)
        call = await dropped(door, bus, lambda: held.commit("/c/20", 20, 640, keep=2))
        let_answer(door)
        await asyncio.sleep(2 * LAGS_S)
        assert not call.done()
        copy.catch_up()

        assert (await result(call)).paths == ("/c/20", "/c/10")


# ------------------------------------------------------------ three servers


@pytest.mark.parametrize("fault", ["killed", "frozen"])
async def test_the_ledger_leader_of_three_servers_may_fail_during_commits(
    tmp_path: Path, fault: str
) -> None:
    async with three_servers(tmp_path) as servers, servers.connection() as bus:
        mine = await begun(bus)
        leader = await servers.leader(bus, stream_of(LEDGER))
        commits = asyncio.ensure_future(_commits(mine, 30))
        if fault == "killed":
            await leader.kill()
            await asyncio.wait_for(commits, WITHIN_S)
        else:
            with leader.hung():
                await asyncio.wait_for(commits, WITHIN_S)

        entry = await (await fence.open_fence(bus, KEY, 7)).claim(2)
        assert (entry.generation, entry.paths) == (2, ("/c/39", "/c/38"))


async def _commits(mine: Fence, count: int) -> None:
    for step in range(10, 10 + count):
        await mine.commit(f"/c/{step}", step, step * 32, keep=2)
        await asyncio.sleep(0.05)
