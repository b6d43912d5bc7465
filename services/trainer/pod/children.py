"""Child processes of a pod and the ports that they use.

A child is forked by the fork server or started as a new process. The pod and the child exchange
lines over a socket pair (`protocol.py`).

A task holds its two ports from the moment it announces them. A socket that is bound and does not
listen keeps other programs from the port. TensorFlow's server binds with SO_REUSEADDR, as this
socket does, so it can still listen there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import structlog

from services.trainer.protocol import (
    Assignment,
    ChildEvent,
    Failed,
    Finished,
    Order,
    Started,
    crash_failure,
    decode_event,
    encode_line,
)
from shared.runtime.process import free_port

OnEvent = Callable[[ChildEvent], None]
OnExit = Callable[[], None]
LINE_LIMIT = 1 << 20
ODD_LIMIT = 1 << 16  # bytes of unknown output that are kept
logger = structlog.get_logger()


class ForkServer:
    """A process that has imported TensorFlow and forks children; see `worker/fork_server.py`."""

    def __init__(self, role: str) -> None:
        self._channel, theirs = socket.socketpair()
        self._process = _start_process("services.trainer.worker.fork_server", theirs, role)

    def spawn(self, channel: socket.socket) -> None:
        """Request a child at the other end of `channel`. It is forked as soon as TensorFlow is
        imported.
        """
        socket.send_fds(self._channel, [b"c"], [channel.fileno()])
        channel.close()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._channel.close()
        self._process.kill()
        self._process.wait()


class Child:
    """One child process from start to end. `end` is final and immediate; after it no event is
    delivered.
    """

    def __init__(
        self,
        assignment: Assignment,
        fork_server: ForkServer | None,
        on_event: OnEvent,
        on_exit: OnExit,
    ) -> None:
        self._on_event = on_event
        self._on_exit = on_exit
        self._program = assignment.program
        self._odd, self._explained = b"", False
        self._ours, theirs = socket.socketpair()
        self._ours.sendall(encode_line(assignment))
        self._fresh: subprocess.Popen[bytes] | None = None
        if fork_server is not None and fork_server.is_alive:
            fork_server.spawn(theirs)
        else:
            self._fresh = _start_process("services.trainer.worker.child", theirs)
        self._pid: int | None = self._fresh.pid if self._fresh else None
        self._ended = False
        self.gone = asyncio.Event()

    async def listen(self) -> None:
        """Deliver the child's events until it ends."""
        reader, self._writer = await asyncio.open_connection(sock=self._ours, limit=LINE_LIMIT)
        while text := await _read_line(reader):
            self._on_line(text)
        self._pid = None
        self._writer.close()
        self._reap_process()
        self.gone.set()
        if self._odd and not self._explained:
            self._deliver(crash_failure(self._odd.decode("utf-8", "replace"), self._program))
        if not self._ended:
            self._on_exit()

    def _on_line(self, text: bytes) -> None:
        event = decode_event(text)
        if isinstance(event, Started):
            self._on_started(event.pid)
        elif event is not None:
            self._deliver(event)
        else:
            self._keep_odd_line(text)

    def _keep_odd_line(self, text: bytes) -> None:
        """Keep a line that is no event: it may be the child's last output."""
        if not self._odd:
            logger.warning("OddLine", pid=self._pid, text=text[:200].decode("utf-8", "replace"))
        self._odd = (self._odd + text)[:ODD_LIMIT]

    def _deliver(self, event: ChildEvent) -> None:
        self._explained = self._explained or isinstance(event, Failed | Finished)
        if not self._ended:
            self._on_event(event)

    def _on_started(self, pid: int) -> None:
        self._pid = pid
        if self._ended:
            self._kill()

    @property
    def pid(self) -> int | None:
        return self._pid

    def send(self, order: Order) -> None:
        with contextlib.suppress(OSError):
            self._writer.write(encode_line(order))

    def end(self) -> None:
        self._ended = True
        self._kill()

    def _kill(self) -> None:
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _reap_process(self) -> None:
        if self._fresh is not None:
            self._fresh.wait()


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    """Return the next line; empty when the child is gone, even if it has not read all orders."""
    try:
        return await reader.readline()
    except ConnectionResetError:
        return b""
    except ValueError:
        return b"(a line that has no end)\n"


def _start_process(module: str, theirs: socket.socket, *words: str) -> subprocess.Popen[bytes]:
    handle = theirs.fileno()
    os.set_inheritable(handle, True)
    process = subprocess.Popen(
        [sys.executable, "-m", module, str(handle), *words], pass_fds=[handle]
    )
    theirs.close()
    return process


class Ports:
    """`pair` is "first,second", or "0,0" for free ports; `numbers` are the two."""

    def __init__(self, pair: str) -> None:
        first, second = (int(number) for number in pair.split(","))
        self._held: list[socket.socket] = []
        self.numbers = (
            (first, second)
            if first and second
            else (self._hold_free_port(), self._hold_free_port())
        )

    def _hold_free_port(self) -> int:
        number = free_port()
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", number))
        self._held.append(held)
        return number
