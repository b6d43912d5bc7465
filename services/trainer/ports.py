"""The two ports of a task, held from the moment they are announced.

A socket that is bound but does not listen keeps each from everybody who asks politely, while
TensorFlow's server, which binds with SO_REUSEADDR as this one does, may still listen there.
"""

from __future__ import annotations

import socket

from shared.runtime.process import free_port


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
