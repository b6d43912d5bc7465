"""The addresses of NATS and Kubernetes for a command, and its connection to the bus.

The address of NATS is the first of these: `--nats`; WEIR_NATS_URL; the file of a running `weir up`
in the current folder, or in the nearest one above it; the usual address of NATS. The credentials
are those of WEIR_NATS_CREDENTIALS, else those that `weir up` wrote for the server at that address.
If the address of NATS is from `weir up`, that of Kubernetes is, too; otherwise kubeconfig gives it.

`first_message` waits for the answer to a request. `job_standing` returns if a job's name is in use,
from the newest order of each kind on the name.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import msgspec
from nats.errors import Error as NatsError
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError, ServiceUnavailableError

from services.cli.command_line import NATS_URL, Arguments
from services.console.bus_reader import read_entries
from services.console.trouble import WRONG_USE, Trouble
from shared.auth.keyring import credentials_file
from shared.bus.bus import Bus
from shared.bus.client import Refused, ResilientClient, connect_client
from shared.bus.log_reader import StreamQuery
from shared.bus.publisher import is_no_room
from shared.bus.subjects import pattern, stream_holding
from shared.bus.tail import NotAdmitted, TooManyReaders
from shared.messages import Message
from shared.runtime.process import cancel_tasks

FILE = Path(".weir/connection.json")
USUAL, KUBE = NATS_URL, "http://127.0.0.1:8001"
CONNECT_S, RETRY_S = 5.0, 0.2
ELSEWHERE = (
    "Start it with `weir up` if it does not run. Commands in its folder and those below find it; "
    "elsewhere, give --nats URL or set WEIR_NATS_URL."
)
CREDENTIALS = (
    "Set WEIR_NATS_CREDENTIALS=FILE; for a `weir up` on this machine it is "
    "FOLDER/.weir/credentials/operator.creds, where FOLDER is the folder of its start."
)
NARROWER = (
    "With credentials for one namespace, give -n NAMESPACE. "
    "For other credentials, set WEIR_NATS_CREDENTIALS."
)
SOURCE = "weir-cli"
IN_ENVIRONMENT = {"nats_credentials": "WEIR_NATS_CREDENTIALS", "nats_ca": "WEIR_NATS_CA"}


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of a bus and its cluster, and the credentials for them.

    `kubeconfig`: the file of `weir up` with the token for `kube_url`; empty: the usual file.
    `pod_logs`: the folder of `weir up` for the output of pods. `limits`: its settings that limit
    jobs. `source`: the origin of the address, for people.
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
        """Return the address, without a password in it, and its source."""
        parts = urlsplit(self.nats_url)
        return f"{parts._replace(netloc=parts.netloc.rpartition('@')[2]).geturl()} ({self.source})"


def find_connection(option: str | None, environ: Mapping[str, str], folder: Path) -> Connection:
    """Return the connection for a value of `--nats`, an environment and a current folder."""
    url, source = option, "--nats"
    if not url:
        url, source = environ.get("WEIR_NATS_URL"), "WEIR_NATS_URL"
    connection = _connection_at(url, source, folder) if url else _local_connection(folder)
    connection = connection or Connection()
    own = {field: environ[name] for field, name in IN_ENVIRONMENT.items() if name in environ}
    return msgspec.structs.replace(connection, **own)


def _connection_at(url: str, source: str, folder: Path) -> Connection:
    """Return the connection to a URL, with the credentials of `weir up` if it runs this server."""
    with contextlib.suppress(Trouble):
        local = _local_connection(folder)
        if local and local.nats_url == url:
            return msgspec.structs.replace(
                local, kube_url="", kubeconfig="", pod_logs="", source=source
            )
    return Connection(nats_url=url, source=source)


def current_connection(args: Arguments) -> Connection:
    """Return the connection of a command in this folder, with this environment."""
    return find_connection(args.nats, os.environ, Path.cwd())


def _local_connection(folder: Path) -> Connection | None:
    """Return the connection that `weir up` wrote in this folder or in the nearest folder above.

    In the folders above, only a file of this user counts: anybody may write in /tmp.
    """
    here = folder / FILE
    file = here
    if not os.path.lexists(here):
        candidates = [above / FILE for above in folder.parents]
        file = next(filter(_is_ours, candidates), here)
    try:
        connection = msgspec.json.decode(file.read_bytes(), type=Connection)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise Trouble(
            f"cannot read {file}: {error}; remove it, or run `weir up` again", WRONG_USE
        ) from error
    return msgspec.structs.replace(connection, source=str(FILE if file == here else file))


def _is_ours(file: Path) -> bool:
    try:
        return file.stat().st_uid == os.geteuid()
    except OSError:
        return False


# ---------------------------------------------------------------- work on the bus

REFUSED = "permissions violation"
UNKNOWN_USER = "authorization "
"""Parts of the server's errors, in small letters: for a missing permission, and for a user that it
does not know.
"""
NEVER = "\nIf it never answers, nats-server was started without JetStream (-js)."
NO_JETSTREAM = (10039, 10076)
"""The server's codes for: not enabled for this account, not enabled at all."""
Errors = asyncio.Queue[Exception]
Work = Callable[[Bus, Arguments], Awaitable[int]]


