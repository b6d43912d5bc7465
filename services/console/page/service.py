"""The HTTP server of the page: it follows the bus and answers browsers.

GET  /              the page and its files
GET  /api/follow    the board, then its changes, as server-sent events; ?job=<namespace>.<job> adds
                    the history of a job, ?span=<seconds> sets the time span of the cluster
POST /api/what-if   the outcome of a job's YAML now; GET /api/example: an example of one
GET  /healthz       200 as long as the event loop runs
GET  /readyz        503 while the log is being read, or the bus is away

A page that is served on this machine only accepts only this machine's host names, so that a web
site cannot reach it through a host name of its own. Requests that another site posts are refused.
The headers tell a browser to load nothing from other servers.

A slow browser gets fewer updates but never older data: an update is always the difference between
the last state that was sent and the present one.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from services.console import dry_run
from services.console.board.board import Board
from services.console.board.figures import Stack, stack_cores
from services.console.dry_run import rules_from_environment
from services.console.page import browser_updates
from services.console.page.browser_updates import News, job_detail
from services.console.page.watch import Watch
from services.console.trouble import Trouble
from shared.bus.bus import Bus
from shared.messages import Port
from shared.runtime import config

log = structlog.get_logger()

LARGEST_PROPOSAL = 64 << 10  # bytes


class Settings(config.Common, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    """The address for browsers. Make it reachable from other machines only behind a proxy that
    authenticates users.
    """
    port: Port = 8002
    """0: any free port."""
    push_s: float = 0.05
    """The shortest time between two updates of one browser."""
    browsers: int = 64
    """The most browsers at a time; further ones are told to try again later."""


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
STATIC = Path(__file__).with_name("static")
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")
SAFETY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def access_check(host: str) -> Middleware:
    """Return the middleware that refuses other sites. `host`: the address of the server."""
    local = host in LOOPBACK

    @web.middleware
    async def guard_request(request: web.Request, handler: Handler) -> web.StreamResponse:
        if local and _host_name(request.host) not in LOOPBACK:
            raise web.HTTPForbidden(
                text="this page only answers requests to a host name of this machine\n"
            )
        origin = request.headers.get("Origin")
        if origin and urlsplit(origin).netloc != request.host:
            raise web.HTTPForbidden(text="requests from another site are refused\n")
        return await handler(request)

    return guard_request


def _host_name(host: str) -> str:
    """Return the host without its port; an IPv6 address without the brackets."""
    return urlsplit(f"//{host}").hostname or ""


async def set_safety_headers(request: web.Request, response: web.StreamResponse) -> None:
    for name, value in SAFETY_HEADERS.items():
        response.headers.setdefault(name, value)


def static_routes() -> list[web.RouteDef]:
    """Return routes to the files of `static/`, which are read once; `/` is the page itself."""
    routes = [web.get("/", _file_handler(STATIC / "index.html"))]
    for path in sorted(STATIC.iterdir()):
        if path.suffix in TYPES:
            routes.append(web.get(f"/{path.name}", _file_handler(path)))
    return routes


def _file_handler(path: Path) -> Handler:
    body = path.read_bytes()

    async def send(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=TYPES[path.suffix], charset="utf-8")

    return send


LONGEST_SILENCE_S = 1.0
"""The longest time between two events, so that a browser notices a lost connection."""
STACK_S = 1.0
"""The time between two updates of the cluster's use over time."""
RETRY_MS = 1000
"""The time after which a disconnected browser tries again."""
LONGEST_SPAN_S = 366 * 86_400.0
HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}


@dataclass
class Browser:
    """The view of one browser (`job`: `<namespace>.<job>`; `span_s`: time span of the cluster) and
    the data that it has.
    """

    job: str
    span_s: float
    sent_board: Board | None = None
    stacked_s: float = 0.0
    number: int = 0

    def news(self, watch: Watch, now_s: float) -> News:
        board, before = watch.board, self.sent_board
        if browser_updates.has_to_restart(before, board):
            before = None
        self.number += 1
        history = board.jobs.get(self.job)
        known = before.jobs.get(self.job) if before else None
        update = News(
            now_s=now_s,
            at_s=board.at_s,
            number=self.number,
            whole=before is None,
            reading=not watch.caught_up,
            cut_s=watch.cut_s,
            stack=self._stack(board, now_s, watch.cut_s),
            detail=job_detail(known, history, now_s) if history and history is not known else None,
            **browser_updates.changed_fields(before, board),  # type: ignore[arg-type]
        )
        self.sent_board = board
        return update

    def _stack(self, board: Board, now_s: float, cut_s: float | None) -> Stack | None:
        """Return the use of cores up to now; without the bus, up to the loss of the connection."""
        if now_s - self.stacked_s < STACK_S:
            return None
        self.stacked_s = now_s
        return stack_cores(board, now_s - self.span_s, now_s if cut_s is None else cut_s)


