"""Tests of single requests over real HTTP: what is sent, counted, refused and delayed.

Requests are counted and limited, and a failure is followed by a longer wait.
"""

from __future__ import annotations

import asyncio
import math
import random
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from shared.kube import client
from shared.kube.client import (
    LONGEST_HOLD_S,
    Api,
    ApiError,
    RateLimiter,
    Requests,
    add_request,
    add_wait,
    backoff_s,
    connect_api,
    enable_keepalive,
    most_in_a_second,
    request_measures,
    requests_since,
    retry_after_s,
    whole_lines,
)
from shared.runtime.config import KubeSettings
from shared.runtime.http_server import format_metrics
from tests.shared.kube.api_server import ApiServer, api_server, refusal, serving
from tests.shared.metric_lint import problems


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with api_server() as made:
        yield made


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[Api]:
    made = await connect_api(
        KubeSettings(kube_url=server.url, kube_report_s=0.05), "weir-test", random.Random(1).random
    )
    yield made
    await made.close()


async def test_a_request_has_a_user_agent_and_is_counted(server: ApiServer, api: Api) -> None:
    assert (await api.call("GET", "/api/v1/nodes"))["items"][0]["metadata"]["name"] == "node-0"
    with pytest.raises(ApiError, match="NotFound"):
        await api.call("GET", "/api/v1/namespaces/default/pods/none")
    await api.list_page("/api/v1/nodes", {"limit": "1"})
    assert set(server.agents) == {"weir-test"}
    assert api.requests.counts == {"get 200": 1, "get 404": 1, "list 200": 1}


async def test_a_watch_releases_its_slot_when_it_has_started(server: ApiServer, api: Api) -> None:
    query = {"watch": "true", "resourceVersion": str(server.version)}
    watching = asyncio.ensure_future(anext(api.watch_lines("/api/v1/nodes", query, 60)))
    async with asyncio.timeout(60):
        while api.requests.counts != {"watch 200": 1}:  # although no event has arrived
            await asyncio.sleep(0.005)
    server.node("a")
    assert b'"a"' in await watching


async def test_a_silent_watch_uses_tcp_keepalive(
    server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def look(connection: socket.socket) -> None:
        enable_keepalive(connection)
        asked.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE))

    monkeypatch.setattr(client, "enable_keepalive", look)
    await anext(api.watch_lines("/api/v1/nodes", {"watch": "true", "resourceVersion": "0"}, 60))
    assert asked == [15]


KUBECONFIG = """
current-context: here
contexts: [{name: here, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "%s"}}]
users: [{name: u, user: {token: secret}}]
"""


class Doorkeeper(ApiServer):
    """A server that accepts only requests with the token."""

    async def list(self, request: web.Request) -> web.StreamResponse:
        known = request.headers.get("Authorization") == "Bearer secret"
        return await super().list(request) if known else refusal(401, "Unauthorized")


@pytest.mark.parametrize("user", ["", "somebody:secret@"])
async def test_a_kubeconfig_gives_the_server_and_the_user(tmp_path: Path, user: str) -> None:
    async with serving(Doorkeeper()) as server:
        file = tmp_path / "kubeconfig"
        file.write_text(KUBECONFIG % server.url.replace("://", f"://{user}"))
        api = await connect_api(
            KubeSettings(kubeconfig=str(file)), "weir-test", random.Random(1).random
        )
        await api.list_page("/api/v1/nodes", {})
        assert api.requests.counts == {"list 200": 1}
        await api.close()


async def test_unanswered_requests_are_counted() -> None:
    api = await connect_api(
        KubeSettings(kube_url="http://127.0.0.1:9"), "weir-test", random.Random(1).random
    )
    with pytest.raises(client.CONNECTION_ERRORS):
        await api.call("GET", "/api/v1/nodes")
    assert api.requests.counts == {"get 0": 1}
    await api.close()


class Mute(ApiServer):
    """A server that accepts every watch, and never starts to answer."""

    async def watch(self, request: web.Request, kind: str) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()


async def test_a_watch_that_does_not_start_times_out_early() -> None:
    async with serving(Mute()) as server:
        api = await connect_api(
            KubeSettings(kube_url=server.url, kube_timeout_s=0.1),
            "weir-test",
            random.Random(1).random,
        )
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await anext(api.watch_lines("/api/v1/nodes", {"watch": "true"}, 300))
        assert api.requests.counts == {"watch 0": 1}
        await api.close()


class Busy(ApiServer):
    """A server that refuses the first request with a `Retry-After`."""

    arrived: list[float]

    async def list(self, request: web.Request) -> web.StreamResponse:
        self.arrived.append(asyncio.get_running_loop().time())
        if len(self.arrived) == 1:
            return refusal(429, "TooManyRequests", **{"Retry-After": "1"})
        return await super().list(request)


async def test_a_retry_after_delays_all_requests_of_the_client() -> None:
    busy = Busy()
    busy.arrived = []
    async with serving(busy) as server:
        api = await connect_api(
            KubeSettings(kube_url=server.url), "weir-test", random.Random(1).random
        )
        with pytest.raises(ApiError) as refused:
            await api.list_page("/api/v1/nodes", {})
        assert refused.value.status == 429
        await asyncio.gather(*(api.list_page(f"/api/v1/{kind}", {}) for kind in ("nodes", "pods")))
        await api.close()
    assert busy.arrived[1] - busy.arrived[0] >= 1.0 and len(busy.arrived) == 3


