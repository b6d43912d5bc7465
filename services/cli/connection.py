"""Where NATS and Kubernetes are, and a command's life on the bus.

In this order: `--nats`; WEIR_NATS_URL; what a running `weir up` wrote below the current folder, or
below the nearest of those above it; NATS' usual address. Who we are says WEIR_NATS_CREDENTIALS,
else what `weir up` wrote for the server at that address. Kubernetes comes from where NATS came
from: by its URL from `weir up`, otherwise by kubeconfig.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from nats.errors import Error as NatsError
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError, ServiceUnavailableError

from services.cli.command_line import NATS_URL, Arguments
from services.console.trouble import WRONG_USE, Trouble
from shared.auth.keyring import credentials_file
from shared.bus.bus import Bus
from shared.bus.client import Refused, ResilientClient, connect_client
from shared.bus.publisher import is_no_room
from shared.bus.tail import NotAdmitted, TooManyReaders
from shared.runtime.process import cancel_tasks

FILE = Path(".weir/connection.json")
USUAL, KUBE = NATS_URL, "http://127.0.0.1:8001"
CONNECT_S, RETRY_S = 5.0, 0.2
ELSEWHERE = (
    "Is it running? If not, start it with `weir up`; it is found from its own folder and those below, "
    "elsewhere give --nats URL or set WEIR_NATS_URL."
)
CREDENTIALS = (
    "Set WEIR_NATS_CREDENTIALS=FILE; for a `weir up` on this machine it is "
    "FOLDER/.weir/credentials/operator.creds, where FOLDER is the one in which it was started."
)
OTHERS = "Who may see one namespace alone names it: -n NAMESPACE. Other credentials: set WEIR_NATS_CREDENTIALS."
SOURCE = "weir-cli"
IN_ENVIRONMENT = {"nats_credentials": "WEIR_NATS_CREDENTIALS", "nats_ca": "WEIR_NATS_CA"}


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """Where a bus and its cluster are, and as whom to ask.

    `kubeconfig`: of `weir up`, with the token for `kube_url`; empty: the usual one. `pod_logs`:
    where `weir up` keeps what pods print. `limits`: the settings by which it limits jobs. `source`
    says who told us.
    """

    nats_url: str = USUAL
    kube_url: str = ""
    kubeconfig: str = ""
    pod_logs: str = ""
    limits: dict[str, str] = {}
    nats_credentials: str = ""
    nats_ca: str = ""
    source: str = "the usual address"

    @property
    def public_address(self) -> str:
        """The address without a password in it, and where it is from."""
        parts = urlsplit(self.nats_url)
        return f"{parts._replace(netloc=parts.netloc.rpartition('@')[2]).geturl()} ({self.source})"


def find_connection(given: str | None, environ: Mapping[str, str], folder: Path) -> Connection:
    url, source = (given, "--nats") if given else (environ.get("WEIR_NATS_URL"), "WEIR_NATS_URL")
    found = (
        _connection_at(url, source, folder) if url else _local_connection(folder) or Connection()
    )
    own = {field: environ[name] for field, name in IN_ENVIRONMENT.items() if name in environ}
    return msgspec.structs.replace(found, **own)


def _connection_at(url: str, source: str, folder: Path) -> Connection:
    """What `weir up` wrote says who we are there, if this is its server."""
    with contextlib.suppress(Trouble):
        known = _local_connection(folder)
        if known and known.nats_url == url:
            return msgspec.structs.replace(
                known, kube_url="", kubeconfig="", pod_logs="", source=source
            )
    return Connection(nats_url=url, source=source)


def current_connection(args: Arguments) -> Connection:
    """The connection of a command that is run in this folder, with this environment."""
    return find_connection(args.nats, os.environ, Path.cwd())


def _local_connection(folder: Path) -> Connection | None:
    """What `weir up` wrote here, or in the nearest folder above; there our own file alone counts:
    /tmp is anybody's.
    """
    above = (each / FILE for each in folder.parents if _is_ours(each / FILE))
    file = folder / FILE if os.path.lexists(folder / FILE) else next(above, folder / FILE)
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Connection)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise Trouble(
            f"cannot read {file}: {error}; remove it, or run `weir up` again", WRONG_USE
        ) from error
    return msgspec.structs.replace(found, source=str(FILE if file == folder / FILE else file))


def _is_ours(file: Path) -> bool:
    try:
        return file.stat().st_uid == os.geteuid()
    except OSError:
        return False


# ---------------------------------------------------------------- a life on the bus

REFUSED, UNKNOWN = "permissions violation", "authorization "
"""What is said, in small letters: to what we may not do, and to whom the server does not know."""
NEVER = "\nIf it never answers, nats-server was started without JetStream (-js)."
NO_JETSTREAM = (10039, 10076)
"""The server's codes for: not enabled for this account, not enabled at all."""
Errors = asyncio.Queue[Exception]
Work = Callable[[Bus, Arguments], Awaitable[int]]


