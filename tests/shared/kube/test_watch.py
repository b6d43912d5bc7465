"""Tests of list and watch over real HTTP: without faults, with each fault, with random faults."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web

from shared.kube.client import Changed, Deleted, Event, Listed, ListWatch, connect_api
from shared.kube.objects import MalformedObject
from shared.messages import ServiceTroubled
from shared.runtime.config import KubeSettings
from shared.runtime.log import Incidents
from shared.runtime.process import cancel_tasks
from tests.shared.kube.api_server import ApiServer, Body, api_server, refusal, serving
from tests.shared.kube.flaky_api_server import AMID, LATE_S, PATIENCE_S, READING, RudeServer

Version = tuple[str, int]  # an object's name, and its revision


def version(raw: bytes) -> Version:
    meta = msgspec.json.decode(raw)["metadata"]
    if "labels" in meta:
        raise MalformedObject("labels")
    return meta["name"], int(meta["resourceVersion"])


class Picture:
    """The events of a reader, and the objects that exist according to them."""

    def __init__(self, server: ApiServer) -> None:
        self.server, self.events, self.there = server, list[Event[Version]](), dict[str, int]()

    async def follow(self, reader: ListWatch[Version]) -> None:
        async for event in reader.follow():
            self.on_event(event)

    def on_event(self, event: Event[Version]) -> None:
        self.events.append(event)
        if isinstance(event, Listed):
            self.there = dict(event.facts)
        elif isinstance(event, Deleted):
            del self.there[event.fact[0]]
        else:
            self.there[event.fact[0]] = event.fact[1]

    def told(self) -> list[Any]:
        return [
            sorted(n for n, _ in e.facts) if isinstance(e, Listed) else (type(e), e.fact[0])
            for e in self.events
        ]

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not true():
                await asyncio.sleep(0.002)

    async def watching(self, lists: int = 1) -> None:
        def is_so() -> object:
            return sum(isinstance(e, Listed) for e in self.events) >= lists and self.server.watches

        await self.until(is_so)


@asynccontextmanager
async def pictured(server: ApiServer, picture: Picture, **settings: Any) -> AsyncIterator[Picture]:
    quick = {
        "kube_retry_s": 0.005,
        "kube_retry_max_s": 0.04,
        "kube_rate": 1e4,
        "kube_burst": 100,
        **settings,
    }
    api = await connect_api(
        KubeSettings(kube_url=server.url, **quick), "test", random.Random(1).random
    )
    task = asyncio.create_task(picture.follow(ListWatch(api, "/api/v1/nodes", version)))
    try:
        yield picture
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()


@pytest.fixture
async def seen() -> AsyncIterator[Picture]:
    async with api_server() as server, pictured(server, Picture(server)) as picture:
        await picture.watching()
        yield picture


# ------------------------------------------------------------ one case at a time


async def test_a_watch_yields_the_list_and_then_each_change(seen: Picture) -> None:
    seen.server.node("a")
    seen.server.remove("nodes", "a")
    await seen.until(lambda: len(seen.events) == 3)
    assert seen.told() == [["node-0"], (Changed, "a"), (Deleted, "a")]


async def test_a_long_list_is_read_in_pages(seen: Picture) -> None:
    for name in "abcd":
        seen.server.node(name)
    seen.server.expire()
    await seen.watching(lists=2)
    assert seen.told()[-1] == ["a", "b", "c", "d", "node-0"]
    assert seen.server.lists["nodes"] == 1 + 3


@pytest.mark.parametrize("how", ["expire", "forget"])
async def test_an_expired_resource_version_causes_a_new_list(seen: Picture, how: str) -> None:
    seen.server.put("nodes", {"metadata": {"name": "a"}}, silent=True)
    calls = len(seen.server.calls)
    if how == "expire":
        seen.server.expire()
    else:
        seen.server.forget()
        seen.server.hang_up()
        calls += 1  # the watch that gets 410
    seen.server.node("b")  # a reader that continued the watch would get this event too
    await seen.until(lambda: len(seen.events) > 1 or len(seen.server.calls) >= calls + 2)
    assert seen.server.lists["nodes"] > 1, "the next request was no list"
    await seen.watching(lists=2)
    assert seen.told() == [["node-0"], ["a", "b", "node-0"]]


class Forgotten(ApiServer):
    """Answers an expired watch with the status 410, not with an event inside a stream."""

    async def watch(self, request: web.Request, kind: str) -> web.StreamResponse:
        if int(request.query["resourceVersion"]) < self.floor:
            return refusal(410, "Expired")
        return await super().watch(request, kind)


async def test_a_watch_that_is_refused_as_expired_is_listed_again() -> None:
    async with serving(Forgotten()) as server, pictured(server, Picture(server)) as picture:
        server.node("a")
        await picture.watching()
        server.put("nodes", {"metadata": {"name": "b"}}, silent=True)
        calls = len(server.calls)
        server.forget()
        server.hang_up()
        await picture.until(lambda: len(server.calls) >= calls + 3)  # a watch, a list, a watch
        assert server.lists["nodes"] == 2, "the next request was no list"
        await picture.watching(lists=2)
        assert picture.there.keys() == {"a", "b"}


async def test_an_interrupted_watch_continues_without_a_new_list(
    seen: Picture,
) -> None:
    seen.server.put("nodes", {"metadata": {"name": "a"}}, silent=True)
    seen.server.say(b'{"type":"ADDED","object":{"metadata":{"name":"half')
    seen.server.hang_up()
    await seen.until(lambda: len(seen.events) == 2)
    assert seen.told() == [["node-0"], (Changed, "a")] and seen.server.lists["nodes"] == 1


async def test_a_bookmark_moves_the_resource_version_without_a_change(seen: Picture) -> None:
    seen.server.put("nodes", {"metadata": {"name": "a"}}, silent=True)
    seen.server.say(
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(seen.server.version)}}}
    )
    seen.server.hang_up()
    await seen.until(lambda: len(seen.server.calls) >= 3)
    seen.server.node("b")
    await seen.until(lambda: len(seen.events) == 2)
    assert seen.told() == [["node-0"], (Changed, "b")]


async def test_a_failed_page_is_requested_again() -> None:
    class Weary(ApiServer):
        async def list(self, request: web.Request) -> web.StreamResponse:
            if "continue" in request.query and len(self.calls) < 5:
                return refusal(429 + len(self.calls) % 2 * 74, "Trouble")
            return await super().list(request)

    async with serving(Weary()) as server:
        for name in "abcd":
            server.node(name)
        async with pictured(server, Picture(server)) as picture:
            await picture.until(lambda: picture.there)
            assert picture.told() == [["a", "b", "c", "d"]] and server.lists["nodes"] == 2


async def test_a_server_outage_is_logged_once_and_at_its_end() -> None:
    said: list[str] = []
    async with api_server() as server:
        server.trouble = [(503, "ServiceUnavailable")] * 4
        api = await connect_api(
            KubeSettings(kube_url=server.url, kube_retry_s=0.005), "test", random.Random(1).random
        )
        api.on_away, api.on_back = said.append, lambda: said.append("back")
        reader = ListWatch(api, "/api/v1/nodes", version)
        async with asyncio.timeout(30), aclosing(reader.follow()) as events:
            assert isinstance(await anext(events), Listed)
        await api.close()

    assert [word for word in said if word == "back"] == ["back"] == said[-1:]
    assert [word.partition(" times")[0] for word in said[:-1]] == [
        f"/api/v1/nodes could not be read {row}" for row in (3, 4)
    ]


async def test_a_server_outage_is_one_incident_with_a_start_and_an_end() -> None:
    told: asyncio.Queue[ServiceTroubled] = asyncio.Queue()
    async with api_server() as server:
        server.trouble = [(503, "ServiceUnavailable")] * 4
        api = await connect_api(
            KubeSettings(kube_url=server.url, kube_retry_s=0.005), "test", random.Random(1).random
        )
        troubles = Incidents("test")
        api.report_to(troubles)
        telling = asyncio.ensure_future(troubles.publish_all(told.put))
        async with (
            asyncio.timeout(60),
            aclosing(ListWatch(api, "/api/v1/nodes", version).follow()) as events,
        ):
            assert isinstance(await anext(events), Listed)
            begun, ended = await told.get(), await told.get()
        await cancel_tasks(telling)
        await api.close()

    assert (
        begun.what == ended.what == "kubernetes away"
        and begun.cause == ended.cause
        and told.empty()
    )
    assert (
        begun.seconds is None
        and ended.seconds is not None
        and "could not be read 3 times" in begun.cause
    )


async def test_a_list_whose_pages_expire_is_read_in_one_request() -> None:
    class Forgetful(ApiServer):
        def keep(self, version: int, items: list[Body]) -> str:
            return "gone already"

    async with serving(Forgetful()) as server:
        for name in "abcd":
            server.node(name)
        async with pictured(server, Picture(server)) as picture:
            await picture.watching()
            assert picture.told() == [["a", "b", "c", "d"]] and server.lists["nodes"] == 3


async def test_an_unreadable_object_is_left_out_without_a_new_list(seen: Picture) -> None:
    seen.server.put("nodes", {"metadata": {"name": "odd", "labels": 7}})
    seen.server.node("a")
    await seen.until(lambda: "a" in seen.there)
    assert seen.server.lists["nodes"] == 1
    seen.server.put("nodes", {"metadata": {"name": "a", "labels": 7}}, "DELETED")
    await seen.watching(lists=2)
    assert seen.told()[-1] == ["node-0"]


@pytest.mark.parametrize("line", [b"{\n", b"[]\n", b'{"type":"ERROR","object":{"code":"x"}}\n'])
async def test_an_unreadable_line_causes_a_new_list(seen: Picture, line: bytes) -> None:
    seen.server.put("nodes", {"metadata": {"name": "a"}}, silent=True)
    seen.server.say(line)
    await seen.watching(lists=2)
    assert seen.told() == [["node-0"], ["a", "node-0"]]


class Hasty(ApiServer):
    """Ends every watch as soon as it has started, normally or by cutting the connection."""

    def __init__(self, peace: bool) -> None:
        super().__init__()
        self.peace = peace
        self.watched_s: list[float] = []  # the time of each watch

    async def watch(self, request: web.Request, kind: str) -> web.StreamResponse:
        self.watched_s.append(time.monotonic())
        if not self.peace and request.transport:
            request.transport.abort()
        return web.Response()


@pytest.mark.parametrize("peace", [True, False])
async def test_watches_that_end_at_once_are_retried_with_a_pause(
    peace: bool,
) -> None:
    server = Hasty(peace)
    async with serving(server), pictured(server, Picture(server)) as picture:
        await picture.until(lambda: len(server.watched_s) > 16)
    # From the fourth on each wait is 20 to 40 ms. The client itself repeats a request once, at
    # once, when its connection breaks: so at least every second of these ten watches had such a
    # wait before it.
    assert server.watched_s[16] - server.watched_s[6] >= 0.1


# ------------------------------------------------------------ random faults


class Witness(Picture):
    """Compares every event with the history of the server."""

    def on_event(self, event: Event[Version]) -> None:
        if isinstance(event, Listed):
            assert dict(event.facts) == self.so_at(int(event.revision)), "a list that was never so"
            assert all(event_at >= self.there.get(name, 0) for name, event_at in event.facts), (
                "back in time"
            )
        else:
            self.is_next(event)
        super().on_event(event)

    def so_at(self, revision: int) -> dict[str, int]:
        so: dict[str, int] = {}
        for at, kind, change in self.server.history:
            if kind == "nodes" and at <= revision:
                name = change["object"]["metadata"]["name"]
                so.pop(name, None)
                so |= {} if change["type"] == "DELETED" else {name: at}
        return so

    def is_next(self, event: Changed[Version] | Deleted[Version]) -> None:
        """Check that the event is the first change after those received so far."""
        last = int(self.events[-1].revision)
        later = [c for at, kind, c in self.server.history if kind == "nodes" and at > last]
        meta = later[0]["object"]["metadata"]
        assert (later[0]["type"] == "DELETED") == isinstance(event, Deleted)
        assert event.fact == (meta["name"], int(meta["resourceVersion"]))


async def live(server: RudeServer, steps: int) -> None:
    """Create, change and delete nodes; sometimes the whole server has a fault."""
    chance = server.chance
    for _ in range(steps):
        name = chance.choice("abcdefgh")
        if chance.random() < 0.3 and name in server.names("nodes"):
            server.remove("nodes", name)
        else:
            server.node(name)
        trouble = chance.random()
        if trouble < 0.02:
            await server.restart(0.05)
        elif trouble < 0.04:
            server.expire()
        elif trouble < 0.06:
            server.forget()
        await asyncio.sleep(chance.random() * 0.01)


async def a_bad_day(seed: int) -> set[str]:
    """Follow a server with random faults. Return the faults that occurred."""
    patience = {"kube_timeout_s": PATIENCE_S, "kube_watch_s": 1}
    async with (
        serving(RudeServer(seed)) as server,
        pictured(server, Witness(server), **patience) as picture,
    ):
        await live(server, steps=150)
        server.behave()
        server.node("last")
        await picture.until(lambda: picture.there == picture.so_at(server.version))
        return server.met


@pytest.mark.parametrize("seed", range(4))
async def test_random_faults_cause_no_missed_and_no_invented_change(seed: int) -> None:
    met = set[str]()
    while not met >= {*READING, *AMID}:  # a slow machine gets fewer faults in one run
        met |= set[str]().union(
            *await asyncio.gather(*(a_bad_day(seed * 8 + day) for day in range(8)))
        )
    assert LATE_S > PATIENCE_S
