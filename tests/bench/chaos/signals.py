"""Signals to the processes that a fault strikes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterable, Sequence


class Missed(Exception):
    """Nobody was there to be hit."""


async def held(pids: Sequence[int], seconds: float) -> None:
    """Stopped for so long; one that has died meanwhile is no error."""
    send(pids, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        send(pids, signal.SIGCONT)


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