def on_bus(args: Arguments, work: Work, user: str = "", within_s: float | None = None) -> int:
    """Connect, work, close. What NATS refuses becomes `Trouble`.

    `user`: whose work this is, if his credentials lie beside ours (as `weir up` and `weir
    credentials` write them). `within_s`: what takes longer raises `TimeoutError`.
    """
    return asyncio.run(
        asyncio.wait_for(
            _on_bus(_with_credentials_of(current_connection(args), user), args, work), within_s
        )
    )


def _with_credentials_of(connection: Connection, user: str) -> Connection:
    beside = credentials_file(Path(connection.nats_credentials).parent, user)
    if not (user and connection.nats_credentials and beside.exists()):
        return connection
    return msgspec.structs.replace(connection, nats_credentials=str(beside))


async def _on_bus(connection: Connection, args: Arguments, work: Work) -> int:
    errors: Errors = asyncio.Queue()
    bus = await _connect_bus(connection, errors)
    try:
        return await _unless_refused(work(bus, args), errors)
    except (
        BrokenPipeError
    ):  # of our own output: what the bus loses, its client tells in its own words
        raise
    except (NatsError, ConnectionError) as error:
        raise Trouble(_explain_failure(error, connection)) from error
    finally:
        await bus.close()


async def _unless_refused(work: Awaitable[int], errors: Errors) -> int:
    """What we may not do the server says beside the work, which would wait in vain for an
    answer.
    """
    working, refused = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_refusal(errors))
    try:
        await asyncio.wait({working, refused}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Trouble(f"these credentials may not do this: {refused.result()}\n{OTHERS}")
    finally:
        await cancel_tasks(working, refused)


async def _wait_for_refusal(errors: Errors) -> str:
    while REFUSED not in (said := str(await errors.get())):
        pass
    return said


async def _connect_bus(connection: Connection, errors: Errors) -> Bus:
    """The first error counts: a person waits, and would rather know. Later ones are healed by
    reconnecting.
    """
    connecting = asyncio.ensure_future(_open_client(connection, errors.put))
    failing = asyncio.ensure_future(errors.get())
    await asyncio.wait(
        {connecting, failing}, timeout=CONNECT_S, return_when=asyncio.FIRST_COMPLETED
    )
    try:
        if connecting.done():
            return Bus(connecting.result(), SOURCE, patient=False)
        raise (
            failing.result()
            if failing.done()
            else TimeoutError(f"no answer within {CONNECT_S:g} s")
        )
    except (NatsError, OSError, ValueError) as error:
        raise Trouble(_unreachable_text(error, connection)) from error
    finally:
        if not connecting.done():
            await cancel_tasks(connecting)
        await cancel_tasks(failing)


async def _open_client(
    connection: Connection, on_error: Callable[[Exception], Awaitable[None]]
) -> ResilientClient:
    return await connect_client(
        connection.nats_url,
        connection.nats_credentials,
        connection.nats_ca,
        name=SOURCE,
        max_reconnect_attempts=-1,
        reconnect_time_wait=RETRY_S,
        connect_timeout=round(CONNECT_S),
        error_cb=on_error,
    )


def _unreachable_text(error: Exception, connection: Connection) -> str:
    if UNKNOWN not in str(error).lower():
        return f"cannot reach NATS at {connection.public_address}: {error}\n{ELSEWHERE}"
    refuses = (
        "refuses the credentials that it was given"
        if connection.nats_credentials
        else "wants credentials"
    )
    return f"NATS at {connection.public_address} answers, but {refuses}.\n{CREDENTIALS}"


def _explain_failure(error: Exception, connection: Connection) -> str:
    where = f"NATS at {connection.public_address}"
    if isinstance(error, (NotAdmitted, TooManyReaders)):
        return str(error)
    if is_no_room(error):
        return f"{where} has no room for it ({error.description}); `weir streams create --orders-gib N` makes some"
    if isinstance(error, ServiceUnavailableError):
        if error.err_code in NO_JETSTREAM:
            return f"{where} has no JetStream: start it with -js"
        return f"{where}: JetStream does not answer. It starts or elects a leader: try again in a few seconds.{NEVER}"
    if isinstance(error, (NotFoundError, NoStreamResponseError)):
        return f"{where} lacks Weir's streams or buckets: create them with `weir streams create`"
    if isinstance(error, Refused):
        return str(error)
    if isinstance(error, APIError):
        return f"{where} refuses: {error.description}"
    return f"{where} does not answer: {error or type(error).__name__}\n{ELSEWHERE}"
