"""Several nats-servers on this machine that form one cluster, so that the bus survives the loss of
one. Edge.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

from nats.errors import Error as NatsError

from shared.bus.bus import Bus

CLUSTER = "weir"
AGAIN_S = 0.2
SYNC_INTERVAL = "500ms"
"""How often a server writes to its disk what it has acknowledged; `deploy/base/nats.conf` has the
same.

The server's timer starts again when a write has ended. So a power failure of the whole bus loses at
most this time and one write: within 1 s, for every stream. The server's default is two minutes. It
has one setting for all streams.
"""


def server_config(auth_file: str) -> str:
    """Return the configuration of a server; `auth_file`: whom it believes, relative to the folder
    of this file.
    """
    return f'jetstream {{ sync_interval: {SYNC_INTERVAL} }}\ninclude "{auth_file}"\n'


def server_name(number: int) -> str:
    """Return the name of a server: of the first, `nats`."""
    return "nats" if number == 0 else f"nats-{number + 1}"


def route_options(ports: Sequence[int]) -> list[list[str]]:
    """Return the options of each server that make it one of a cluster; `ports`: where each listens
    to the others.

    A server alone needs none.
    """
    if len(ports) == 1:
        return [[]]
    routes = ",".join(f"nats://127.0.0.1:{port}" for port in ports)
    return [
        [
            "-n",
            server_name(n),
            "--cluster_name",
            CLUSTER,
            "--cluster",
            f"nats://127.0.0.1:{port}",
            "--routes",
            routes,
        ]
        for n, port in enumerate(ports)
    ]


async def create_streams(
    connection: Bus, servers: int, namespaces: Iterable[str], within_s: float
) -> None:
    """Create all streams with a replica on each server.

    Servers that have just started elect a leader first, and know of each other only a little later;
    until then they do not answer, or have no place for a replica. So with several it is tried again
    until `within_s` has passed.
    """
    end_s = time.monotonic() + within_s
    namespaces = tuple(namespaces)
    while True:
        try:
            await connection.create(replicas=servers, namespaces=namespaces)
            return
        except NatsError:
            if servers == 1 or time.monotonic() > end_s:
                raise
        await asyncio.sleep(AGAIN_S)
