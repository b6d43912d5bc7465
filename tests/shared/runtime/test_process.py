"""Ports that nobody else can have."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shared.runtime.process import FREE, free_port


def test_free_ports_are_distinct_and_outside_the_ephemeral_range() -> None:
    found = [free_port() for _ in range(200)]

    assert len(set(found)) == 200 and set(found) <= set(FREE)
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    assert not given.exists() or max(found) < int(given.read_text().split()[0])


def test_a_free_port_is_reserved_from_other_processes_but_not_from_a_server() -> None:
    number = free_port()
    with socket.socket() as other, pytest.raises(OSError):
        other.bind(("", number))
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("", number))
        server.listen()


def test_processes_that_ask_at_the_same_time_get_different_ports() -> None:
    """They begin at the same port, which by chance happens now and then."""
    script = "import random; random.randrange = lambda size: 0\n"
    script += "from shared.runtime.process import free_port\n"
    script += "print(*[free_port() for _ in range(50)])"
    asking = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    found = [number for each in asking for number in each.communicate(timeout=60)[0].split()]
    assert len(found) == 200 and len(set(found)) == 200
