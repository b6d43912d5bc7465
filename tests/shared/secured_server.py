"""A nats-server that requires credentials, and visitors that try what they may do."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from nats.errors import Error as NatsError

from shared.auth import authority, permissions
from shared.bus import bus as wire
from shared.bus import programs
from shared.bus.bus import Bus
from shared.bus.client import ResilientClient, connect_client
from tests.conftest import NatsServer

NOW_S = time.time()
KEYS = authority.create_keys(os.urandom)
DIGEST, OTHER_DIGEST = "sha256-" + "a" * 64, "sha256-" + "b" * 64
NAMESPACES = ("team-a", "team-b")
"""Namespaces that are provisioned, as is `default`."""


def credentials(user: str, key: str = "team-a.mine", digest: str = DIGEST) -> str:
    """Return credentials of a user. Those of a job or a submitter are for `key`."""
    namespace, _, job = key.partition(".")
    if user == permissions.JOB:
        meta = programs.meta_token(digest)
        return authority.job_credentials(
            authority.job_signer(KEYS), namespace, job, meta, os.urandom(32), NOW_S
        )
    if user == permissions.SUBMITTER:
        return authority.submitter_credentials(KEYS, namespace, os.urandom(32), NOW_S)
    return authority.user_credentials(KEYS, user, os.urandom(32), NOW_S)


def unlimited() -> str:
    """Return credentials of an administrator inside, without any limit but those of nats-server."""
    anything = permissions.Permissions(publish=(">",), subscribe=(">",))
    return authority._credentials(
        KEYS.inside, "root", authority._user_limits(anything), os.urandom(32), NOW_S
    )


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[NatsServer]:
    """Run a server that requires credentials, with all streams and buckets."""
    config = folder / "auth.conf"
    config.write_text(authority.server_config(KEYS, NOW_S))
    server = NatsServer(folder / "nats", "-c", str(config))
    await server.start()
    setup = await wire.connect(server.url, "setup", credentials(permissions.SETUP))
    await setup.create(namespaces=NAMESPACES)
    await setup.close()
    yield server
    await server.kill()


class Visitor:
    """A connection that records the refusals of the server."""

    def __init__(self, client: ResilientClient, refusals: list[str]) -> None:
        self.client, self.refusals = client, refusals
        self.bus = Bus(client, "visitor")

    async def may_say(self, subject: str, body: bytes = b"", reply: str = "") -> bool:
        return await self._unrefused(subject, self.client.publish(subject, body, reply=reply))

    async def may_subscribe(self, subject: str) -> bool:
        return await self._unrefused(subject, self.client.subscribe(subject))

    async def asked(self, subject: str, body: Any = None, within_s: float = 60.0) -> dict[str, Any]:
        """Return the answer of JetStream's API."""
        answer = await self.client.request(
            subject, msgspec.json.encode(body) if body else b"", timeout=within_s
        )
        return dict(msgspec.json.decode(answer.data))

    async def _unrefused(self, subject: str, trying: Any) -> bool:
        before = len(self.refusals)
        await trying
        for _ in range(2):  # the first answer may be for a ping of the library itself
            await self.client.flush(60)
        return not [
            text for text in self.refusals[before:] if f'"{subject.lower()}"' in text.lower()
        ]


@asynccontextmanager
async def visitor(url: str, text: str) -> AsyncIterator[Visitor]:
    refusals: list[str] = []

    async def note(error: Exception) -> None:
        refusals.append(str(error))

    client = await connect_client(
        url, text, error_cb=note, allow_reconnect=False, connect_timeout=60
    )
    try:
        yield Visitor(client, refusals)
    finally:
        await client.close()


async def is_let_in(url: str, text: str) -> bool:
    try:
        async with visitor(url, text):
            return True
    except NatsError:
        return False