def on_bus(args: Arguments, work: Work, user: str = "", within_s: float | None = None) -> int:
    """Connect, do the work and close. Raise `Trouble` for everything that NATS refuses.

    `user`: use the credentials of this user if they are beside ours (`weir up` and `weir
    credentials` write them). `within_s`: raise `TimeoutError` after this time.
    """
    connection = _with_credentials_of(current_connection(args), user)
    return asyncio.run(asyncio.wait_for(_on_bus(connection, args, work), within_s))


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
    except BrokenPipeError:  # of our own output; the client reports a lost connection otherwise
        raise
    except (NatsError, ConnectionError) as error:
        raise Trouble(_explain_failure(error, connection)) from error
    finally:
        await bus.close()


async def _unless_refused(work: Awaitable[int], errors: Errors) -> int:
    """Return the result of the work. Raise `Trouble` if the server reports a missing permission:
    the work itself would wait in vain for an answer.
    """
    working = asyncio.ensure_future(work)
    refused = asyncio.ensure_future(_wait_for_refusal(errors))
    try:
        await asyncio.wait({working, refused}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Trouble(f"these credentials do not permit this: {refused.result()}\n{NARROWER}")
    finally:
        await cancel_tasks(working, refused)


async def _wait_for_refusal(errors: Errors) -> str:
    while True:
        text = str(await errors.get())
        if REFUSED in text:
            return text


async def _connect_bus(connection: Connection, errors: Errors) -> Bus:
    """Connect, and raise `Trouble` at the first error: a person waits for the answer. The client
    reconnects after later errors.
    """
    connecting = asyncio.ensure_future(_open_client(connection, errors.put))
    failing = asyncio.ensure_future(errors.get())
    await asyncio.wait(
        {connecting, failing}, timeout=CONNECT_S, return_when=asyncio.FIRST_COMPLETED
    )
    try:
        if connecting.done():
            return Bus(connecting.result(), SOURCE, patient=False)
        if failing.done():
            raise failing.result()
        raise TimeoutError(f"no answer within {CONNECT_S:g} s")
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
    address = connection.public_address
    if UNKNOWN_USER not in str(error).lower():
        return f"cannot reach NATS at {address}: {error}\n{ELSEWHERE}"
    refusal = "requires credentials"
    if connection.nats_credentials:
        refusal = "refuses these credentials"
    return f"NATS at {address} answers, but {refusal}.\n{CREDENTIALS}"


def _explain_failure(error: Exception, connection: Connection) -> str:
    where = f"NATS at {connection.public_address}"
    if isinstance(error, (NotAdmitted, TooManyReaders)):
        return str(error)
    if is_no_room(error):
        remedy = "for more room, run `weir streams create --orders-gib N`"
        return f"{where} has no room for it ({error.description}); {remedy}"
    if isinstance(error, ServiceUnavailableError):
        if error.err_code in NO_JETSTREAM:
            return f"{where} has no JetStream: start it with -js"
        remedy = "It is starting or electing a leader: try again in a few seconds."
        return f"{where}: JetStream does not answer. {remedy}{NEVER}"
    if isinstance(error, (NotFoundError, NoStreamResponseError)):
        return f"{where} lacks Weir's streams or buckets: create them with `weir streams create`"
    if isinstance(error, Refused):
        return str(error)
    if isinstance(error, APIError):
        return f"{where} refuses the request: {error.description}"
    return f"{where} does not answer: {error or type(error).__name__}\n{ELSEWHERE}"


Standing = Literal["unknown", "open", "over"]


def job_standing(requested: int, accepted: int, rejected: int, finished: int) -> Standing:
    """Return the standing of a job's name. Each argument is the uid in the newest message of its
    kind, 0 if there is none. A rejected request for the name of a running job changes nothing.
    """
    if not requested and not accepted:
        return "unknown"
    if accepted and accepted != finished:
        return "open"
    answered = requested in (0, accepted, rejected)
    return "over" if answered else "open"


M = TypeVar("M", bound=Message)


async def first_message(
    bus: Bus,
    kinds: tuple[type[M], ...],
    after: int,
    is_wanted: Callable[[M], bool],
    within_s: float,
    key: str = ">",
) -> M | None:
    """Return the first wanted order of these kinds that is stored after the sequence `after`.
    Return None if none comes within `within_s` seconds.
    """
    wanted = StreamQuery(
        stream_holding(pattern(kinds[0])), [pattern(kind, key) for kind in kinds], after=after
    )
    try:
        async with (
            asyncio.timeout(within_s),
            aclosing(read_entries(bus, [wanted], follow=True)) as entries,
        ):
            async for entry in entries:
                if isinstance(entry.message, kinds) and is_wanted(entry.message):
                    return entry.message
    except TimeoutError:
        return None
    return None
