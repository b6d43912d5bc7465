"""The program's file: fetched once, by digest, and used only if it has that digest and is not too
large. Edge.

The store keeps a digest of its own for what it holds, but nobody has checked that what lies under a
name is what the name says; a request that was written by hand may even name something else. What
the store says of an object's size is its sender's word: no more than is allowed is read in any
case. The file's name is the request's; no folder is.

Each try reads the program's description anew, so a program that is stored again meanwhile is found.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import structlog
from nats.errors import Error as NatsError
from nats.js.errors import APIError

from services.trainer.program import BadProgram, digest_of, file_name
from shared.bus import programs
from shared.bus.bus import Bus
from shared.bus.client import is_outage
from shared.messages import LARGEST_PROGRAM, Program
from shared.runtime.log import RateLimitedWarning

TRIES, AGAIN_S = 3, 0.5
BUSY_S = 2.0
"""Between two tries where the bucket has as many readers as it may have: pods that wait ask no more
often.
"""
FETCH_S = 60.0  # one try; of an object that has lost a part the client would wait for ever
ANSWER_S = 2.0  # until a bus that answers has answered
WRONG = (APIError, msgspec.DecodeError, ValueError, KeyError, TypeError, programs.NotProvisioned)
"""Answers, but no program."""
logger = structlog.get_logger()


async def fetched(bus: Bus, namespace: str, program: Program, folder: Path) -> Path:
    """Where it lies; raises `BadProgram` where the store has none of this digest, however often it
    is asked.
    """
    path = folder / program.digest / file_name(program.name)
    if not (path.is_file() and digest_of(path.read_bytes()) == program.digest):
        _keep(path, await _asked_for(bus, namespace, program))
    return path


def _keep(path: Path, body: bytes) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(".part")  # no program is called so
    part.write_bytes(body)
    os.replace(part, path)


async def _asked_for(bus: Bus, namespace: str, program: Program) -> bytes:
    why = ""
    tries = 0
    busy = RateLimitedWarning()
    while tries < TRIES:
        try:
            body, why = await _looked_up(bus, namespace, program.digest)
        except programs.BucketBusy as error:
            busy.warn_error("ProgramWaitsForOtherReaders", error, program=program.name, remedy=BUSY)
            await asyncio.sleep(BUSY_S)
            continue
        if body is not None:
            return body
        logger.warning("ProgramNotAsAskedFor", program=program.name, why=why)
        tries += await _answers(bus, namespace, program.digest)
        await asyncio.sleep(AGAIN_S)
    raise BadProgram(f"{program.name} is not to be had: {why}")


BUSY = (
    "many pods of the namespace fetch programs at once; this one tries again until it is its turn"
)


async def _looked_up(bus: Bus, namespace: str, digest: str) -> tuple[bytes | None, str]:
    """The program; or None, and why. Raises `BucketBusy`, which says nothing about the program."""
    try:
        async with asyncio.timeout(FETCH_S):
            body = await _stored(bus, namespace, digest)
    except programs.ProgramTooLarge:
        return None, f"what the store has under {digest} is larger than {LARGEST_PROGRAM:,} bytes"
    except TimeoutError:
        return None, f"the store did not give {digest} within {FETCH_S:g} s"
    except WRONG as error:
        return None, f"the store has no {digest}: {error!r}"
    found = digest_of(body)
    if found == digest:
        return body, ""
    return (
        None,
        f"what the store has under {digest} is something else, of {len(body)} bytes and the digest {found}",
    )


async def _answers(bus: Bus, namespace: str, digest: str) -> bool:
    """Return whether the bus answers at all; a try that failed while it did not says nothing about
    the program.
    """
    try:
        async with asyncio.timeout(ANSWER_S):
            await programs.read_description(bus, namespace, digest)
    except TimeoutError:
        return False
    except WRONG as error:
        return not is_outage(error)
    return True


async def _stored(bus: Bus, namespace: str, digest: str) -> bytes:
    """Return what lies under this name, as soon as the bus is there."""
    while True:
        try:
            return await programs.read_program(bus, namespace, digest, LARGEST_PROGRAM)
        except programs.BucketBusy:
            raise
        except (NatsError, *WRONG) as error:
            if not is_outage(error):
                raise
            logger.warning("FetchWaits", digest=digest, error=repr(error))
            await asyncio.sleep(AGAIN_S)
