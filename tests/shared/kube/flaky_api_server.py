"""An API server with random faults, as a real one may have, until a test calls `behave`."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from aiohttp import web

from tests.shared.kube.api_server import EXPIRED, ApiServer, Body, Cut, Ended, refusal

PATIENCE_S, LATE_S = (
    0.2,
    0.4,
)  # s; the timeout of clients, and the delay of a late answer; otherwise 30 s and more
BEFORE = ("500", "503", "429", "reset", "late")  # the request has no effect
READING, WRITING = (*BEFORE, "410"), (*BEFORE, "409")
AFTER = ("lost", "late answer")  # the request has its effect, but the answer is lost or late
AMID = ("cut", "half", "end", "expired", "broken", "bookmark", "slow")


class RudeServer(ApiServer):
    """`rude` is the share of requests, and of lines, with a fault. `met` has the faults so far."""

    def __init__(self, seed: int, rude: float = 0.2) -> None:
        super().__init__()
        self.chance, self.rude, self.met, self.is_away = (
            random.Random(seed),
            rude,
            set[str](),
            False,
        )

    def behave(self) -> None:
        self.rude = 0.0

    async def restart(self, seconds: float) -> None:
        """Break every stream, answer nobody for a while, and forget the history."""
        self.is_away = True
        self.hang_up()
        await asyncio.sleep(seconds)
        self.forget()
        self.is_away = False

    def fate(self, kinds: tuple[str, ...]) -> str:
        found = self.chance.choice(kinds) if self.chance.random() < self.rude else ""
        self.met.add(found)
        return found

    # ------------------------------------------------------------ requests

    @web.middleware
    async def meet(self, request: web.Request, handler: Any) -> web.StreamResponse:
        fate = (
            "reset" if self.is_away else self.fate(READING if request.method == "GET" else WRITING)
        )
        if fate:
            return await self.refuse(request, fate)
        answer: web.StreamResponse = await super().meet(request, handler)
        return answer if "watch" in request.query else await self.told(answer)

    async def refuse(self, request: web.Request, fate: str) -> web.Response:
        if fate == "late":
            await asyncio.sleep(LATE_S)
        if fate == "reset" and request.transport:
            request.transport.abort()
        if fate == "410":
            return web.json_response(EXPIRED, status=410)
        return refusal(int(fate) if fate.isdigit() else 504, "Trouble", **{"Retry-After": "0"})

    async def told(self, answer: web.StreamResponse) -> web.StreamResponse:
        """Return the answer to a request that had its effect, or lose or delay it."""
        fate = self.fate(AFTER)
        if fate == "late answer":
            await asyncio.sleep(LATE_S)
        return refusal(500, "InternalError") if fate == "lost" else answer

    # ------------------------------------------------------------ watches

    async def write(self, stream: web.StreamResponse, event: Body | bytes) -> None:
        assert isinstance(event, dict)
        fate, line = self.fate(AMID), json.dumps(event).encode() + b"\n"
        if fate in ("cut", "half"):
            await stream.write(line[: self.chance.randrange(1, len(line))])
        if fate in ("cut", "half", "end"):
            raise Cut if fate == "cut" else Ended
        if fate == "slow":
            await asyncio.sleep(0.02)
        for said in beside(fate, event):
            await super().write(stream, said)
        await super().write(stream, event)


def beside(fate: str, event: Body) -> list[Body]:
    """Return the events before an event. A bookmark has a version up to which all were sent."""
    if fate == "expired":
        return [{"type": "ERROR", "object": EXPIRED}]
    if fate == "broken":
        return [
            {
                "type": "ERROR",
                "object": {"kind": "Status", "code": 500, "message": "etcd is being moved"},
            }
        ]
    if fate == "bookmark" and event["type"] != "ERROR":
        before = int(event["object"]["metadata"]["resourceVersion"]) - 1
        return [{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(before)}}}]
    return []