async def push_updates(request: web.Request, watch: Watch, push_s: float) -> web.StreamResponse:
    """Send updates until the browser leaves. `push_s`: the shortest time between two updates."""
    browser = Browser(request.query.get("job", ""), _span(request.query.get("span", "")))
    response = web.StreamResponse(headers=HEADERS)
    await response.prepare(request)
    await response.write(b"retry: %d\n\n" % RETRY_MS)
    with suppress(ConnectionError):
        while True:
            changed = watch.changed
            body = msgspec.json.encode(browser.news(watch, time.time()))
            await response.write(b"data: " + body + b"\n\n")
            await asyncio.sleep(push_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(
                    changed.wait(), LONGEST_SILENCE_S - min(push_s, LONGEST_SILENCE_S / 2)
                )
    return response


def _span(text: str) -> float:
    """Return the time span in seconds; an hour if the text is no number."""
    try:
        return min(max(float(text), 1.0), LONGEST_SPAN_S)
    except ValueError:
        return 3600.0


class Page:
    def __init__(self, watch: Watch, settings: Settings) -> None:
        self.watch = watch
        self.settings = settings
        self.browsers = 0
        self.what_if_lock = asyncio.Lock()
        self.url = ""

    def app(self) -> web.Application:
        """Return the routes of the server."""
        app = web.Application(
            middlewares=[access_check(self.settings.host)],
            client_max_size=LARGEST_PROPOSAL,
        )
        app.on_response_prepare.append(set_safety_headers)
        app.add_routes(static_routes())
        app.add_routes(
            [
                web.get("/api/follow", self.follow),
                web.post("/api/what-if", self.what_if),
                web.get("/api/example", self.example),
                web.get("/healthz", self.alive),
                web.get("/readyz", self.ready),
            ]
        )
        return app

    async def follow(self, request: web.Request) -> web.StreamResponse:
        if self.browsers >= self.settings.browsers:
            raise web.HTTPServiceUnavailable(
                text="too many browsers are connected; try again later\n",
                headers={"Retry-After": "5"},
            )
        self.browsers += 1
        try:
            return await push_updates(request, self.watch, self.settings.push_s)
        finally:
            self.browsers -= 1

    async def alive(self, request: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def ready(self, request: web.Request) -> web.Response:
        if not self.watch.caught_up or self.watch.cut_s is not None:
            return web.Response(
                status=503, text="not ready: the log is being read, or the bus is not connected\n"
            )
        return web.Response(text="ready\n")

    async def example(self, request: web.Request) -> web.Response:
        return web.Response(text=dry_run.example_proposal(self.watch.board.state))

    async def what_if(self, request: web.Request) -> web.Response:
        """Answer one proposal at a time, in a thread: it may take as long as two decisions."""
        text = await request.text()
        async with self.what_if_lock:
            try:
                rules, state = rules_from_environment(), self.watch.board.state
                found = await asyncio.to_thread(
                    dry_run.answer_proposal, state, text, time.time(), rules
                )
            except Trouble as trouble:
                found = dry_run.Answer(refused=[f"the page's own settings are wrong: {trouble}"])
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    async def open(self) -> web.AppRunner:
        """Start the server; `cleanup` of the result stops it. Raise `OSError` for a used port."""
        runner = web.AppRunner(self.app(), access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        family = socket.AF_INET6 if ":" in self.settings.host else socket.AF_INET
        listening = socket.create_server(
            (self.settings.host, self.settings.port), family=family, backlog=128
        )
        await web.SockSite(runner, listening).start()
        self.url = f"http://{self.settings.host}:{listening.getsockname()[1]}/"
        return runner


async def start(bus: Bus, settings: Settings) -> None:
    watch = Watch(bus)
    page = Page(watch, settings)
    runner = await page.open()
    bus.on_close(runner.cleanup)
    bus.health.require("the log of the bus", lambda: watch.caught_up)
    bus.health.require("messages of the bus", lambda: watch.cut_s is None)
    bus.spawn(watch.run())
    log.info("PageServed", url=page.url)
