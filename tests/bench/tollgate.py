"""A proxy in front of an API server that records when each request arrives."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import aiohttp
from aiohttp import web

HOPS = {"host", "connection", "transfer-encoding", "content-length", "keep-alive"}


class Tollgate:
    """`arrivals` has the time of every request, also of watches, in s of the monotonic clock."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.http, self.arrivals = http, list[float]()

    async def let_through(self, request: web.Request) -> web.StreamResponse:
        self.arrivals.append(time.monotonic())
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOPS}
        asked = self.http.request(
            request.method, request.path_qs, data=await request.read(), headers=headers
        )
        async with asked as answer:
            response = web.StreamResponse(
                status=answer.status, headers={"Content-Type": answer.content_type}
            )
            await response.prepare(request)
            with suppress(ConnectionResetError):
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
        return response


@asynccontextmanager
async def tollgate(kube_url: str, port: int) -> AsyncIterator[Tollgate]:
    """Run the proxy on a port of this machine, in front of an API server."""
    forever = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        kube_url, timeout=forever, connector=aiohttp.TCPConnector(limit=0)
    ) as http:
        gate, app = Tollgate(http), web.Application()
        app.router.add_route("*", "/{path:.*}", gate.let_through)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            yield gate
        finally:
            await runner.cleanup()


def peak(arrivals: Sequence[float], seconds: float = 1.0) -> int:
    """Return the largest number of arrivals in any period of this length in s."""
    ordered = sorted(arrivals)
    return max(
        (bisect_left(ordered, at + seconds) - number for number, at in enumerate(ordered)),
        default=0,
    )
