"""The NATS client, made to survive what it cannot decode, and to say at once what will never be
answered.

The library's read loop ends at the first message whose subject or status line is no text, and the
connection hangs until its pings fail; the server then sends the same message again (nats-py 2.16; a
test shows it). Here such a message is handed on with its subject escaped and without its headers,
for somebody to bury.

Who asks for what he may not is told of it beside the request, and the library lets him wait until
it times out; so it does with all that was asked on a connection that has broken. Here the waiting
ends with `Refused`, or with `Lost`.

Patience with a bus that is away: what it did not answer is asked again, and whoever runs us is
told. Edge.

Only for what may be asked twice: reading. What is said has an id of its own, by which the server
takes it once.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog
from nats.aio.client import DEFAULT_BUFFER_SIZE, Client, Credentials, RawCredentials
from nats.aio.msg import Msg
from nats.errors import (
    BadSubjectError,
    ConnectionClosedError,
    ConnectionDrainingError,
    FlushTimeoutError,
    MaxPayloadError,
)
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeout
from nats.js.errors import APIError, ServiceUnavailableError

from shared.auth import authority, permissions
from shared.runtime.log import RateLimitedWarning

REFUSAL = re.compile(r'permissions violation for publish to "(.*)"')
"""What the server says beside a request; the library has made its letters small."""


class PermanentError(NatsError):
    """No later try can end otherwise."""


class Refused(PermanentError):
    """The server does not let these credentials say this; no later try can end otherwise."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"these credentials may not publish to {subject}")


class ConnectionLost(NatsError):
    """The connection broke before the answer came: what was asked for may have been done."""


class ResilientClient(Client):
    api = permissions.API
    """The prefix of JetStream's API."""
    user = ""
    """The name in our credentials; empty: we have none."""
    consumer_names: Sequence[str] = ()
    """The only names that our consumers of orders and facts may have; none: any."""
    require_tls = False
    """Whether to speak over TLS only. The library would speak in the clear with a server that does
    not ask for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._open_requests: dict[
            asyncio.Future[Msg], str
        ] = {}  # answers that are waited for, and what was asked
        self.on_break: set[Callable[[], None]] = set()  # to be called when the connection breaks
        self._known_addresses: dict[
            str, str
        ] = {}  # by host and port of a server: its last address, if it had a name

    async def flush(self, timeout: int = 10) -> None:
        """As the library's, which asks the server for an answer before it has sent what waits: up
        to s each.
        """
        try:
            await asyncio.wait_for(self._flush_pending(force_flush=True), timeout)
        except TimeoutError as error:
            raise FlushTimeoutError from error
        await super().flush(timeout)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and self.require_tls:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise NatsError("nats: the server speaks no TLS, and we are to use it")
            info["tls_required"] = (
                True  # the library uses TLS only where the server does not do without
            )
        await super()._process_info(info, initial_connection)

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        try:
            await super()._process_msg(sid, subject, reply, data, headers)
        except (UnicodeDecodeError, IndexError):
            plain = subject.decode("utf-8", "backslashreplace").encode()
            await super()._process_msg(sid, plain, reply, data, b"")

    async def _request_new_style(
        self,
        subject: str,
        payload: bytes,
        timeout: float = 1,
        headers: dict[str, Any] | None = None,
    ) -> Msg:
        """As the library's; the answer may also be that there will be none."""
        if self.is_draining_pubs:
            raise ConnectionDrainingError
        if not self._resp_sub_prefix:
            await self._init_request_sub()
        assert self._resp_sub_prefix
        token = self._nuid.next().decode()
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._resp_map[token], self._open_requests[answer] = answer, subject
        try:
            await self.publish(
                subject, payload, reply=f"{self._resp_sub_prefix.decode()}{token}", headers=headers
            )
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError as error:
            raise NatsTimeout from error
        finally:
            del self._resp_map[token], self._open_requests[answer]

    async def _process_err(self, err_msg: str) -> None:
        await super()._process_err(err_msg)
        if refused := REFUSAL.search(err_msg):
            for answer, subject in self._open_requests.items():
                if subject.lower() == refused[1] and not answer.done():
                    answer.set_exception(Refused(subject))

    async def _connect_to_server(self, s: Any) -> None:
        """As the library's; who was cancelled at the moment at which he was refused is cancelled
        all the same.

        Before Python 3.12 `asyncio.wait_for` forgets it (CPython issue 86296), and reconnecting
        would never end. The socket of the try before, to a server that said nothing, is closed; the
        library forgets it.
        """
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]
        try:
            await self._connect_by_name_or_address(s)
        except OSError:
            if (task := asyncio.current_task()) and task.cancelling():
                raise asyncio.CancelledError from None
            raise

    async def _connect_by_name_or_address(self, server: Any) -> None:
        """Connect to a server; if its name cannot be resolved now, to the address that it had last.

        The certificate is checked against the name in both cases, because the server's entry stays
        as it is.
        """
        uri = server.uri
        try:
            await super()._connect_to_server(server)
        except (socket.gaierror, TimeoutError):
            address = self._known_addresses.get(uri.netloc)
            if address is None or self._transport is None:
                raise
            host = f"[{address}]" if ":" in address else address
            there = uri._replace(netloc=f"{host}:{uri.port}")
            await self._transport.connect(
                there, DEFAULT_BUFFER_SIZE, self.options["connect_timeout"]
            )
        else:
            self._remember_address(uri)

    def _remember_address(self, uri: Any) -> None:
        """Keep the address of the server that is connected. A transport over WebSocket does not
        tell it.
        """
        writer = getattr(self._transport, "_io_writer", None)
        peer = writer.get_extra_info("peername") if writer is not None else None
        if peer:
            self._known_addresses[uri.netloc] = peer[0]

    async def _attempt_reconnect(self) -> None:
        for answer in self._open_requests:
            if not answer.done():
                answer.set_exception(ConnectionLost("nats: the connection broke"))
        for told in self.on_break:
            told()
        await super()._attempt_reconnect()


