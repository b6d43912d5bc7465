"""A proxy in front of an API server that records each request as a permission of RBAC.

It forwards each request, and a POST twice: the client gets the second answer, as if the first had
been lost. So the client also meets an object that it has already created.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import aiohttp
from aiohttp import web

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Call(NamedTuple):
    """A permission that a request needs.

    `namespaced`: the request is for one namespace, so a permission in that namespace is enough.
    """

    namespaced: bool
    group: str
    resource: str
    verb: str


def call(method: str, path: str, watching: bool) -> Call:
    """Return the permission for a request.

    A path is /api/v1/... or /apis/GROUP/VERSION/..., then perhaps namespaces/NAME, then
    RESOURCE[/NAME[/SUBRESOURCE]].
    """
    root, *rest = path.strip("/").split("/")
    group = "" if root == "api" else rest.pop(0)
    version, *rest = rest
    assert root in ("api", "apis") and version.startswith("v"), path
    namespaced = rest[0] == "namespaces" and len(rest) > 2
    resource, *name = rest[2:] if namespaced else rest
    subresource = f"/{name[1]}" if len(name) > 1 else ""
    reading = "get" if name else "watch" if watching else "list"
    verb = VERBS.get(method, reading)
    if verb == "delete" and not name:
        verb = "deletecollection"
    return Call(namespaced, group, resource + subresource, verb)


class Door:
    def __init__(self, url: str) -> None:
        self.behind, self.url, self.calls = url, "", set[Call]()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        watching = request.query.get("watch") in ("true", "1", "True")
        self.calls.add(call(request.method, request.path, watching))
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            return await self._passed_on(request, session)

    async def _passed_on(
        self, request: web.Request, session: aiohttp.ClientSession
    ) -> web.StreamResponse:
        content = {"Content-Type": request.content_type}
        asked = {
            "url": self.behind + request.path_qs,
            "data": await request.read(),
            "headers": content,
        }
        if request.method == "POST":
            async with session.request("POST", **asked):
                pass
        async with session.request(request.method, **asked) as given:
            answer = web.StreamResponse(
                status=given.status, headers={"Content-Type": given.content_type}
            )
            await answer.prepare(request)
            with contextlib.suppress(aiohttp.ClientPayloadError, ConnectionError):  # a watch ends
                async for some in given.content.iter_any():
                    await answer.write(some)
        return answer


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[Door]:
    door, app = Door(url), web.Application()
    app.router.add_route("*", "/{path:.*}", door.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    door.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield door
    finally:
        await runner.cleanup()
