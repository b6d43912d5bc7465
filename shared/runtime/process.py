"""A process that dies with its parent, however the parent dies (Linux; elsewhere a no-op).

SIGTERM while a service imports: the time before its event loop can listen to signals. Edge.

The kernel gives process 1 of a container no signal that it has not asked for. Imports take a
second, on a busy machine ten; a SIGTERM that came meanwhile was lost, and the kubelet killed the
service when its grace had passed.

Ports of this machine that nobody holds.

They come from below the range that the kernel gives to outgoing connections: one of those can be
somebody's by the time that a server wants it, or be answered by the very connection that looks
whether the server is there yet.

Ending what runs in the background.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import random
import signal
import socket
import sys
from types import FrameType
from typing import Any

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies. To be called in the child."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def exit_on_signal(code: int = 0) -> None:
    """End this process at once on SIGTERM or SIGINT, until `app.run` listens itself. Call it before
    heavy imports.
    """

    def end(number: int, frame: FrameType | None) -> None:
        os._exit(code)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


FREE = range(20_000, 32_000)

_in_turn = itertools.islice(itertools.cycle(FREE), random.randrange(len(FREE)), None)
"""From a place of this process's own, and none again soon: who was there may still be looked
for.
"""


def free_port() -> int:
    """Raises `OSError` where there is none."""
    for number in itertools.islice(_in_turn, len(FREE)):
        if is_port_free(number):
            return number
    raise OSError(f"no free port in {FREE}")


def is_port_free(number: int) -> bool:
    """Whether nobody holds it; who is bound to it and does not listen holds it, too."""
    with socket.socket() as probe:
        try:
            probe.bind(("", number))
        except OSError:
            return False
    return True


AGAIN_S = 0.1


async def cancel_tasks(*tasks: asyncio.Future[Any]) -> None:
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
