"""The two ports of a task, held from the moment they are announced.

Free ones come from below the range that the kernel gives to outgoing connections. A socket that is bound but does not
listen keeps each from everybody who asks politely, while TensorFlow's server, which binds with SO_REUSEADDR as this one
does, may still listen there.
"""

from __future__ import annotations

import random
import socket

FREE = range(20_000, 32_000)


class Ports:
    """`pair` is "first,second", or "0,0" for free ones; `numbers` are the two."""

    def __init__(self, pair: str) -> None:
        first, second = (int(number) for number in pair.split(","))
        self._held: list[socket.socket] = []
        self.numbers = (first, second) if first and second else (self._hold(), self._hold())

    def _hold(self) -> int:
        for number in random.sample(FREE, len(FREE)):
            if held := _bound(number):
                self._held.append(held)
                return number
        raise OSError(f"no free port in {FREE}")


def _bound(number: int) -> socket.socket | None:
    """A socket on a port that nobody holds; None where somebody does (found by asking without SO_REUSEADDR first)."""
    with socket.socket() as probe:
        try:
            probe.bind(("", number))
        except OSError:
            return None
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", number))
    return held
