"""A small API server to be rude with: lists, watches, pages, 410 in both ways, and broken streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Raw = dict[str, Any]
PATHS = {"/api/v1/nodes": "nodes", "/api/v1/pods": "pods"}
END = b""


class ApiServer:
    """Objects by kind, and the watchers of each; what is said to a watcher arrives as it is."""

    def __init__(self) -> None:
        self.revision = 10
        self.objects: dict[str, dict[str, Raw]] = {"nodes": {}, "pods": {}}
        self.watchers: dict[str, list[asyncio.Queue[bytes | None]]] = {"nodes": [], "pods": []}
        self.lists = {"nodes": 0, "pods": 0}
        self.expired = False
        self.url = ""

    # ------------------------------------------------------------ what happens

    def put(self, kind: str, raw: Raw) -> None:
        self._next(raw)
        new = raw["metadata"]["uid"] not in self.objects[kind]
        self.objects[kind][raw["metadata"]["uid"]] = raw
        self._tell(kind, "ADDED" if new else "MODIFIED", raw)

    def delete(self, kind: str, uid: str) -> None:
        raw = self.objects[kind].pop(uid)
        self._next(raw)
        self._tell(kind, "DELETED", raw)

    def forget(self, kind: str, uid: str) -> None:
        """Delete it, and tell nobody."""
        self._next(self.objects[kind].pop(uid))

    def expire(self) -> None:
        """An ERROR event in every open stream."""
        for kind in self.watchers:
            self._tell(kind, "ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})

    def cut(self) -> None:
        """Break every stream in the middle of a chunk."""
        for queues in self.watchers.values():
            for queue in queues:
                queue.put_nowait(None)

    def _next(self, raw: Raw) -> None:
        self.revision += 1
        raw["metadata"]["resourceVersion"] = str(self.revision)

    def _tell(self, kind: str, what: str, raw: Raw) -> None:
        line = json.dumps({"type": what, "object": raw}).encode() + b"\n"
        for queue in self.watchers[kind]:
            queue.put_nowait(line)

    # ------------------------------------------------------------ what is asked

    async def answer(self, request: web.Request) -> web.StreamResponse:
        kind = PATHS[request.path]
        if request.query.get("watch", "").lower() == "true":
            return await self._watch(request, kind)
        return self._list(request, kind)

    def _list(self, request: web.Request, kind: str) -> web.Response:
        self.lists[kind] += 1
        items = list(self.objects[kind].values())
        first, limit = int(request.query.get("continue", 0)), int(request.query.get("limit", 10**6))
        more = str(first + limit) if first + limit < len(items) else None
        metadata = {"resourceVersion": str(self.revision), "continue": more}
        return web.json_response({"metadata": metadata, "items": items[first : first + limit]})

    async def _watch(self, request: web.Request, kind: str) -> web.StreamResponse:
        if self.expired:
            self.expired = False
            return web.json_response({"kind": "Status", "code": 410}, status=410)
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.watchers[kind].append(queue)
        try:
            while (line := await queue.get()) is not None:
                half = len(line) // 2
                await response.write(line[:half])
                await response.write(line[half:])
            assert request.transport
            request.transport.abort()
        finally:
            self.watchers[kind].remove(queue)
        return response


@asynccontextmanager
async def api_server() -> AsyncIterator[ApiServer]:
    server, app = ApiServer(), web.Application()
    app.add_routes([web.get(path, server.answer) for path in PATHS])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    server.url = f"http://{host}:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()
