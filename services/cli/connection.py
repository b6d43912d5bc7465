"""Where NATS and Kubernetes are, and a command's life on the bus.

In this order: `--nats`; WEIR_NATS_URL; what a running `weir up` wrote below the current folder; NATS' usual address.
Kubernetes comes from where NATS came from: by its URL from `weir up`, otherwise by kubeconfig.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError, ServiceUnavailableError

from services.cli.trouble import WRONG_USE, Trouble
from shared.bus import Bus
from shared.client import dial
from shared.tasks import end

FILE = Path(".weir/connection.json")
USUAL, KUBE = "nats://127.0.0.1:4222", "http://127.0.0.1:8001"
CONNECT_S, RETRY_S = 5.0, 0.2
ELSEWHERE = "Is it running? `weir up` is found from its own folder; elsewhere give --nats URL or set WEIR_NATS_URL."
SOURCE = "weir-cli"


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """`kube_url` empty: by kubeconfig. `source` says who told us."""

    nats_url: str = USUAL
    kube_url: str = ""
    nats_credentials: str = ""
    source: str = "the usual address"

    @property
    def shown(self) -> str:
        """The address without a password in it, and where it is from."""
        parts = urlsplit(self.nats_url)
        return f"{parts._replace(netloc=parts.netloc.rpartition('@')[2]).geturl()} ({self.source})"


def arguments(parser: argparse.ArgumentParser) -> None:
    said = f"where NATS is (default: WEIR_NATS_URL, else what `weir up` wrote to {FILE}, else {USUAL})"
    parser.add_argument("--nats", metavar="URL", help=said)


def find(given: str | None, environ: Mapping[str, str], folder: Path) -> Connection:
    credentials = environ.get("WEIR_NATS_CREDENTIALS", "")
    if given:
        return Connection(nats_url=given, nats_credentials=credentials, source="--nats")
    if url := environ.get("WEIR_NATS_URL"):
        return Connection(nats_url=url, nats_credentials=credentials, source="WEIR_NATS_URL")
    return _written(folder / FILE, credentials) or Connection(nats_credentials=credentials)


def here(args: argparse.Namespace) -> Connection:
    """The connection of a command that is run in this folder, with this environment."""
    return find(args.nats, os.environ, Path.cwd())


def _written(file: Path, credentials: str) -> Connection | None:
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Connection)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise Trouble(f"cannot read {file}: {error}; remove it, or run `weir up` again", WRONG_USE) from error
    return msgspec.structs.replace(found, nats_credentials=credentials, source=str(FILE))


# ---------------------------------------------------------------- a life on the bus

Work = Callable[[Bus, argparse.Namespace], Awaitable[int]]


def on_bus(args: argparse.Namespace, work: Work) -> int:
    """Connect, work, close. What NATS refuses becomes `Trouble`."""
    return asyncio.run(_on_bus(here(args), args, work))


async def _on_bus(connection: Connection, args: argparse.Namespace, work: Work) -> int:
    bus = await _connected(connection)
    try:
        return await work(bus, args)
    except BrokenPipeError:  # of our own output: what the bus loses, its client tells in its own words
        raise
    except (NatsError, ConnectionError) as error:
        raise Trouble(_explained(error, connection)) from error
    finally:
        await bus.close()


async def _connected(connection: Connection) -> Bus:
    """The first error counts: a person waits, and would rather know. Later ones are healed by reconnecting."""
    errors: asyncio.Queue[Exception] = asyncio.Queue()
    connecting = asyncio.ensure_future(_dial(connection, errors.put))
    failing = asyncio.ensure_future(errors.get())
    await asyncio.wait({connecting, failing}, timeout=CONNECT_S, return_when=asyncio.FIRST_COMPLETED)
    try:
        if connecting.done():
            return Bus(connecting.result(), SOURCE)
        raise failing.result() if failing.done() else TimeoutError(f"no answer within {CONNECT_S:g} s")
    except (NatsError, OSError, ValueError) as error:
        raise Trouble(f"cannot reach NATS at {connection.shown}: {error}\n{ELSEWHERE}") from error
    finally:
        if not connecting.done():
            await end(connecting)
        await end(failing)


async def _dial(connection: Connection, on_error: Callable[[Exception], Awaitable[None]]) -> Client:
    return await dial(
        connection.nats_url,
        name=SOURCE,
        user_credentials=connection.nats_credentials or None,
        max_reconnect_attempts=-1,
        reconnect_time_wait=RETRY_S,
        connect_timeout=round(CONNECT_S),
        error_cb=on_error,
    )


def _explained(error: Exception, connection: Connection) -> str:
    where = f"NATS at {connection.shown}"
    if isinstance(error, ServiceUnavailableError):
        return f"{where} has no JetStream: start it with -js"
    if isinstance(error, (NotFoundError, NoStreamResponseError)):
        return f"{where} lacks Weir's streams or buckets: create them with `weir streams create`"
    if isinstance(error, APIError):
        return f"{where} refuses: {error.description}"
    return f"{where} does not answer: {error or type(error).__name__}"
