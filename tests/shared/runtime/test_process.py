"""Ports that nobody else can have."""

import socket
from pathlib import Path

from shared.runtime.process import FREE, free_port, is_port_free


def test_free_ports_are_distinct_and_outside_the_ephemeral_range() -> None:
    found = [free_port() for _ in range(200)]

    assert len(set(found)) == 200 and set(found) <= set(FREE)
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    assert not given.exists() or max(found) < int(given.read_text().split()[0])


def test_a_bound_port_is_not_free() -> None:
    with socket.socket() as held:
        held.bind(("", number := free_port()))
        assert not is_port_free(number)
    assert is_port_free(number)
