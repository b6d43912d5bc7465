"""The edge of the page: follow the bus, answer browsers.

GET  /              the page and its files
GET  /api/follow    the board, then its changes, as server-sent events; ?job=<namespace>.<job> adds
                    the history of a job, ?span=<seconds> sets the time span of the cluster
POST /api/what-if   the outcome of a job's YAML now; GET /api/example: an example of one
GET  /healthz       200 as long as the event loop runs
GET  /readyz        503 while the log is being read, or the bus is away
"""

from __future__ import annotations

import asyncio
import socket
import time

import msgspec
import structlog
from aiohttp import web

from services.console.dry_run import rules_from_environment
from services.console.page import http_api
from services.console.page import what_if as what_if_module
from services.console.page.http_api import push_updates
from services.console.page.watch import Watch
from services.console.trouble import Trouble
from shared.bus.bus import Bus
from shared.messages import Port
from shared.runtime import config

log = structlog.get_logger()

LARGEST_PROPOSAL = 64 << 10  # bytes


class Settings(config.Common, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    """The address for browsers. Open it beyond this machine only behind a proxy that authenticates
    users.
    """
    port: Port = 8002
    """0: any free port."""
    push_s: float = 0.05
    """The shortest time between two updates of one browser."""
    browsers: int = 64
    """The most browsers at a time; one more is told to try again later."""


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
            middlewares=[http_api.access_check(self.settings.host)],
            client_max_size=LARGEST_PROPOSAL,
        )
        app.on_response_prepare.append(http_api.set_safety_headers)
        app.add_routes(http_api.static_routes())
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
                status=503, text="not ready: the log is being read, or the bus is away\n"
            )
        return web.Response(text="ready\n")

    async def example(self, request: web.Request) -> web.Response:
        return web.Response(text=what_if_module.example_proposal(self.watch.board.state))

    async def what_if(self, request: web.Request) -> web.Response:
        """Answer one proposal at a time, in a thread: it may take as long as two decisions."""
        text = await request.text()
        async with self.what_if_lock:
            try:
                rules, state = rules_from_environment(), self.watch.board.state
                found = await asyncio.to_thread(
                    what_if_module.answer_proposal, state, text, time.time(), rules
                )
            except Trouble as trouble:
                found = what_if_module.Answer(
                    refused=[f"the page's own settings are wrong: {trouble}"]
                )
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    async def open(self) -> web.AppRunner:
        """Start the server; `cleanup` of the result stops it. Raises `OSError` if the port is
        taken.
        """
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
    bus.health.require("the bus's log", lambda: watch.caught_up)
    bus.health.require("hearing the bus", lambda: watch.cut_s is None)
    bus.spawn(watch.run())
    log.info("PageServed", url=page.url)
