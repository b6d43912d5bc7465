"""Ports of this machine that nobody holds.

They come from below the range that the kernel gives to outgoing connections: one of those can be
somebody's by the time that a server wants it, or be answered by the very connection that looks
whether the server is there yet.
"""

from __future__ import annotations

import itertools
import random
import socket

FREE = range(20_000, 32_000)

_in_turn = itertools.islice(itertools.cycle(FREE), random.randrange(len(FREE)), None)
"""From a place of this process's own, and none again soon: who was there may still be looked
for.
"""


def free_port() -> int:
    """Raises `OSError` where there is none."""
    for number in itertools.islice(_in_turn, len(FREE)):
        if is_free(number):
            return number
    raise OSError(f"no free port in {FREE}")


def is_free(number: int) -> bool:
    """Whether nobody holds it; who is bound to it and does not listen holds it, too."""
    with socket.socket() as probe:
        try:
            probe.bind(("", number))
        except OSError:
            return False
    return True