async def connect_client(
    url: str, credentials: str = "", ca: str = "", **options: Any
) -> ResilientClient:
    """As `nats.connect`.

    `credentials`: a file, or their text; with them answers go to inboxes that are this user's
    alone. `ca`: a file, or its text, with the certificates that the server's must be signed by;
    empty: the system's. With it, or with an address that begins with `tls://`, a server that speaks
    no TLS is refused.
    """
    client = ResilientClient()
    if credentials:
        claimed, user = _credentials_option(credentials)
        name = authority.user_name(claimed)
        client.api, client.user = permissions.api_prefix(name), name
        client.consumer_names = _consumer_names(name, authority.user_tags(claimed))
        options |= {"user_credentials": user, "inbox_prefix": permissions.inbox_prefix(name)}
    client.require_tls = bool(ca) or url.startswith("tls://")
    if ca:
        file, text = (None, ca) if _is_text(ca) else (ca, None)
        options["tls"] = ssl.create_default_context(cafile=file, cadata=text)
    try:
        await client.connect(url, **options)
    except (NatsError, asyncio.CancelledError):
        with contextlib.suppress(AssertionError):  # there was no address to connect to
            await (
                client.close()
            )  # else the socket of a connection that is refused, or given up, stays open
        raise
    return client


def _credentials_option(credentials: str) -> tuple[str, Credentials]:
    """Return the text of credentials, and how the library is to be told of them."""
    if _is_text(credentials):
        return credentials, RawCredentials(credentials)
    return Path(credentials).read_text(), credentials


def _consumer_names(user: str, tags: Sequence[str]) -> list[str]:
    kind, _, key = user.partition(".")
    if kind == permissions.SUBMITTER:
        return permissions.submitter_consumers(key)
    if kind != permissions.JOB:
        return []
    namespace, _, job = key.partition(".")
    prefix = f"{permissions.READERS_TAG}:"
    blocks = [tag.removeprefix(prefix) for tag in tags if tag.startswith(prefix)]
    return [name for block in blocks for name in permissions.reader_names(namespace, job, block)]


def _is_text(given: str) -> bool:
    """Of what is else the name of a file."""
    return given.startswith(authority.BEGIN[:5])


log = structlog.get_logger()
T = TypeVar("T")

RETRY_S = 0.2
"""From one try to the next: of all that is tried again, the connection too."""
PERMANENT_ERRORS = (
    APIError,
    BadSubjectError,
    MaxPayloadError,
    ConnectionClosedError,
    PermanentError,
)


SERVER_ERROR = 500


def is_transient(error: NatsError) -> bool:
    """Whether a later try may end otherwise. A server without a leader, say, answers that it is not
    available yet.
    """
    return isinstance(error, ServiceUnavailableError) or not isinstance(error, PERMANENT_ERRORS)


def is_outage(error: BaseException) -> bool:
    """Return whether an error says no more than that the bus cannot do it now: nothing is wrong
    with the request.

    With its errors of 500 and above a server says that it has no leader, or no room.
    """
    if isinstance(error, APIError) and (error.code or 0) >= SERVER_ERROR:
        return True
    return isinstance(error, NatsError) and is_transient(error)


async def retry_until_answered(
    client: ResilientClient, question: Callable[[], Awaitable[T]], warning: RateLimitedWarning
) -> T:
    """The answer, however long the server is away meanwhile; raises what no later try can heal."""
    while True:
        if not client.is_reconnecting:
            try:
                return await question()
            except NatsError as error:
                if not is_transient(error):
                    raise
                warning.warn_error("AnswerWaits", error)
        await asyncio.sleep(RETRY_S)
