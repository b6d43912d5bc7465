"""The NATS client with workarounds for faults of nats-py, and retries of requests.

Every override and every use of a private name of nats-py is in this module. Each one names the
upstream fault, and the nats-py version from which it can be removed. Weir is tested with nats-py
2.16.0. When nats-py is updated: run tests/shared/bus/test_client.py, test_retry.py and test_tls.py
without the override.

`flush`: the library sends its ping before the messages that wait, so an answer takes two timeouts.
    Remove from: none yet.
`_process_info`: it continues without TLS if the server does not require TLS. None yet.
`_process_msg`: its read loop ends at a subject or status line that is not text; the connection
    hangs until pings fail, and the server then sends the same message again. None yet.
`_request_new_style`, `_process_err`: a request without permission waits for its timeout. None yet.
`_attempt_reconnect`: a request on a broken connection waits for its timeout. None yet.
`_connect_to_server`: it forgets a cancellation that comes together with a refused connection
    (CPython issue 86296, fixed in Python 3.12), leaves a socket open, and cannot connect while the
    name of a server is not resolved. None yet.
`take_buffered`, `put_status`: `next_msg` creates a task for each message, and does not end when the
    connection breaks. None yet.
`create_named_consumer`: `add_consumer` changes the consumer of another user that has the same name.
    None yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from nats.aio.client import DEFAULT_BUFFER_SIZE, Client, Credentials, RawCredentials
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import (
    BadSubjectError,
    ConnectionClosedError,
    ConnectionDrainingError,
    FlushTimeoutError,
    MaxPayloadError,
)
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, ConsumerInfo
from nats.js.errors import APIError, ServiceUnavailableError

from shared.auth import authority, permissions
from shared.runtime.log import RateLimitedWarning

T = TypeVar("T")

REFUSAL = re.compile(r'permissions violation for publish to "(.*)"')
"""The error that the server sends, apart from any answer, if a message or request is not permitted.
The library converts it to lower case.
"""
RETRY_S = 0.2
"""Pause between two tries, of requests and of connections."""
SERVER_ERROR = 500


class PermanentError(NatsError):
    """An error that a retry cannot resolve."""


class Refused(PermanentError):
    """The server does not let these credentials publish to this subject."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"these credentials may not publish to {subject}")


class ConnectionLost(NatsError):
    """The connection broke before the answer arrived: the request may have been carried out."""


STILL_STORING = 10158
"""Error code: the leader has this message already, but its replicas have not confirmed it."""
PERMANENT_ERRORS = (
    APIError,
    BadSubjectError,
    MaxPayloadError,
    ConnectionClosedError,
    PermanentError,
)


