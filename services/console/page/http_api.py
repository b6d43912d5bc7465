"""HTTP around the page: access rules, response headers, and server-sent events.

A page that is served on this machine only accepts only this machine's host names, so that no web
site can point a name of its own at it; and it answers no request that another site posts. A browser
is told to load nothing from anywhere else.

A slow browser is updated less often and never falls behind: an update is always the difference
between the last state that was sent and the present one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from services.console.board.board import Board
from services.console.board.figures import Stack, stack_cores
from services.console.page import browser_updates
from services.console.page.browser_updates import News, job_detail
from services.console.page.watch import Watch

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
            raise web.HTTPForbidden(text="this page answers to this machine's own names only\n")
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
    stack: Stack | None = field(default=None)

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
