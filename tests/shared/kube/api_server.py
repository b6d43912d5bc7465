"""A very small Kubernetes API server over real HTTP.

It has lists, watches, preconditions, and the faults of a real one.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Body = dict[str, Any]
GROUP = "/{group:api/v1|apis/networking.k8s.io/v1}"
Key = tuple[str, str, str]  # kind, namespace, name
Queue = asyncio.Queue[Body | bytes | None]
EXPIRED = {
    "kind": "Status",
    "code": 410,
    "reason": "Expired",
    "message": "too old resource version",
}
PAGE = 2  # objects in a page, if a client asks for pages


class Ended(Exception):
    """A watch that ends normally."""


class Cut(Exception):
    """A watch whose connection is cut."""


class ApiServer:
    """`trouble` has the errors (status, reason) of the next answers.

    If `node_runs` is set, a pod runs as soon as it is created. Objects of `refused_kinds` cannot be
    created.
    """

    def __init__(self) -> None:
        self.objects: dict[Key, Body] = {}
        self.version, self.floor, self.born, self.url = 100, 0, 0, ""
        self.history: list[tuple[int, str, Body]] = []
        self.pages: dict[str, tuple[int, list[Body]]] = {}  # the rest of a list, by its token
        self.numbers = itertools.count()
        self.watches: dict[Queue, str] = {}
        self.trouble: list[tuple[int, str]] = []
        self.calls: list[tuple[str, str, Body]] = []
        self.agents = Counter[str]()
        self.lists = Counter[str]()
        self.node_runs = True
        self.forbidden = set[str]()  # kinds that nobody may read
        self.refused_kinds = set[str]()

    # ------------------------------------------------------------ the cluster

    def put(self, kind: str, body: Body, verb: str = "MODIFIED", silent: bool = False) -> Body:
        """Store an object. If `silent` is set, running watches do not get the event."""
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
        for queue in [] if silent else self.watchers(kind):
            queue.put_nowait(event)
        return body

    def remove(self, kind: str, name: str, silent: bool = False) -> None:
        body = next(body for (k, _, n), body in self.objects.items() if (k, n) == (kind, name))
        self.put(kind, body, "DELETED", silent)

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

    def watchers(self, kind: str = "") -> list[Queue]:
        return [queue for queue, wanted in self.watches.items() if kind in ("", wanted)]

    # ------------------------------------------------------------ faults

    def say(self, line: Body | bytes, kind: str = "") -> None:
        for queue in self.watchers(kind):
            queue.put_nowait(line)

    def expire(self) -> None:
        """Send every watch what one of an older version gets: 410, inside a 200 stream."""
        self.say({"type": "ERROR", "object": EXPIRED})

    def forget(self) -> None:
        """Forget the history: requests for older versions get 410."""
        self.floor = self.version
        self.pages.clear()

    def hang_up(self) -> None:
        for queue in self.watchers():
            queue.put_nowait(None)

    # ------------------------------------------------------------ requests

    @web.middleware
    async def meet(self, request: web.Request, handler: Any) -> web.StreamResponse:
        watching = "watch" in request.query
        self.calls.append(
            (request.method, request.path, await request.json() if request.can_read_body else {})
        )
        self.agents[request.headers.get("User-Agent", "")] += 1
        if self.trouble and not watching:
            return refusal(*self.trouble.pop(0))
        answer: web.StreamResponse = await handler(request)
        return answer

    async def list(self, request: web.Request) -> web.StreamResponse:
        kind = request.match_info["kind"]
        if kind in self.forbidden:
            return refusal(403, "Forbidden")
        if "watch" in request.query:
            return await self.watch(request, kind)
        self.lists[kind] += 1
        token = request.query.get("continue", "")
        if token and token not in self.pages:
            return web.json_response(EXPIRED, status=410)
        version, items = self.pages[token] if token else (self.version, self.all(kind))
        size = min(PAGE, int(request.query["limit"])) if "limit" in request.query else len(items)
        more = self.keep(version, items[size:]) if items[size:] else ""
        return web.json_response(
            {"metadata": {"resourceVersion": str(version), "continue": more}, "items": items[:size]}
        )

    def all(self, kind: str) -> list[Body]:
        """Return copies of the objects: a later change does not change later pages."""
        found: list[Body] = json.loads(
            json.dumps([body for key, body in sorted(self.objects.items()) if key[0] == kind])
        )
        return found

    def keep(self, version: int, items: list[Body]) -> str:
        token = f"{version}-{next(self.numbers)}"
        self.pages[token] = (version, items)
        return token

    async def watch(self, request: web.Request, kind: str) -> web.StreamResponse:
        stream, queue = web.StreamResponse(), Queue()
        since = int(request.query["resourceVersion"])
        for event in self.since(since, kind):
            queue.put_nowait(event)
        self.watches[queue] = kind
        await stream.prepare(request)
        try:
            while (event := await queue.get()) is not None:
                await self.write(stream, event)
            raise Cut
        except Cut:
            if request.transport:
                request.transport.abort()
        except (Ended, ConnectionResetError):  # ended normally, or by the client
            pass
        finally:
            self.watches.pop(queue, None)
        return stream

    def since(self, version: int, kind: str) -> Iterator[Body]:
        if version < self.floor:
            yield {"type": "ERROR", "object": EXPIRED}
        yield from (
            event for at, of, event in self.history if of == kind and at > max(version, self.floor)
        )

    async def write(self, stream: web.StreamResponse, event: Body | bytes) -> None:
        line = event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n"
        half = len(line) // 2
        await stream.write(line[:half])
        await stream.write(line[half:])

    async def create(self, request: web.Request) -> web.Response:
        kind, namespace, body = (
            request.match_info["kind"],
            request.match_info["namespace"],
            await request.json(),
        )
        if kind in self.refused_kinds:
            return refusal(403, "Forbidden")
        if (kind, namespace, body["metadata"]["name"]) in self.objects:
            return refusal(409, "AlreadyExists")
        self.born += 1
        body["metadata"]["uid"] = f"uid-{self.born}"
        if kind == "pods" and self.node_runs:
            body["spec"]["nodeName"], body["status"] = (
                "node-0",
                {"phase": "Running", "podIP": "10.0.0.1"},
            )
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
        self.collect(body["metadata"]["uid"])
        return web.json_response(self.put(key[0], body, "DELETED"))

    def collect(self, owner: str) -> None:
        """Delete the objects that this one owns."""
        for (kind, _, _), body in list(self.objects.items()):
            if any(o["uid"] == owner for o in body["metadata"].get("ownerReferences", [])):
                self.put(kind, body, "DELETED")

    async def resize(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/strategic-merge-patch+json"
        body = self.objects.get(
            ("pods", request.match_info["namespace"], request.match_info["name"])
        )
        if body is None:
            return refusal(404, "NotFound")
        patch = await request.json()
        body["spec"]["containers"][0]["resources"] = patch["spec"]["containers"][0]["resources"]
        return web.json_response(self.put("pods", body))


def key_of(request: web.Request) -> Key:
    found = request.match_info
    return found["kind"], found["namespace"], found["name"]


def refusal(code: int, reason: str, **headers: str) -> web.Response:
    said = {"kind": "Status", "code": code, "reason": reason, "message": reason}
    return web.json_response(said, status=code, headers=headers)


def routes(server: ApiServer) -> list[web.RouteDef]:
    many = f"{GROUP}/namespaces/{{namespace}}/{{kind}}"
    one = f"{many}/{{name}}"
    return [
        web.get(f"{GROUP}/{{kind}}", server.list),
        web.post(many, server.create),
        web.get(one, server.read),
        web.delete(one, server.delete),
        web.patch("/api/v1/namespaces/{namespace}/pods/{name}/resize", server.resize),
    ]


@asynccontextmanager
async def serving(server: ApiServer) -> AsyncIterator[ApiServer]:
    app = web.Application(middlewares=[server.meet])
    app.add_routes(routes(server))
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        server.hang_up()
        await runner.cleanup()


@asynccontextmanager
async def api_server() -> AsyncIterator[ApiServer]:
    """Yield a server with one node."""
    async with serving(ApiServer()) as server:
        server.node("node-0")
        yield server
