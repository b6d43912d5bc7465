"""The NATS client, made to survive what it cannot decode.

The library's read loop ends at the first message whose subject or status line is no text, and the connection hangs
until its pings fail; the server then sends the same message again (nats-py 2.16; a test shows it). Here such a message
is handed on with its subject escaped and without its headers, for somebody to bury.
"""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path
from typing import Any

from nats.aio.client import Client, Credentials, RawCredentials
from nats.errors import Error as NatsError

from shared import permissions, tokens


class SturdyClient(Client):
    api = permissions.API
    """The prefix of JetStream's API."""
    veiled = False
    """Whether to speak over TLS only. The library would speak in the clear with a server that does not ask for it."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and self.veiled and not info.get("tls_required"):
            raise NatsError("nats: the server speaks no TLS, and we are to use it")
        await super()._process_info(info, initial_connection)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        try:
            await super()._process_msg(sid, subject, reply, data, headers)
        except (UnicodeDecodeError, IndexError):
            plain = subject.decode("utf-8", "backslashreplace").encode()
            await super()._process_msg(sid, plain, reply, data, b"")


async def dial(url: str, credentials: str = "", ca: str = "", **options: Any) -> SturdyClient:
    """As `nats.connect`.

    `credentials`: a file, or their text; with them answers go to inboxes that are this user's alone. `ca`: a file, or
    its text, with the certificates that the server's must be signed by; empty: the system's. With it, or with an
    address that begins with `tls://`, a server that speaks no TLS is refused.
    """
    client = SturdyClient()
    if credentials:
        name, user = _user(credentials)
        client.api = permissions.api(name)
        options |= {"user_credentials": user, "inbox_prefix": permissions.inbox(name)}
    client.veiled = bool(ca) or url.startswith("tls://")
    if ca:
        file, text = (None, ca) if _is_text(ca) else (ca, None)
        options["tls"] = ssl.create_default_context(cafile=file, cadata=text)
    try:
        await client.connect(url, **options)
    except NatsError:
        with contextlib.suppress(AssertionError):  # there was no address to connect to
            await client.close()  # else a refused connection's socket stays open
        raise
    return client


def _user(credentials: str) -> tuple[str, Credentials]:
    """The user's name, and how the library is to be told."""
    if _is_text(credentials):
        return tokens.name_in(credentials), RawCredentials(credentials)
    return tokens.name_in(Path(credentials).read_text()), credentials


def _is_text(given: str) -> bool:
    """Of what is else the name of a file."""
    return given.startswith(tokens.BEGIN[:5])
