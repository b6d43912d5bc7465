"""Tests of the children of a pod: the supervisor learns of a child's end exactly once.

It does not matter how the child ends.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from services.trainer.pod import children
from services.trainer.pod.children import Child
from services.trainer.protocol import (
    Assignment,
    Begin,
    ChildEvent,
    Failed,
    Line,
    Prepared,
    Started,
    encode_line,
)
from tests.trainer.builders import assignment

NOBODY = 1 << 22  # above every process id


class SilentServer:
    """A fork server that forks nothing: the test sends the child's events."""

    is_alive = True

    def spawn(self, channel: socket.socket) -> None:
        self.channel = channel

    def close(self) -> None:
        """Do nothing: there is no process."""


class Parent:
    """A child, and the events and ends of it that its supervisor receives."""

    def __init__(self, folder: Path) -> None:
        self.server = SilentServer()
        self.words: list[ChildEvent] = []
        self.ends = 0
        self.child = Child(_assignment(folder), self.server, self._on_word, self._on_end)  # type: ignore[arg-type]

    def _on_word(self, word: ChildEvent) -> None:
        self.words.append(word)

    def _on_end(self) -> None:
        self.ends += 1

    def hears(self, *words: Line) -> None:
        for word in words:
            self.server.channel.sendall(encode_line(word))

    def loses_it(self, having_read: bool = True) -> None:
        if having_read:
            self.server.channel.recv(1 << 16)
        self.server.channel.close()

    async def listens(self) -> None:
        async with asyncio.timeout(60):
            await self.child.listen()


def _assignment(folder: Path) -> Assignment:
    return assignment(cluster={}, program="net.py", checkpoint_dir=str(folder))


async def test_events_of_a_child_arrive_in_order(tmp_path: Path) -> None:
    parent = Parent(tmp_path)
    parent.hears(Started(pid=NOBODY), Prepared(seconds=1.0), Prepared(seconds=2.0))
    parent.loses_it()

    await parent.listens()

    assert parent.words == [Prepared(seconds=1.0), Prepared(seconds=2.0)]
    assert parent.ends == 1 and parent.child.gone.is_set()


async def test_a_child_that_dies_with_an_unread_order_has_exited(
    tmp_path: Path,
) -> None:
    parent = Parent(tmp_path)
    parent.loses_it(having_read=False)

    await parent.listens()

    assert parent.ends == 1 and parent.child.gone.is_set()


async def test_no_event_arrives_from_an_ended_child(tmp_path: Path) -> None:
    parent = Parent(tmp_path)
    parent.child.end()
    parent.hears(Prepared(seconds=1.0))
    parent.loses_it()

    await parent.listens()

    assert parent.words == [] and parent.ends == 0 and parent.child.gone.is_set()


async def test_an_order_to_a_dead_child_is_ignored(tmp_path: Path) -> None:
    parent = Parent(tmp_path)
    parent.loses_it()
    await parent.listens()

    parent.child.send(Begin())


async def test_an_invalid_event_line_is_ignored(tmp_path: Path) -> None:
    parent = Parent(tmp_path)
    for text in (
        b"\xff\n",
        b"{}\n",
        b"null\n",
        b'{"line": "prepared"}\n',
        b"x" * (children.LINE_LIMIT // 8) + b"\n",
    ):
        parent.server.channel.sendall(text)
    parent.hears(Prepared(seconds=1.0), Failed(cause="it was the program"))
    parent.loses_it()

    await parent.listens()

    assert (
        parent.words == [Prepared(seconds=1.0), Failed(cause="it was the program")]
        and parent.ends == 1
    )


async def test_an_event_line_without_an_end_is_ignored(tmp_path: Path) -> None:
    parent = Parent(tmp_path)
    listens = asyncio.create_task(parent.listens())
    await asyncio.to_thread(parent.server.channel.sendall, b"x" * (3 * children.LINE_LIMIT) + b"\n")
    parent.hears(Prepared(seconds=1.0))
    parent.loses_it()

    await listens

    assert parent.words[0] == Prepared(seconds=1.0) and parent.ends == 1


async def test_the_failure_of_a_crashed_child_is_read_from_its_last_output(
    tmp_path: Path,
) -> None:
    parent = Parent(tmp_path)
    parent.hears(Started(pid=NOBODY))
    parent.server.channel.sendall(
        b'Fatal Python error: Aborted\n\nStack (most recent call first):\n  File "net.py"\n'
    )
    parent.loses_it()

    await parent.listens()

    (failed,) = parent.words
    assert (
        isinstance(failed, Failed)
        and not failed.peer
        and 'File "net.py"' in failed.cause
        and parent.ends == 1
    )
