"""Where a service is asked how it is, over HTTP. Edge; not for trainers, whose image has no web
server.

GET /metrics    what it has measured, for Prometheus
GET /healthz    200 as long as its loop turns: nothing else is asked, so that no outage elsewhere ends it
GET /readyz     200 when it does its work or stands by for it, else 503 and what it lacks
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil
from aiohttp import web

from shared.runtime.health import Health
from shared.runtime.metrics import CONTENT_TYPE, Family, Measure, format_metrics

CPU = Family(
    name="process_cpu_seconds_total", kind="counter", help="CPU time that the process has used."
)
MEMORY = Family(
    name="process_resident_memory_bytes", kind="gauge", help="Memory that the process has."
)
BEGUN = Family(
    name="process_start_time_seconds", kind="gauge", help="When the process began, since 1970."
)
READY = Family(
    name="weir_ready",
    kind="gauge",
    help="1 when the service does its work or stands by for it, else 0.",
)


async def serve_health(vitals: Health, port: int) -> web.AppRunner:
    """On all interfaces; `cleanup` of what is returned ends it. Raises `OSError` where the port is
    taken.
    """

    async def metrics(request: web.Request) -> web.Response:
        text = format_metrics(
            [
                *vitals.measures(),
                *process_measures(),
                Measure(READY, {(): float(not vitals.unmet())}),
            ]
        )
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def alive(request: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def ready(request: web.Request) -> web.Response:
        if lacks := vitals.unmet():
            return web.Response(status=503, text=f"not ready: {', '.join(lacks)}\n")
        return web.Response(text="ready\n")

    pages = web.Application()
    pages.add_routes(
        [web.get("/metrics", metrics), web.get("/healthz", alive), web.get("/readyz", ready)]
    )
    runner = web.AppRunner(pages, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, port=port).start()
    return runner


def process_measures() -> Iterable[Measure]:
    """As every exporter names them."""
    here = psutil.Process()
    used = here.cpu_times()
    return (
        Measure(CPU, {(): used.user + used.system}),
        Measure(MEMORY, {(): here.memory_info().rss}),
        Measure(BEGUN, {(): min(here.create_time(), time.time())}),
    )
