"""Tests of the watch on a real bus: stored messages, new ones, and those of an outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from services.allocator import snapshot
from services.console.page.watch import Watch
from shared.auth.permissions import ALLOCATOR, MONITOR, PAGE
from shared.bus import bus as wire
from shared.bus.bus import Bus
from shared.runtime.process import cancel_tasks
from tests.allocator.builders import accepted, request, resumed
from tests.conftest import NatsServer, connected
from tests.console.board.builders import decided, holding, progress
from tests.console.board.test_board import JOB, running
from tests.shared import secured_server
from tests.shared.bus.test_log_reader import lost_history
from tests.shared.restored_server import copied_store


@pytest.fixture
async def watch(nats_url: str, bus: Bus) -> AsyncIterator[Watch]:
    own = await connected(nats_url, "page")
    made = Watch(own)
    following = asyncio.ensure_future(made.run())
    yield made
    await cancel_tasks(following)
    await own.close()


async def until(watch: Watch, met: Callable[[], bool], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not met():
            with_news = watch.changed
            await asyncio.wait_for(with_news.wait(), within_s)


async def say(bus: Bus, *messages: object) -> None:
    for message in messages:
        await bus.publish(message)  # type: ignore[arg-type]


async def test_stored_messages_are_read_and_new_ones_followed(bus: Bus, watch: Watch) -> None:
    await say(bus, holding(), request(), accepted(), decided(), holding("n2"), resumed(1))
    await watch.wait_until_caught_up()
    await say(bus, progress(100))
    await until(watch, lambda: JOB in watch.board.jobs and len(watch.board.jobs[JOB].reports) == 1)
    await until(
        watch, lambda: watch.board.jobs[JOB].view.phase == "Running"
    )  # depends on a message of the other stream

    assert watch.board.nodes.keys() == {"n1", "n2"}
    assert watch.cut_s is None


async def test_a_node_whose_facts_were_purged_is_shown(bus: Bus) -> None:
    await lost_history(bus, await bus.publish(holding()))
    watch = Watch(bus)
    following = asyncio.ensure_future(watch.run())
    await watch.wait_until_caught_up()

    assert watch.board.nodes.keys() == watch.board.state.nodes.keys() == {"n1"}
    assert watch.board.totals.nodes == 1
    await cancel_tasks(following)


@pytest.mark.usefixtures("brief_heartbeat")
async def test_a_server_outage_is_shown_and_nothing_is_lost(
    nats_server: NatsServer, bus: Bus, watch: Watch
) -> None:
    await say(bus, holding(), request(), accepted(), decided(), resumed(1), progress(100))
    await until(watch, lambda: JOB in watch.board.jobs and len(watch.board.jobs[JOB].reports) == 1)
    await nats_server.kill()
    await until(watch, lambda: watch.cut_s is not None)
    assert len(watch.board.jobs[JOB].reports) == 1, "it stays as it was"

    await nats_server.start()
    await say(bus, progress(200))
    await until(watch, lambda: watch.cut_s is None and len(watch.board.jobs[JOB].reports) == 2)


async def test_recreated_streams_are_read_from_their_beginning(bus: Bus, watch: Watch) -> None:
    await say(bus, holding(), request(), accepted(), decided())
    await until(watch, lambda: JOB in watch.board.jobs)
    for stream in ("weir-orders", "weir-facts"):
        await bus.js.delete_stream(stream)
    await bus.create()
    await say(bus, holding("n9"))

    await until(watch, lambda: watch.board.nodes.keys() == {"n9"})
    assert watch.board.jobs == {}


@pytest.mark.usefixtures("brief_heartbeat")
@pytest.mark.parametrize("lost", [request(), progress(200)], ids=["order", "fact"])
async def test_a_restored_stream_is_read_from_its_beginning(
    nats_server: NatsServer, bus: Bus, watch: Watch, tmp_path: Path, lost: object
) -> None:
    """The restored copy lacks a message, in the stream of orders or in that of facts."""
    await say(bus, holding(), request(), accepted(), decided(), resumed(1), progress(100))
    before = {"weir-orders": 3, "weir-facts": 3}
    await until(watch, lambda: watch.board.sequences == before)
    copy = await copied_store(nats_server, tmp_path / "copy")
    await say(bus, lost)
    await until(watch, lambda: watch.board.sequences != before)

    await copy.put_back()

    await until(watch, lambda: watch.board.sequences == before and JOB in watch.board.jobs)
    assert len(watch.board.jobs[JOB].reports) == 1


async def test_the_allocators_reason_comes_from_the_jobs_bucket(bus: Bus, watch: Watch) -> None:
    await say(bus, request(), accepted())
    await until(watch, lambda: JOB in watch.board.jobs)
    bucket = await bus.bucket("weir-jobs")
    await bucket.put(
        JOB,
        b'{"job":"mnist","namespace":"default","uid":1,"phase":"Pending","why":"no node has 3'
        b' cpu"}',
    )

    await until(watch, lambda: watch.board.jobs[JOB].view.why == "no node has 3 cpu")


async def test_the_pages_credentials_permit_everything_that_it_reads(tmp_path: Path) -> None:
    log = running()
    async with secured_server.guarded(tmp_path) as server:
        allocator = await wire.connect(server.url, ALLOCATOR, secured_server.credentials(ALLOCATOR))
        monitor = await wire.connect(server.url, MONITOR, secured_server.credentials(MONITOR))
        await snapshot.store_snapshot(allocator, log.board.state)
        await monitor.publish(holding("n2"))
        await allocator.publish(decided())
        own = await wire.connect(server.url, PAGE, secured_server.credentials(PAGE))
        await own.verify()
        watch = Watch(own)
        following = asyncio.ensure_future(watch.run())
        async with asyncio.timeout(60):
            await watch.wait_until_caught_up()
        assert watch.board.nodes.keys() == {"n2"} and [
            d.revision for d in watch.board.decisions
        ] == [1]
        assert (await snapshot.load_snapshot(own)).jobs.keys() == set(), (
            "it is ahead of these streams, and counts as absent"
        )
        await cancel_tasks(following)
        for each in (own, monitor, allocator):
            await each.close()
