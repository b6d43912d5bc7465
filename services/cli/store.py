"""Training programs in the object store of their namespace: kept once, by digest. Edge."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from nats.errors import NoRespondersError
from nats.js.errors import APIError, NotFoundError

from services.cli.trouble import FAILED, WRONG_USE, Trouble
from shared.bus import programs
from shared.bus.bus import Bus
from shared.bus.publisher import is_no_room
from shared.bus.subjects import DEFAULT_NAMESPACE
from shared.messages import LARGEST_PROGRAM

T = TypeVar("T")

MIB = 1 << 20


def read(path: Path) -> bytes:
    """The program's text; raises `Trouble` for what cannot be read or is too large to travel."""
    try:
        size = path.stat().st_size
        if size <= LARGEST_PROGRAM:
            return path.read_bytes()
    except OSError as error:
        hint = ONE_FILE if isinstance(error, IsADirectoryError) else RELATIVE
        raise Trouble(
            f"cannot read the program {path}: {error.strerror}; {hint}", WRONG_USE
        ) from error
    raise Trouble(
        f"the program {path} has {size / MIB:.1f} MiB; at most {LARGEST_PROGRAM // MIB} MiB travel. {ADVICE}",
        FAILED,
    )


ONE_FILE = "a program is one file of Python"
RELATIVE = "`program:` is relative to the job's file"
ADVICE = "Data belongs on a volume, not in the program."


digest = programs.digest_of

# ---------------------------------------------------------------- on the bus

LEADER_S, AGAIN_S = 3.0, 0.2
"""For how long a bucket that does not answer may be without a leader, and when to ask again;
seconds.
"""
NOTHING = digest(b"")
UNPROVISIONED = (
    "namespace {0} is not provisioned on this bus: it has no bucket for the programs of its jobs. Nothing was sent.\n"
    "To provision it, list it in WEIR_JOB_NAMESPACES and apply the overlay again, or run "
    "`weir streams create --namespace {0}` with the setup credentials; for `weir up`, name it under `quotas:` in the "
    "cluster file."
)
FULL = (
    "the programs of namespace {0} fill their bucket ({1}). Nothing was sent.\n"
    "To make room, run `weir streams create --namespace {0} --programs-mib N` with the setup credentials."
)


async def keep(bus: Bus, body: bytes, namespace: str = DEFAULT_NAMESPACE) -> str:
    """Store a program in the bucket of its namespace unless it is there and whole; return its
    digest.

    Raises `Trouble` if the namespace has no bucket, or no room in it.
    """
    name = digest(body)
    await _in_bucket(namespace, lambda: programs.store_program(bus, namespace, name, body))
    return name


async def require_bucket(bus: Bus, namespace: str) -> None:
    """Raise `Trouble` if the namespace is not provisioned."""
    with contextlib.suppress(NotFoundError, msgspec.DecodeError):
        await _in_bucket(namespace, lambda: programs.read_description(bus, namespace, NOTHING))


async def _in_bucket(namespace: str, use: Callable[[], Awaitable[T]]) -> T:
    """Use the bucket of a namespace. One that does not answer may be choosing a leader: it is asked
    for a while.
    """
    until_s = time.monotonic() + LEADER_S
    while True:
        try:
            return await use()
        except programs.NotProvisioned as error:
            raise Trouble(UNPROVISIONED.format(namespace), FAILED) from error
        except NoRespondersError as error:
            if time.monotonic() > until_s:
                raise Trouble(UNPROVISIONED.format(namespace), FAILED) from error
        except APIError as error:
            if is_no_room(error):
                raise Trouble(FULL.format(namespace, error.description), FAILED) from error
            raise
        await asyncio.sleep(AGAIN_S)
