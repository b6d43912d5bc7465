"""Fixtures for commands of `weir`: their output and exit code, and a fake Kubernetes API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import click
import pytest
from aiohttp import web

from services.__main__ import WEIR, weir
from services.cli import connection
from services.cli.command_line import Command
from shared.bus import log_reader
from shared.bus.bus import Bus
from shared.runtime.process import cancel_tasks


async def closed(bus: Bus) -> None:
    """Cancel the tasks of a connection to the bus, then close it."""
    await cancel_tasks(*bus._tasks)
    await bus.close()


class Said(NamedTuple):
    code: int
    out: str
    err: str


connection.CONNECT_S = log_reader.WAIT_S = 60.0  # a busy machine may stall for seconds
Prompt = Callable[..., Awaitable[Said]]


@pytest.fixture
def prompt(capsys: pytest.CaptureFixture[str]) -> Prompt:
    """Return a function that runs a command in a thread with an event loop of its own."""

    async def typed(*words: object) -> Said:
        code = await asyncio.to_thread(weir, [str(word) for word in words])
        return Said(code, *capsys.readouterr())

    return typed


def command(name: str) -> Command:
    found = WEIR.get_command(click.Context(WEIR), name)
    assert isinstance(found, Command)
    return found


def parse_words(name: str, *words: str) -> click.Context:
    """Return the context of a command after it has parsed the words. Raise for wrong use."""
    weir_context = click.Context(WEIR, info_name="weir")
    return command(name).make_context(name, [*words], parent=weir_context)


# ---------------------------------------------------------------- a fake Kubernetes API

PRINTED = "step 1\nstep 2\n"


class Api:
    """A fake Kubernetes API with two pods of one job. `asked` is the query of the last request."""

    def __init__(self) -> None:
        self.url, self.asked = "", dict[str, str]()
        self.items = [_pod("digits-chief-0", "chief"), _pod("digits-worker-1", "worker")]

    async def pods(self, request: web.Request) -> web.Response:
        self.asked = dict(request.query)
        return web.json_response(
            {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self.items}
        )

    async def log(self, request: web.Request) -> web.Response:
        if request.match_info["pod"] != "digits-chief-0":
            return web.json_response(
                {"kind": "Status", "message": "is waiting to start"}, status=400
            )
        self.asked = dict(request.query)
        return web.Response(text=PRINTED)


def _pod(name: str, role: str) -> dict[str, Any]:
    labels = {"weir.dev/job": "digits", "weir.dev/role": role}
    return {
        "metadata": {"name": name, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
    }


@pytest.fixture
async def kube() -> AsyncIterator[Api]:
    api, application = Api(), web.Application()
    application.router.add_get("/api/v1/namespaces/default/pods", api.pods)
    application.router.add_get("/api/v1/namespaces/default/pods/{pod}/log", api.log)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    api.url = "http://{}:{}".format(*runner.addresses[0])
    yield api
    await runner.cleanup()
