"""Programs in the object store, by digest: read by one message's subject and one consumer's filter, and no more. Edge.

The library's own object store reads what it finds by requests that name the stream alone, which would let a job read
the programs of all others, and with a consumer that pushes.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import secrets
from datetime import UTC, datetime

import msgspec
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import NotFoundError

from shared.bus import Bus
from shared.messages import LARGEST_PROGRAM
from shared.permissions import CHUNKS, META, PROGRAM_STREAM
from shared.pull import Puller
from shared.subjects import PROGRAMS
from shared.watching import NAME_BYTES

IDLE_S = 60.0
PART_BYTES = 128 << 10
ONE_OF_A_NAME = {"Nats-Rollup": "sub"}


class TooLarge(Exception):
    """More than was asked for at most."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    link: dict[str, str] | None = None


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """What the store says of an object. `nuid`: the last token of the subject of its parts."""

    nuid: str = ""
    size: int = 0
    options: Options | None = None
    deleted: bool = False


def meta_token(digest: str) -> str:
    """The last token of the subject on which a program is described."""
    return base64.urlsafe_b64encode(digest.encode()).decode()


async def keep(bus: Bus, digest: str, body: bytes) -> None:
    """Store a program, as every client of an object store would, unless it is there: its parts, then what it is."""
    with contextlib.suppress(NotFoundError, msgspec.DecodeError):
        await described(bus, digest)
        return
    nuid, parts = secrets.token_hex(NAME_BYTES), range(0, len(body), PART_BYTES)
    for begin in parts:
        await bus.js.publish(f"{CHUNKS}.{nuid}", body[begin : begin + PART_BYTES])
    seal = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).decode()
    about = {
        "name": digest,
        "bucket": PROGRAMS,
        "nuid": nuid,
        "size": len(body),
        "chunks": len(parts),
        "digest": f"SHA-256={seal}",
        "mtime": datetime.now(UTC).isoformat(),
        "options": {"max_chunk_size": PART_BYTES},
    }
    await bus.js.publish(f"{META}.{meta_token(digest)}", msgspec.json.encode(about), headers=ONE_OF_A_NAME)


async def described(bus: Bus, digest: str) -> Info:
    """Raises `NotFoundError` where there is none of this digest, `msgspec.DecodeError` where it cannot be read."""
    subject = f"{META}.{meta_token(digest)}"
    raw = await bus.asked(lambda: bus.js.get_msg(PROGRAM_STREAM, subject=subject, direct=True))
    info = msgspec.json.decode(raw.data or b"", type=Info)
    if info.deleted:
        raise NotFoundError
    return info


async def fetched(bus: Bus, digest: str, most: int = LARGEST_PROGRAM) -> bytes:
    """All that is stored under this digest; nobody has checked that it has it.

    Raises as `described`, `TooLarge` for more than `most` bytes, whatever its description says, and `ValueError` for a
    link: it could lead anywhere.
    """
    info = await described(bus, digest)
    if info.options is not None and info.options.link is not None:
        raise ValueError("a link to something else")
    config = ConsumerConfig(
        name=secrets.token_hex(NAME_BYTES),
        filter_subject=f"{CHUNKS}.{info.nuid}",
        ack_policy=AckPolicy.NONE,
        inactive_threshold=IDLE_S,
        mem_storage=True,
    )
    made = await bus.js.add_consumer(PROGRAM_STREAM, config)
    puller = Puller(bus.client, PROGRAM_STREAM, made.name)
    body = bytearray()
    try:
        for _ in range(int(made.num_pending or 0)):
            body += (await puller.next()).data
            if len(body) > most:
                raise TooLarge
    finally:
        await puller.close()
    return bytes(body)
