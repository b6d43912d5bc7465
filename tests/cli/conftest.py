"""A person at a prompt: types a command, reads what comes, sees how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from services.__main__ import weir
from shared.bus import Bus
from shared.tasks import end


async def closed(bus: Bus) -> None:
    """End what a connection follows, then the connection."""
    await end(*bus._tasks)
    await bus.close()


class Said(NamedTuple):
    code: int
    out: str
    err: str


Prompt = Callable[..., Awaitable[Said]]


@pytest.fixture
def prompt(capsys: pytest.CaptureFixture[str]) -> Prompt:
    """Each command runs in a thread with an event loop of its own, as it would in a process."""

    async def typed(*words: object) -> Said:
        code = await asyncio.to_thread(weir, [str(word) for word in words])
        return Said(code, *capsys.readouterr())

    return typed
