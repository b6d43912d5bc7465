"""Send signals to the processes that a fault hits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterable, Sequence


class Missed(Exception):
    """There was no target for the fault."""


async def held(pids: Sequence[int], seconds: float) -> None:
    """Stop processes for this time in s. Processes that die meanwhile are ignored."""
    send(pids, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        send(pids, signal.SIGCONT)


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
