"""Listing and watching over real HTTP, and everything that makes a watcher list again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from services.launcher.api import connect
from services.launcher.facts import Kind
from services.launcher.settings import Settings
from services.launcher.watch import Body, Watcher
from tests.launcher.api_server import ApiServer, api_server


class Seen:
    def __init__(self, server: ApiServer) -> None:
        self.server, self.lists, self.changes = server, list[list[str]](), list[tuple[str, bool]]()

    def on_list(self, kind: Kind, bodies: list[Body]) -> None:
        self.lists.append([body["metadata"]["name"] for body in bodies])

    def on_change(self, kind: Kind, body: Body, gone: bool) -> None:
        self.changes.append((body["metadata"]["name"], gone))

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not true():
                await asyncio.sleep(0.005)

    async def watching(self, lists: int = 1) -> None:
        await self.until(lambda: len(self.lists) >= lists and self.server.watches)


@pytest.fixture
async def seen() -> AsyncIterator[Seen]:
    async with api_server() as server:
        settings = Settings(kube_url=server.url, kube_retry_s=0.02)
        api, found = await connect(settings), Seen(server)
        task = asyncio.create_task(Watcher(api, "nodes", settings, found.on_list, found.on_change).run())
        await found.watching()
        yield found
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()


async def test_all_there_is_and_then_each_change(seen: Seen) -> None:
    seen.server.node("a")
    seen.server.put("nodes", {"metadata": {"name": "a"}}, "DELETED")
    await seen.until(lambda: len(seen.changes) == 2)
    assert (seen.lists, seen.changes) == ([["node-0"]], [("a", False), ("a", True)])


async def test_an_expired_version_is_listed_again(seen: Seen) -> None:
    seen.server.expire()
    await seen.watching(lists=2)
    assert seen.lists == [["node-0"], ["node-0"]]


async def test_a_broken_stream_and_a_server_that_is_away_are_lived_through(seen: Seen) -> None:
    seen.server.trouble = [(503, "ServiceUnavailable")] * 2
    seen.server.hang_up()
    await seen.watching(lists=2)


async def test_a_bookmark_is_no_change(seen: Seen) -> None:
    for queue in seen.server.watches:
        queue.put_nowait({"type": "BOOKMARK", "object": {"metadata": {"name": "-", "resourceVersion": "200"}}})
    seen.server.node("a")
    await seen.until(lambda: seen.changes)
    assert seen.changes == [("a", False)]


async def test_a_long_list_comes_in_pages(seen: Seen) -> None:
    for name in "abcd":
        seen.server.node(name)
    seen.server.expire()
    await seen.until(lambda: len(seen.lists) == 2)
    assert seen.lists[1] == ["a", "b", "c", "d", "node-0"]