class ResilientClient(Client):
    api = permissions.API
    """The prefix of JetStream's API."""
    user = ""
    """The name in the credentials; empty: there are none."""
    consumer_names: Sequence[str] = ()
    """The only names that consumers of orders and facts may have; empty: any name."""
    require_tls = False
    """Refuse a server that does not speak TLS."""

    def __init__(self) -> None:
        super().__init__()
        self.on_break: set[Callable[[], None]] = set()  # called when the connection breaks
        self._open_requests: dict[asyncio.Future[Msg], str] = {}  # answer -> subject of the request
        self._known_addresses: dict[str, str] = {}  # host and port of a server -> its last address

    async def flush(self, timeout: int = 10) -> None:
        """Send the messages that wait, then wait for an answer of the server; each at most
        `timeout` seconds.
        """
        try:
            await asyncio.wait_for(self._flush_pending(force_flush=True), timeout)
        except TimeoutError as error:
            raise FlushTimeoutError from error
        await super().flush(timeout)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Use TLS if it is required here, also where the server does not require it."""
        if initial_connection and self.require_tls:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise NatsError("nats: the server has no TLS, and TLS is required here")
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        """Deliver a message that cannot be decoded with its subject escaped and without headers, so
        that it becomes a dead letter.
        """
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
        """Send a request and wait for the answer. Raises `Refused` and `ConnectionLost`
        immediately.
        """
        if self.is_draining_pubs:
            raise ConnectionDrainingError
        if not self._resp_sub_prefix:
            await self._init_request_sub()
        assert self._resp_sub_prefix
        token = self._nuid.next().decode()
        inbox = f"{self._resp_sub_prefix.decode()}{token}"
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._resp_map[token] = answer
        self._open_requests[answer] = subject
        try:
            await self.publish(subject, payload, reply=inbox, headers=headers)
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError as error:
            raise NatsTimeout from error
        finally:
            del self._resp_map[token], self._open_requests[answer]

    async def _process_err(self, err_msg: str) -> None:
        """Fail the requests on a subject for which the server has refused permission."""
        await super()._process_err(err_msg)
        if refused := REFUSAL.search(err_msg):
            for answer, subject in self._open_requests.items():
                if subject.lower() == refused[1] and not answer.done():
                    answer.set_exception(Refused(subject))

    async def _attempt_reconnect(self) -> None:
        """Fail all open requests, then reconnect."""
        for answer in self._open_requests:
            if not answer.done():
                answer.set_exception(ConnectionLost("nats: the connection broke"))
        for callback in self.on_break:
            callback()
        await super()._attempt_reconnect()

    async def _connect_to_server(self, s: Any) -> None:
        """Connect to a server. A cancellation that arrives together with a refused connection is
        raised; else reconnecting would never end.

        Close the socket of the last try first: the library leaves it open if the server did not
        answer.
        """
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]
        try:
            await self._connect_by_name_or_address(s)
        except OSError:
            task = asyncio.current_task()
            if task and task.cancelling():
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
            uri = uri._replace(netloc=f"{host}:{uri.port}")
            timeout_s = self.options["connect_timeout"]
            await self._transport.connect(uri, DEFAULT_BUFFER_SIZE, timeout_s)
        else:
            self._remember_address(uri)

    def _remember_address(self, uri: Any) -> None:
        """Store the address of the connected server. A WebSocket transport does not provide it."""
        writer = getattr(self._transport, "_io_writer", None)
        peer = writer.get_extra_info("peername") if writer is not None else None
        if peer:
            self._known_addresses[uri.netloc] = peer[0]


def take_buffered(inbox: Subscription) -> Msg:
    """Return the next message of a subscription that has at least one."""
    return inbox._pending_queue.get_nowait()


def put_status(client: ResilientClient, inbox: Subscription, status: str) -> None:
    """Put a status message of our own behind the messages of a subscription."""
    inbox._pending_queue.put_nowait(Msg(_client=client, headers={"Status": status}))


async def create_named_consumer(
    client: ResilientClient, js: JetStreamContext, stream: str, name: str, config: ConsumerConfig
) -> ConsumerInfo:
    """Create a consumer with one filter; raise `APIError` if there is another one of this name."""
    request = {
        "stream_name": stream,
        "action": "create",
        "config": replace(config, name=name).as_dict(),
    }
    subject = f"{client.api}.CONSUMER.CREATE.{stream}.{name}.{config.filter_subject}"
    answer = await js._api_request(subject, msgspec.json.encode(request))
    info: ConsumerInfo = ConsumerInfo.from_response(answer)
    return info


# ---------------------------------------------------------------- connecting


async def connect_client(
    url: str, credentials: str = "", ca: str = "", **options: Any
) -> ResilientClient:
    """Connect as `nats.connect` does.

    `credentials`: a file, or their text; with them answers go to inboxes that only this user may
    read. `ca`: a file, or its text, with the certificates that sign the server's; empty: the
    system's. With `ca`, or if the address begins with `tls://`, a server without TLS is refused.
    """
    client = ResilientClient()
    if credentials:
        text, option = _credentials_option(credentials)
        name = authority.user_name(text)
        client.api = permissions.api_prefix(name)
        client.user = name
        client.consumer_names = _consumer_names(name, authority.user_tags(text))
        options["user_credentials"] = option
        options["inbox_prefix"] = permissions.inbox_prefix(name)
    client.require_tls = bool(ca) or url.startswith("tls://")
    if ca:
        file, certificates = (None, ca) if _is_text(ca) else (ca, None)
        options["tls"] = ssl.create_default_context(cafile=file, cadata=certificates)
    try:
        await client.connect(url, **options)
    except (NatsError, asyncio.CancelledError):
        # Without this the socket of a refused connection stays open. The assertion fails if there
        # was no address to connect to.
        with contextlib.suppress(AssertionError):
            await client.close()
        raise
    return client


def _credentials_option(credentials: str) -> tuple[str, Credentials]:
    """Return the text of credentials, and the option for the library."""
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
    names = []
    for tag in tags:
        if tag.startswith(prefix):
            names += permissions.reader_names(namespace, job, tag.removeprefix(prefix))
    return names


def _is_text(file_or_text: str) -> bool:
    """Return True for the text of credentials or certificates, and False for the name of a file."""
    return file_or_text.startswith(authority.BEGIN[:5])


# ---------------------------------------------------------------- retries


def is_transient(error: NatsError) -> bool:
    """Return True if a retry may succeed. A server without a leader, for example, answers that it
    is not available yet.
    """
    # A KeyValueError has no `err_code`.
    if getattr(error, "err_code", None) == STILL_STORING:
        return True
    return isinstance(error, ServiceUnavailableError) or not isinstance(error, PERMANENT_ERRORS)


def is_outage(error: BaseException) -> bool:
    """Return True if the bus is the cause of an error, and the request is not.

    With codes of 500 and above a server says that it has no leader, or no room.
    """
    if isinstance(error, APIError) and (error.code or 0) >= SERVER_ERROR:
        return True
    return isinstance(error, NatsError) and is_transient(error)


async def retry_until_answered(
    client: ResilientClient, request: Callable[[], Awaitable[T]], warning: RateLimitedWarning
) -> T:
    """Return the answer to a read-only request. Retry as long as the bus is away. Raises permanent
    errors.

    Messages are published by `Publisher`: the server stores each one once, by its id.
    """
    while True:
        if not client.is_reconnecting:
            try:
                return await request()
            except NatsError as error:
                if not is_transient(error):
                    raise
                warning.warn_error("AnswerWaits", error)
        await asyncio.sleep(RETRY_S)
