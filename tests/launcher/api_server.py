"""A very small Kubernetes API server over real HTTP: lists, watches, preconditions, and the faults of a real one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Body = dict[str, Any]
Key = tuple[str, str, str]  # kind, namespace, name


class ApiServer:
    """`trouble`: answers this status so many times. `node_runs`: pods run as soon as they are made."""

    def __init__(self) -> None:
        self.objects: dict[Key, Body] = {}
        self.version, self.born, self.url = 100, 0, ""
        self.history: list[tuple[int, str, Body]] = []
        self.watches: dict[asyncio.Queue[Body | None], str] = {}
        self.trouble: list[tuple[int, str]] = []
        self.calls: list[tuple[str, str, Body]] = []
        self.node_runs = True

    # ------------------------------------------------------------ as a cluster

    def put(self, kind: str, body: Body, verb: str = "MODIFIED") -> Body:
        self.version += 1
        meta = body["metadata"]
        meta["resourceVersion"] = str(self.version)
        key = (kind, meta.get("namespace", ""), meta["name"])
        if verb == "DELETED":
            self.objects.pop(key, None)
        else:
            self.objects[key] = body
        event = {"type": verb, "object": json.loads(json.dumps(body))}
        self.history.append((self.version, kind, event))
        for queue, wanted in self.watches.items():
            if wanted == kind:
                queue.put_nowait(event)
        return body

    def node(self, name: str, ready: str = "True") -> None:
        condition = {"type": "Ready", "status": ready, "lastTransitionTime": "2020-01-01T00:00:00Z"}
        self.put("nodes", {"metadata": {"name": name}, "status": {"conditions": [condition]}})

    def pod(self, name: str) -> Body:
        return self.objects["pods", "default", name]

    def status(self, name: str, **status: Any) -> None:
        body = self.pod(name)
        self.put("pods", {**body, "status": {**body.get("status", {}), **status}})

    def names(self, kind: str) -> list[str]:
        return sorted(name for k, _, name in self.objects if k == kind)

    def expire(self) -> None:
        """What every watch of an older version is told: 410, inside a 200 stream."""
        gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        for queue in self.watches:
            queue.put_nowait({"type": "ERROR", "object": gone})

    def hang_up(self) -> None:
        for queue in self.watches:
            queue.put_nowait(None)

    # ------------------------------------------------------------ as a server

    @web.middleware
    async def meet(self, request: web.Request, handler: Any) -> web.StreamResponse:
        watching = "watch" in request.query
        self.calls.append((request.method, request.path, await request.json() if request.can_read_body else {}))
        if self.trouble and not watching:
            return refusal(*self.trouble.pop(0))
        answer: web.StreamResponse = await handler(request)
        return answer

    async def list(self, request: web.Request) -> web.StreamResponse:
        kind = request.match_info["kind"]
        if "watch" in request.query:
            return await self.watch(request, kind)
        items = [body for key, body in sorted(self.objects.items()) if key[0] == kind]
        start, limit = int(request.query.get("continue") or 0), 2
        more = str(start + limit) if start + limit < len(items) else ""
        meta = {"resourceVersion": str(self.version), "continue": more}
        return web.json_response({"metadata": meta, "items": items[start : start + limit]})

    async def watch(self, request: web.Request, kind: str) -> web.StreamResponse:
        stream, queue = web.StreamResponse(), asyncio.Queue[Body | None]()
        since = int(request.query["resourceVersion"])
        for event in [event for at, of, event in self.history if of == kind and at > since]:
            queue.put_nowait(event)
        self.watches[queue] = kind
        await stream.prepare(request)
        try:
            while (event := await queue.get()) is not None:
                await stream.write(json.dumps(event).encode() + b"\n")
            if request.transport:
                request.transport.close()
        finally:
            self.watches.pop(queue, None)
        return stream

    async def create(self, request: web.Request) -> web.Response:
        kind, namespace, body = request.match_info["kind"], request.match_info["namespace"], await request.json()
        if (kind, namespace, body["metadata"]["name"]) in self.objects:
            return refusal(409, "AlreadyExists")
        self.born += 1
        body["metadata"]["uid"] = f"uid-{self.born}"
        if kind == "pods" and self.node_runs:
            body["spec"]["nodeName"], body["status"] = "node-0", {"phase": "Running", "podIP": "10.0.0.1"}
        return web.json_response(self.put(kind, body, "ADDED"), status=201)

    async def read(self, request: web.Request) -> web.Response:
        body = self.objects.get(key_of(request))
        return web.json_response(body) if body else refusal(404, "NotFound")

    async def delete(self, request: web.Request) -> web.Response:
        key, options = key_of(request), await request.json()
        body = self.objects.get(key)
        if body is None:
            return refusal(404, "NotFound")
        if options["preconditions"]["uid"] != body["metadata"]["uid"]:
            return refusal(409, "Conflict")
        if key[0] == "pods":
            body["metadata"]["deletionTimestamp"] = "2020-01-01T00:00:00Z"
            self.put("pods", body)
        return web.json_response(self.put(key[0], body, "DELETED"))

    async def resize(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/strategic-merge-patch+json"
        body = self.objects.get(("pods", request.match_info["namespace"], request.match_info["name"]))
        if body is None:
            return refusal(404, "NotFound")
        patch = await request.json()
        body["spec"]["containers"][0]["resources"] = patch["spec"]["containers"][0]["resources"]
        return web.json_response(self.put("pods", body))


def key_of(request: web.Request) -> Key:
    found = request.match_info
    return found["kind"], found["namespace"], found["name"]


def refusal(code: int, reason: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": reason}, status=code)


@asynccontextmanager
async def api_server() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    app = web.Application(middlewares=[server.meet])
    one = "/api/v1/namespaces/{namespace}/{kind}/{name}"
    app.add_routes(
        [
            web.get("/api/v1/{kind}", server.list),
            web.post("/api/v1/namespaces/{namespace}/{kind}", server.create),
            web.get(one, server.read),
            web.delete(one, server.delete),
            web.patch("/api/v1/namespaces/{namespace}/pods/{name}/resize", server.resize),
        ]
    )
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    server.node("node-0")
    try:
        yield server
    finally:
        server.hang_up()
        await runner.cleanup()
