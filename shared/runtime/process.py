"""Helpers for a process: death with its parent, early signals, free ports, ending background
tasks.
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
    """Let the kernel kill this process when its parent dies, on Linux. Call it in the child."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def exit_on_signal(code: int = 0) -> None:
    """End this process at once on SIGTERM or SIGINT, until `run_service` handles them.

    Call it before heavy imports. The kernel sends process 1 of a container no signal without a
    handler. Imports take 1 to 10 seconds; a SIGTERM in that time was lost, and the kubelet killed
    the service after its grace period.
    """

    def end(number: int, frame: FrameType | None) -> None:
        os._exit(code)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


FREE = range(20_000, 32_000)
CONNECT_S = 5.0

_in_turn = itertools.islice(itertools.cycle(FREE), random.randrange(len(FREE)), None)
"""Ports in turn, beginning with a random one: a client may still look for the last server of a
port.

They are below the range that the kernel uses for outgoing connections. An outgoing connection could
occupy a port before the server does, or answer the server's own readiness probe.
"""


def free_port() -> int:
    """Return a port that no process uses, and that `free_port` gives to no other process for a
    minute. A server binds it with SO_REUSEADDR, as nearly all do. Raises `OSError` if there is
    none.
    """
    for number in itertools.islice(_in_turn, len(FREE)):
        if _reserve_port(number):
            return number
    raise OSError(f"no free port in {FREE}")


def _reserve_port(number: int) -> bool:
    """Return False if the port is in use. Otherwise leave a closed connection on it.

    The kernel keeps its end in TIME_WAIT for 60 s. During that time it refuses the port to a socket
    without SO_REUSEADDR, which other callers of this function try. Without this, two processes that
    call at the same moment get the same port.
    """
    with socket.socket() as listener:
        listener.settimeout(CONNECT_S)
        try:
            listener.bind(("", number))
        except OSError:
            return False
        # From here on the port may be shared with sockets that have the option, too.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.listen(1)
        with socket.create_connection(("127.0.0.1", number), CONNECT_S):
            accepted, _ = listener.accept()
            accepted.close()  # the end that closes first is the one that stays in TIME_WAIT
    return True


AGAIN_S = 0.1


async def cancel_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks until all have ended, with or without an error.

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
