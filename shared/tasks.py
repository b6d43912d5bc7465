"""Ending what runs in the background."""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN_S = 0.1


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel until all have ended, whatever became of them.

    Once is not enough: before Python 3.12 `asyncio.wait_for` forgets a cancellation that comes
    together with its result (CPython issue 86296), and the NATS client waits that way.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_S)
    for task in tasks:
        _ = task.cancelled() or task.exception()
