"""HTTP requests to a Kubernetes API server, with the official client's configuration and
credentials.

Bodies are plain dicts, pages and lines are bytes: there are no models, because an object is read
into a small fact at once. Every request passes the rate limiter and is counted. The user agent is
the program's name, for the server's audit log.

Rate limit. There are `burst` slots. A request takes one, and gives it back `burst / rate` seconds
after its answer begins. So two requests in one slot reach the server at least that far apart, and

    in any burst / rate seconds at most `burst` requests arrive,
    in any one second at most  burst * ceil(rate / burst)           (`most_in_a_second`)

That is less than a token bucket with the same figures allows (rate + burst), and needs no clock of
the server. Requests leave in the order in which they were made; none while the server wants a
pause (`Retry-After`).

Backoff after the n-th failure in a row, with a random number in [0, 1) ("equal jitter": Brooker,
Exponential Backoff And Jitter, 2015), so that clients that failed together do not return together:

    wait = min(longest, first * 2^(n - 1)) * (1 + random) / 2       (`backoff_s`)

List, then watch, for ever (`ListWatch`): how the monitor and the launcher follow objects. Promise.
`follow` yields all objects as `Listed`, then each change as `Changed` or `Deleted`, in the server's
order. It continues after the last complete line that was read, or begins with a new `Listed`.

    the watch ends or breaks; no connection; 429, 500, 502, 503            continue from the last revision or page
    410 Expired (a status, or an ERROR event in a stream)                  list again; between two pages: in one piece
    any other refusal, a line that is no event, many of these in a row     list again

A malformed object is logged and left out.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
import structlog
from kubernetes.aio import client, config
from msgspec.structs import replace

from shared.kube.objects import ListPage, MalformedObject, Status, Versioned, WatchLine
from shared.runtime.config import KubeSettings
from shared.runtime.log import Incidents
from shared.runtime.metrics import Family, Measure

log = structlog.get_logger()

Body = dict[str, Any]
Query = Mapping[str, str]
AUTH = ["BearerToken"]
JSON, MERGE = "application/json", "application/strategic-merge-patch+json"
VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
LONGEST_LINE = 1 << 25  # bytes; etcd keeps no object of 2 MiB
PROBES = {
    "TCP_KEEPIDLE": 15,  # s without traffic before the first probe
    "TCP_KEEPINTVL": 5,  # s between two probes
    "TCP_KEEPCNT": 3,  # unanswered probes before the connection is closed: 30 s of silence
}
CONNECTION_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)
READ_ERRORS = (*CONNECTION_ERRORS, ValueError, RecursionError, msgspec.DecodeError)
"""Errors of the connection and not of the server: no answer, or an unreadable one."""


class ApiError(Exception):
    """A refusal of the server: HTTP status, reason and message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


@dataclass(frozen=True)
class ApiRequest:
    """One request. `verb`: its name in Kubernetes."""

    verb: str
    method: str
    path: str
    query: Query
    body: Body | None = None
    content: str = JSON


async def connect_api(settings: KubeSettings, name: str, chance: Callable[[], float]) -> Api:
    """Connect by URL (and token file), else by kubeconfig, else by the default kubeconfig, else
    with the pod's service account.
    """
    chosen = client.Configuration()
    chosen.connection_pool_maxsize = (
        0  # no limit: each watch keeps one, and the rate limiter bounds the others
    )
    if settings.kube_url:
        chosen.host = settings.kube_url
        if settings.kube_token_file:
            chosen.api_key["BearerToken"] = (
                f"Bearer {Path(settings.kube_token_file).read_text().strip()}"
            )
    elif settings.kubeconfig or Path(config.KUBE_CONFIG_DEFAULT_LOCATION).expanduser().exists():
        await config.load_kube_config(
            config_file=settings.kubeconfig or None, client_configuration=chosen
        )
    else:
        config.load_incluster_config(client_configuration=chosen)
    if (
        chosen.api_key
    ):  # aiohttp refuses a URL with user and password beside a token; the token is enough
        parts = urlsplit(chosen.host)
        chosen.host = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    api = client.ApiClient(chosen)
    api.user_agent = name
    return Api(api, settings, chance)


