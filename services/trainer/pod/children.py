"""Children of a pod: processes, born by a fork of the nursery or freshly, spoken with over a socket
pair.

The two ports of a task, held from the moment they are announced.

A socket that is bound but does not listen keeps each from everybody who asks politely, while
TensorFlow's server, which binds with SO_REUSEADDR as this one does, may still listen there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable

import structlog

from services.trainer.protocol import (
    Assignment,
    Born,
    Failed,
    Finished,
    Order,
    Word,
    heard,
    last_words,
    line,
)
from shared.runtime.process import free_port

OnWord = Callable[[Word], Awaitable[None]]
OnEnd = Callable[[], Awaitable[None]]
LINE_LIMIT = 1 << 20
ODD_LIMIT = 1 << 16  # bytes that are kept of what is no word
logger = structlog.get_logger()


class Nursery:
    """A process that has imported TensorFlow and forks children; see `nursery.py`."""

    def __init__(self, role: str) -> None:
        self._channel, theirs = socket.socketpair()
        self._process = _spawn("services.trainer.worker.fork_server", theirs, role)

    def bear(self, channel: socket.socket) -> None:
        """Ask for a child at the other end of `channel`; it is forked as soon as TensorFlow is
        imported.
        """
        socket.send_fds(self._channel, [b"c"], [channel.fileno()])
        channel.close()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._channel.close()
        self._process.kill()
        self._process.wait()


class Child:
    """One child, from birth to end. `end` is final and at once; after it nothing more is heard."""

    def __init__(
        self, assignment: Assignment, nursery: Nursery | None, on_word: OnWord, on_end: OnEnd
    ) -> None:
        self._on_word = on_word
        self._on_end = on_end
        self._program = assignment.program
        self._odd, self._explained = b"", False
        self._ours, theirs = socket.socketpair()
        self._ours.sendall(line(assignment))
        self._fresh: subprocess.Popen[bytes] | None = None
        if nursery is not None and nursery.alive:
            nursery.bear(theirs)
        else:
            self._fresh = _spawn("services.trainer.worker.child", theirs)
        self._pid: int | None = self._fresh.pid if self._fresh else None
        self._ended = False
        self.gone = asyncio.Event()

    async def listen(self) -> None:
        """Hear the child until it ends."""
        reader, self._writer = await asyncio.open_connection(sock=self._ours, limit=LINE_LIMIT)
        while text := await _line(reader):
            await self._hear(text)
        self._pid = None
        self._writer.close()
        self._reap()
        self.gone.set()
        if self._odd and not self._explained:
            await self._tell(last_words(self._odd.decode("utf-8", "replace"), self._program))
        if not self._ended:
            await self._on_end()

    async def _hear(self, text: bytes) -> None:
        word = heard(text)
        if isinstance(word, Born):
            self._born(word.pid)
        elif word is not None:
            await self._tell(word)
        else:
            self._keep(text)

    def _keep(self, text: bytes) -> None:
        """What is no word may be the child's last words."""
        if not self._odd:
            logger.warning("OddLine", pid=self._pid, text=text[:200].decode("utf-8", "replace"))
        self._odd = (self._odd + text)[:ODD_LIMIT]

    async def _tell(self, word: Word) -> None:
        self._explained = self._explained or isinstance(word, Failed | Finished)
        if not self._ended:
            await self._on_word(word)

    def _born(self, pid: int) -> None:
        self._pid = pid
        if self._ended:
            self._kill()

    @property
    def pid(self) -> int | None:
        return self._pid

    def tell(self, order: Order) -> None:
        with contextlib.suppress(OSError):
            self._writer.write(line(order))

    def end(self) -> None:
        self._ended = True
        self._kill()

    def _kill(self) -> None:
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _reap(self) -> None:
        if self._fresh is not None:
            self._fresh.wait()


async def _line(reader: asyncio.StreamReader) -> bytes:
    """The next line; none when the child is gone, also where it had not read all that it was
    told.
    """
    try:
        return await reader.readline()
    except ConnectionResetError:
        return b""
    except ValueError:
        return b"(a line that has no end)\n"


def _spawn(module: str, theirs: socket.socket, *words: str) -> subprocess.Popen[bytes]:
    handle = theirs.fileno()
    os.set_inheritable(handle, True)
    process = subprocess.Popen(
        [sys.executable, "-m", module, str(handle), *words], pass_fds=[handle]
    )
    theirs.close()
    return process


class Ports:
    """`pair` is "first,second", or "0,0" for free ones; `numbers` are the two."""

    def __init__(self, pair: str) -> None:
        first, second = (int(number) for number in pair.split(","))
        self._held: list[socket.socket] = []
        self.numbers = (first, second) if first and second else (self._hold(), self._hold())

    def _hold(self) -> int:
        number = free_port()
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", number))
        self._held.append(held)
        return number