async def test_request_counts_are_logged_at_intervals(
    api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    reporting = asyncio.create_task(api.log_requests())
    await asyncio.sleep(0.02)
    await api.list_page("/api/v1/nodes", {})
    out = ""
    async with asyncio.timeout(60):
        while "KubernetesRequests" not in out:
            await asyncio.sleep(0.05)
            out += capsys.readouterr().out
    await asyncio.sleep(0.2)
    reporting.cancel()
    out += capsys.readouterr().out
    said = [line for line in out.splitlines() if "KubernetesRequests" in line]
    assert len(said) == 1 and "list 200" in said[0]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
async def test_lines_are_joined_from_chunks(size: int) -> None:
    text = b'{"a":1}\n\n{"b":2}\n{"cut'

    async def chunks() -> AsyncIterator[bytes]:
        for begin in range(0, len(text), size):
            yield text[begin : begin + size]

    assert [line async for line in whole_lines(chunks())] == [b'{"a":1}', b'{"b":2}']


async def test_a_line_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LONGEST_LINE", 100)

    async def chunks() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 30

    with pytest.raises(ValueError, match="100 bytes"):
        _ = [line async for line in whole_lines(chunks())]


def test_requests_are_counted_by_verb_and_status() -> None:
    requests = Requests()
    for verb, status in (("list", 200), ("watch", 410), ("list", 200), ("create", 0)):
        requests = add_request(requests, verb, status)
    assert (
        requests.counts == {"list 200": 2, "watch 410": 1, "create 0": 1} and requests.total() == 4
    )


def test_request_counts_are_differences_since_the_last_call() -> None:
    before = add_wait(add_request(Requests(), "list", 200), 0.5)
    after = add_wait(add_request(add_request(before, "get", 404), "get", 404), 0.25)
    assert requests_since(before, after) == Requests(counts={"get 404": 2}, waited_s=0.25)
    assert requests_since(after, after) == Requests()


def test_request_metrics_have_verb_and_status() -> None:
    requests = add_wait(
        add_request(add_request(add_request(Requests(), "list", 200), "list", 200), "watch", 0), 1.5
    )
    asked, waiting = request_measures(requests)

    assert asked.series == {("list", "200"): 2, ("watch", "0"): 1}
    assert waiting.series == {(): 1.5}
    assert problems(format_metrics([asked, waiting])) == []


COUNTS, CHANCES = st.integers(1, 10_000), st.floats(0, 1, exclude_max=True)


@given(COUNTS, CHANCES)
def test_a_backoff_is_between_half_and_all_of_its_exponential_value(
    count: int, chance: float
) -> None:
    whole = min(15.0, 0.5 * 2 ** min(count - 1, 40))
    assert whole / 2 <= backoff_s(count, 0.5, 15.0, chance) <= whole


def test_jitter_spreads_clients_that_failed_together() -> None:
    chance = random.Random(1)
    assert len({backoff_s(3, 0.5, 15.0, chance.random()) for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("status", "said", "seconds"),
    [
        (429, "7", 7),
        (503, "1", 1),
        (429, None, 0),
        (429, "soon", 0),
        (429, "-1", 0),
        (409, "7", 0),
        (429, "9" * 9, 300),
    ],
)
def test_retry_after_is_read_from_an_answer(status: int, said: str | None, seconds: float) -> None:
    assert retry_after_s(status, said) == seconds <= LONGEST_HOLD_S


# ------------------------------------------------------------ the rate limiter


class Arrivals:
    """Requests through a rate limiter. Each takes a random time to the server and back."""

    def __init__(self, rate: float, burst: int, seed: int = 1) -> None:
        self.chance = random.Random(seed)
        self.gate, self.at = RateLimiter(rate, burst, self.chance.random), list[float]()

    async def one(self) -> None:
        async with self.gate.request_slot():
            await asyncio.sleep(self.chance.random() * 0.02)
            self.at.append(asyncio.get_running_loop().time())
            await asyncio.sleep(self.chance.random() * 0.02)

    async def many(self, count: int) -> None:
        await asyncio.gather(*(self.one() for _ in range(count)))

    def most_in(self, seconds: float) -> int:
        return max(sum(begin <= at < begin + seconds for at in self.at) for begin in self.at)


@pytest.mark.parametrize(("rate", "burst"), [(100.0, 10), (100.0, 100), (50.0, 20), (200.0, 7)])
async def test_the_rate_limit_holds_at_the_server_for_any_latency(rate: float, burst: int) -> None:
    arrivals = Arrivals(rate, burst)
    await arrivals.many(120)
    assert arrivals.most_in(1.0) <= most_in_a_second(rate, burst) == burst * math.ceil(rate / burst)
    assert arrivals.most_in(burst / rate - 0.001) <= burst


async def test_a_burst_is_not_delayed() -> None:
    async with asyncio.timeout(60):
        await Arrivals(0.001, 10).many(10)  # a slot becomes free after 10,000 s


async def test_requests_pause_for_retry_after_and_resume_spread_out() -> None:
    apart_s = [await apart_behind_silence_s(seed) for seed in range(3)]
    assert max(apart_s) > 0.05, (
        "a machine that stands still brings them together now and then, and not each time"
    )


async def apart_behind_silence_s(seed: int) -> float:
    arrivals = Arrivals(50.0, 10, seed)
    until_s = asyncio.get_running_loop().time() + 0.3
    arrivals.gate.pause(0.3)
    arrivals.gate.pause(0.1)  # a shorter pause does not end a longer one
    await arrivals.many(10)
    assert min(arrivals.at) >= until_s
    return max(arrivals.at) - min(arrivals.at)


async def test_a_cancelled_request_releases_its_slot() -> None:
    arrivals = Arrivals(100.0, 1)
    arrivals.gate.pause(60.0)
    waiting = asyncio.create_task(arrivals.one())
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    arrivals.gate.open_s = 0.0
    await asyncio.wait_for(arrivals.one(), 60)