class Api:
    def __init__(self, api: Any, settings: KubeSettings, chance: Callable[[], float]) -> None:
        self.api = api
        self.settings = settings
        self.chance = chance
        self.gate = RateLimiter(settings.kube_rate, settings.kube_burst, chance)
        self.requests = Requests()
        self.may_change: Callable[[], None] = lambda: None  # raises if this process may only read
        self.on_away: Callable[[str], None] = lambda cause: (
            None
        )  # called with the cause after each of repeated failures to read
        self.on_back: Callable[[], None] = lambda: None  # called after each answer but a refusal

    def report_to(self, troubles: Incidents) -> None:
        """Record an incident while nothing can be read; it ends with the next answer."""
        self.on_away = lambda cause: troubles.begin("kubernetes away", cause)
        self.on_back = lambda: troubles.end("kubernetes away")

    # ------------------------------------------------------------ requests

    async def call(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        query: Query | None = None,
        patch: bool = False,
    ) -> Body:
        """Send a request. Raises `ApiError` for a refusal, one of `READ_ERRORS` without a proper
        answer.
        """
        ask = ApiRequest(VERBS[method], method, path, query or {}, body, MERGE if patch else JSON)
        async with self._response(ask, self.settings.kube_timeout_s) as response:
            return msgspec.json.decode(await response.read(), type=Body)

    async def list_page(self, path: str, query: Query) -> bytes:
        """Return one page of a list. Raises as `call`."""
        async with self._response(
            ApiRequest("list", "GET", path, query), self.settings.kube_timeout_s
        ) as response:
            return await response.read()

    async def watch_lines(self, path: str, query: Query, seconds: int) -> AsyncGenerator[bytes]:
        """Yield the lines of a watch, until the server ends it or it has lasted too long."""
        longest_s = seconds + self.settings.kube_timeout_s
        async with self._response(ApiRequest("watch", "GET", path, query), longest_s) as response:
            if response.connection and response.connection.transport:
                enable_keepalive(response.connection.transport.get_extra_info("socket"))
            async for line in whole_lines(response.content.iter_any()):
                yield line

    @asynccontextmanager
    async def _response(
        self, ask: ApiRequest, longest_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Return the answer once it begins. Raises `ApiError` for a refusal."""
        begun_s = asyncio.get_running_loop().time()
        async with self.gate.request_slot():
            if ask.method != "GET":
                self.may_change()
            self.requests = add_wait(self.requests, asyncio.get_running_loop().time() - begun_s)
            async with asyncio.timeout(
                self.settings.kube_timeout_s
            ):  # a watch also has to begin within the timeout
                response = await self._send_counted(ask, longest_s)
        async with response:
            if response.status >= 400:
                raise self._refusal_error(response, await response.read())
            self.on_back()
            yield response

    async def _send_counted(self, ask: ApiRequest, longest_s: float) -> aiohttp.ClientResponse:
        status = NO_ANSWER
        try:
            response = await self._send(ask, longest_s)
            status = response.status
            return response
        finally:
            self.requests = add_request(self.requests, ask.verb, status)

    async def _send(self, ask: ApiRequest, longest_s: float) -> aiohttp.ClientResponse:
        headers = {"Accept": JSON, "Content-Type": ask.content}
        query = list(ask.query.items())
        parts = await self.api.param_serialize(
            ask.method,
            ask.path,
            query_params=query,
            header_params=headers,
            body=ask.body,
            auth_settings=AUTH,
        )
        limit = aiohttp.ClientTimeout(total=longest_s)
        response: aiohttp.ClientResponse = (
            await self.api.call_api(*parts, _request_timeout=limit)
        ).response
        return response

    def _refusal_error(self, response: aiohttp.ClientResponse, answer: bytes) -> ApiError:
        """Return the error of a refusal. If the server wants a pause, pause all requests."""
        headers = response.headers
        if seconds := retry_after_s(response.status, headers.get("Retry-After")):
            self.gate.pause(seconds)
            level = (
                headers.get("X-Kubernetes-PF-PriorityLevel-UID"),
                headers.get("X-Kubernetes-PF-FlowSchema-UID"),
            )
            log.warning(
                "HeldBack",
                status=response.status,
                retry_after_s=seconds,
                priority_level_and_flow=level,
            )
        return api_error(response.status, answer)

    # ------------------------------------------------------------ reporting, closing

    def backoff_s(self, troubles: int) -> float:
        """Return the backoff after a number of failures in a row."""
        rules = self.settings
        return backoff_s(troubles, rules.kube_retry_s, rules.kube_retry_max_s, self.chance())

    async def log_requests(self) -> None:
        """Log the requests since the last time, at intervals."""
        while True:
            before = self.requests
            await asyncio.sleep(self.settings.kube_report_s)
            new = requests_since(before, self.requests)
            if new.counts:
                log.info(
                    "KubernetesRequests", **msgspec.to_builtins(new), total=self.requests.total()
                )

    async def close(self) -> None:
        await self.api.close()


def api_error(status: int, answer: bytes) -> ApiError:
    """Return the error of a Status object, or of another body."""
    try:
        said = msgspec.json.decode(answer, type=Status)
    except (msgspec.DecodeError, RecursionError):
        said = Status(message=answer[:200].decode("utf-8", "replace"))
    return ApiError(status or said.code or 0, said.reason or "Unknown", said.message or "")


def enable_keepalive(connection: socket.socket | None) -> None:
    """Enable TCP keepalive, so that the connection breaks if the other side is gone."""
    if connection is None:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in PROBES.keys() & vars(socket).keys():  # some systems do not have all of them
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), PROBES[option])


async def whole_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield complete lines. Raises `ValueError` for a line that is longer than any object."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LONGEST_LINE:
            raise ValueError(f"a line of more than {LONGEST_LINE} bytes")
        for line in lines:
            if line:
                yield line


NO_ANSWER = 0
ASKED = Family(
    name="weir_kubernetes_requests_total",
    kind="counter",
    help="Requests to the Kubernetes API, by verb and HTTP status (0: there was no answer).",
    labels=("verb", "status"),
)
WAITED = Family(
    name="weir_kubernetes_throttled_seconds_total",
    kind="counter",
    help="Time that requests waited for the rate limit, or for a pause that the server requested.",
)


class Requests(msgspec.Struct, frozen=True):
    """The number of requests by verb and status ("list 200"; status 0: no answer), and the seconds
    that they waited for the rate limit.
    """

    counts: Mapping[str, int] = {}
    waited_s: float = 0.0

    def total(self) -> int:
        return sum(self.counts.values())


def add_request(requests: Requests, verb: str, status: int) -> Requests:
    key = f"{verb} {status}"
    return replace(requests, counts={**requests.counts, key: requests.counts.get(key, 0) + 1})


def add_wait(requests: Requests, seconds: float) -> Requests:
    return replace(requests, waited_s=requests.waited_s + seconds)


def requests_since(earlier: Requests, later: Requests) -> Requests:
    """Return the requests since `earlier`."""
    more = {key: count - earlier.counts.get(key, 0) for key, count in later.counts.items()}
    return Requests(
        counts={k: n for k, n in sorted(more.items()) if n},
        waited_s=later.waited_s - earlier.waited_s,
    )


def request_measures(requests: Requests) -> tuple[Measure, ...]:
    by_labels = {tuple(key.split(" ")): float(count) for key, count in requests.counts.items()}
    return Measure(ASKED, by_labels), Measure(WAITED, {(): requests.waited_s})


DOUBLINGS = 32  # after more failures the backoff does not grow
LONGEST_HOLD_S = 300.0  # the longest pause that a server may impose
TOO_MANY, SERVER_TROUBLE = 429, 500


def backoff_s(count: int, first_s: float, longest_s: float, chance: float) -> float:
    return min(longest_s, first_s * 2.0 ** min(count - 1, DOUBLINGS)) * (1 + chance) / 2


def most_in_a_second(rate: float, burst: int) -> int:
    return burst * math.ceil(rate / burst)


def retry_after_s(status: int, retry_after: str | None) -> float:
    """Return the pause that an answer asks for: `Retry-After` in whole seconds, with status 429 or
    an error of the server.
    """
    wants_pause = status == TOO_MANY or status >= SERVER_TROUBLE
    if not wants_pause or not retry_after or not retry_after.isdecimal():
        return 0.0
    return min(float(retry_after), LONGEST_HOLD_S)


class RateLimiter:
    def __init__(self, rate: float, burst: int, chance: Callable[[], float]) -> None:
        self.slots = asyncio.Semaphore(burst)
        self.rest_s = burst / rate
        self.chance = chance
        self.open_s = 0.0  # the time at which requests may leave again, by the loop's clock

    @asynccontextmanager
    async def request_slot(self) -> AsyncIterator[None]:
        """Hold a slot from the departure of a request to the beginning of its answer."""
        await self.slots.acquire()
        try:
            await self._until_open()
            yield
        finally:
            asyncio.get_running_loop().call_later(self.rest_s, self.slots.release)

    def pause(self, seconds: float) -> None:
        self.open_s = max(self.open_s, asyncio.get_running_loop().time() + seconds)

    async def _until_open(self) -> None:
        while (wait_s := self.open_s - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(wait_s + self.chance() * self.rest_s)


# ---------------------------------------------------------------- list and watch


Fact = TypeVar("Fact")
EXPIRED, FOR_NOW = 410, (429, 500, 502, 503)
AWAY = 3  # failures in a row after which the server counts as away
GOES_ON = 5  # failures in a row; after more, the objects are listed again
SHORT_S = 1.0  # a watch that ends sooner, without an event, is a failure


@dataclass(frozen=True)
class Listed(Generic[Fact]):
    facts: tuple[Fact, ...]
    revision: str


@dataclass(frozen=True)
class Changed(Generic[Fact]):
    fact: Fact
    revision: str


@dataclass(frozen=True)
class Deleted(Generic[Fact]):
    fact: Fact
    revision: str


Event = Listed[Fact] | Changed[Fact] | Deleted[Fact]


class WatchTooShort(OSError):
    """A watch ended immediately after its start."""


class ListWatch(Generic[Fact]):
    """Follows the objects at one path. `read` returns None for an object that is ignored, and
    raises `MalformedObject`.
    """

    def __init__(
        self,
        api: Api,
        path: str,
        read: Callable[[bytes], Fact | None],
        query: Mapping[str, str] | None = None,
    ) -> None:
        self.api = api
        self.path = path
        self.read = read
        self.query = query or {}
        self.revision: str | None = (
            None  # the revision up to which all was read; None: not yet listed
        )
        self.found: list[Fact] = []  # of a list, the objects of the pages that were read
        self.go_on = ""  # the token of the list's next page
        self.in_one_piece = False
        self.failures = 0  # in a row

    async def follow(self) -> AsyncIterator[Event[Fact]]:
        """List, then watch. After a failure wait, then continue or list again."""
        while True:
            try:
                if self.revision is None:
                    yield await self._list()
                async for event in self._watch():
                    yield event
            except (ApiError, *READ_ERRORS) as error:
                await self._recover(error)

    # ------------------------------------------------------------ listing

    async def _list(self) -> Listed[Fact]:
        """Read a list page by page, so that the objects of a large cluster are never all in
        memory.
        """
        while True:
            page = msgspec.json.decode(
                await self.api.list_page(self.path, self._page_query()), type=ListPage
            )
            self.found += [
                fact for item in page.items or () if (fact := self._readable(item)) is not None
            ]
            self.go_on = page.metadata.continue_ or ""
            if not self.go_on:
                self.revision = page.metadata.resource_version or ""  # the same on every page
                facts = tuple(self.found)
                self.found = []
                self.in_one_piece = False
                return Listed(facts, self.revision)

    def _page_query(self) -> dict[str, str]:
        limit = {} if self.in_one_piece else {"limit": str(self.api.settings.kube_page)}
        return {**self.query, **limit, **({"continue": self.go_on} if self.go_on else {})}

    # ------------------------------------------------------------ watching

    async def _watch(self) -> AsyncIterator[Event[Fact]]:
        """Yield changes until the server ends the watch. A line, or a long watch without a failure,
        resets the count of failures.
        """
        loop = asyncio.get_running_loop()
        begun_s, quiet = loop.time(), True
        seconds = max(1, round(self.api.settings.kube_watch_s * (1 + self.api.chance()) / 2))
        try:
            async with aclosing(
                self.api.watch_lines(self.path, self._watch_query(seconds), seconds)
            ) as lines:
                async for raw in lines:
                    event = self._parse_line(msgspec.json.decode(raw, type=WatchLine))
                    quiet, self.failures = False, 0
                    if event:
                        yield event
        finally:
            lasted_s = loop.time() - begun_s
            self.failures = 0 if lasted_s > self.api.settings.kube_retry_max_s else self.failures
        if quiet and lasted_s < SHORT_S:
            raise WatchTooShort("the watch ended at once")

    def _watch_query(self, seconds: int) -> dict[str, str]:
        begin = {"resourceVersion": self.revision or "", "timeoutSeconds": str(seconds)}
        return {**self.query, **begin, "watch": "true", "allowWatchBookmarks": "true"}

    def _parse_line(self, line: WatchLine) -> Event[Fact] | None:
        """Return the event of a line. A malformed deleted object needs a new list, to know what is
        left.
        """
        if line.type == "ERROR":
            raise api_error(0, bytes(line.object))
        fact = (
            None
            if line.type == "BOOKMARK"
            else self._readable(line.object, gone=line.type == "DELETED")
        )
        seen = (
            msgspec.json.decode(line.object, type=Versioned).metadata.resource_version
            or self.revision
            or ""
        )
        self.revision = seen
        if fact is None:
            return None
        return Deleted(fact, seen) if line.type == "DELETED" else Changed(fact, seen)

    def _readable(self, raw: msgspec.Raw, gone: bool = False) -> Fact | None:
        try:
            return self.read(raw)
        except MalformedObject as error:
            log.warning("StrangeObject", path=self.path, error=str(error), object=bytes(raw)[:300])
            if gone:
                raise
            return None

    # ------------------------------------------------------------ failures

    async def _recover(self, error: Exception) -> None:
        self.failures += 1
        expired = isinstance(error, ApiError) and error.status == EXPIRED
        if self.failures > GOES_ON or not is_resumable(error):
            self.in_one_piece |= (
                expired and self.go_on != ""
            )  # the server may discard pages faster than they are read
            self.revision = None
            self.found = []
            self.go_on = ""
        log.warning(
            "ReadingBroke",
            path=self.path,
            error=repr(error),
            again=self.revision is None,
            row=self.failures,
        )
        if self.failures >= AWAY and is_resumable(error):
            self.api.on_away(
                f"{self.path} could not be read {self.failures} times in a row: {error!r}"
            )
        wait_s = self.api.backoff_s(self.failures)
        await asyncio.sleep(0.0 if expired and self.failures == 1 else wait_s)


def is_resumable(error: Any) -> bool:
    """Return True if reading can continue at the position where it stopped."""
    return (
        error.status in FOR_NOW
        if isinstance(error, ApiError)
        else isinstance(error, CONNECTION_ERRORS)
    )
