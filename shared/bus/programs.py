"""Programs in the object store: one bucket for each namespace, each program under its digest.

Promise: `store_program` returns once the whole program is stored under its digest, in place of
whatever was there.

A program is read by one subject and one consumer with a filter. The library's own object store
sends requests that name the stream only, which would let a job read all descriptions, and uses a
consumer that pushes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import re
import secrets
from datetime import UTC, datetime

import msgspec
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import APIError, NotFoundError

from shared.auth.permissions import API, chunk_subject, description_subject
from shared.bus.bus import Bus
from shared.bus.consumer import ConsumerGone, PullConsumer
from shared.bus.subjects import program_bucket
from shared.bus.tail import NAME_BYTES
from shared.messages import LARGEST_PROGRAM

IDLE_S = 5.0
"""A reader is removed if nobody has read from it for this time in s. A bucket has a limited number
of readers, and jobs delete none.
"""
MAX_CONSUMERS_REACHED = 10026
READ_BACK_S = 30.0
"""The time in s for reading a stored program again to check it. If it takes longer, the program is
stored again.
"""
PART_BYTES = 128 << 10
ONE_OF_A_NAME = {"Nats-Rollup": "sub"}
SEAL = "SHA-256="
NUID = re.compile(r"[-\w=]+\Z", re.ASCII)


class ProgramTooLarge(Exception):
    """The program is larger than the reader allows."""


class NotProvisioned(Exception):
    """The namespace has no program bucket on the bus."""


class BucketBusy(NatsError):
    """A bucket has as many readers as it may have. A reader is removed `IDLE_S` after its program
    was fetched.
    """


class ObjectOptions(msgspec.Struct, frozen=True, kw_only=True):
    link: dict[str, str] | None = None


class ProgramInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a stored object. `nuid`: the last token of the subject of its parts;
    `digest`: of its content, as the object store writes it.
    """

    nuid: str = ""
    size: int = 0
    digest: str = ""
    options: ObjectOptions | None = None
    deleted: bool = False

    @property
    def is_link(self) -> bool:
        return self.options is not None and self.options.link is not None

    def describes(self, digest: str) -> bool:
        """Return True if the store's own digest is of the same content as this digest."""
        seal = _object_digest(digest)
        return bool(seal) and self.digest == seal and not self.is_link


def digest_of(body: bytes) -> str:
    """Return the digest of a program, which is its name in the store."""
    return f"sha256-{hashlib.sha256(body).hexdigest()}"


def _object_digest(digest: str) -> str:
    """Return the same digest in the form of an object store."""
    try:
        raw = bytes.fromhex(digest.removeprefix("sha256-"))
    except ValueError:
        return ""
    return SEAL + base64.urlsafe_b64encode(raw).decode()


def meta_token(digest: str) -> str:
    """Return the last token of the subject with the description of a program."""
    return base64.urlsafe_b64encode(digest.encode()).decode()


# ---------------------------------------------------------------- storing


async def store_program(bus: Bus, namespace: str, digest: str, body: bytes) -> None:
    """Store a program in the format of every object store client: parts, then description. If it is
    stored and whole, only its description is stored again, because the allocator removes programs
    that have not been stored or used for a long time.

    Raises `ValueError` if the content does not have this digest, `NotProvisioned` if the namespace
    has no bucket.
    """
    if digest_of(body) != digest:
        raise ValueError(
            f"a program with the digest {digest_of(body)} cannot be stored as {digest}"
        )
    if await _is_stored(bus, namespace, digest, body) and await _describe_again(
        bus, namespace, digest
    ):
        return
    bucket = program_bucket(namespace)
    nuid, parts = secrets.token_hex(NAME_BYTES), range(0, len(body), PART_BYTES)
    for begin in parts:
        await bus.js.publish(f"{chunk_subject(bucket)}.{nuid}", body[begin : begin + PART_BYTES])
    about = {
        "name": digest,
        "bucket": bucket,
        "nuid": nuid,
        "size": len(body),
        "chunks": len(parts),
        "digest": _object_digest(digest),
        "mtime": datetime.now(UTC).isoformat(),
        "options": {"max_chunk_size": PART_BYTES},
    }
    await bus.js.publish(
        f"{description_subject(bucket)}.{meta_token(digest)}",
        msgspec.json.encode(about),
        headers=ONE_OF_A_NAME,
    )


async def _describe_again(bus: Bus, namespace: str, digest: str) -> bool:
    """Store the description of a program again. Return False if there is none."""
    subject = f"{description_subject(program_bucket(namespace))}.{meta_token(digest)}"
    try:
        raw = await bus.js.get_msg(_stream(program_bucket(namespace)), subject=subject, direct=True)
    except NotFoundError:
        return False
    await bus.js.publish(subject, raw.data or b"", headers=ONE_OF_A_NAME)
    return True


async def _is_stored(bus: Bus, namespace: str, digest: str, body: bytes) -> bool:
    """Return True if the stored description and content are those of this program."""
    with contextlib.suppress(
        NotFoundError, msgspec.DecodeError, ValueError, ProgramTooLarge, ConsumerGone, TimeoutError
    ):
        info = await read_description(bus, namespace, digest)
        if info.describes(digest) and info.size == len(body):
            async with asyncio.timeout(READ_BACK_S):
                return await _read_content(bus, program_bucket(namespace), info, len(body)) == body
    return False


# ---------------------------------------------------------------- reading


async def read_description(bus: Bus, namespace: str, digest: str) -> ProgramInfo:
    """Return the description of a program of a namespace.

    Raises `NotFoundError` if there is no program of this digest, `msgspec.DecodeError` if it cannot
    be read, and `NotProvisioned` if there is no bucket. Users outside may not ask for streams, so a
    missing bucket looks to them like one without a leader: both are `NoRespondersError`, and a
    patient bus waits.
    """
    return await bus.retry_until_answered(
        lambda: _read_description(bus, program_bucket(namespace), digest)
    )


async def _read_description(bus: Bus, bucket: str, digest: str) -> ProgramInfo:
    stream, subject = _stream(bucket), f"{description_subject(bucket)}.{meta_token(digest)}"
    try:
        raw = await bus.js.get_msg(stream, subject=subject, direct=True)
    except NoRespondersError:
        await _require_stream(bus, stream)
        raise
    info = msgspec.json.decode(raw.data or b"", type=ProgramInfo)
    if info.deleted:
        raise NotFoundError
    return info


async def _require_stream(bus: Bus, stream: str) -> None:
    """Raise `NotProvisioned` if it is certain that there is no such stream."""
    if bus.client.api != API:
        return
    try:
        await bus.js.stream_info(stream)
    except NotFoundError as error:
        raise NotProvisioned(stream) from error


def _stream(bucket: str) -> str:
    return f"OBJ_{bucket}"


async def read_program(bus: Bus, namespace: str, digest: str, most: int = LARGEST_PROGRAM) -> bytes:
    """Return the stored content of this digest. Its digest is not checked.

    Raises the errors of `read_description`; `ProgramTooLarge` for more than `most` bytes, whatever
    its description says; `ValueError` if the description does not lead to one object (a link, or a
    pattern); and `BucketBusy`.
    """
    return await _read_content(
        bus, program_bucket(namespace), await read_description(bus, namespace, digest), most
    )


async def _read_content(bus: Bus, bucket: str, info: ProgramInfo, most: int) -> bytes:
    if info.is_link:
        raise ValueError("the description is a link")
    if not NUID.match(info.nuid):
        raise ValueError("a description that does not lead to its content")
    config = ConsumerConfig(
        name=secrets.token_hex(NAME_BYTES),
        filter_subject=f"{chunk_subject(bucket)}.{info.nuid}",
        ack_policy=AckPolicy.NONE,
        inactive_threshold=IDLE_S,
        mem_storage=True,
    )
    try:
        made = await bus.js.add_consumer(_stream(bucket), config)
    except APIError as error:
        if error.err_code != MAX_CONSUMERS_REACHED:
            raise
        raise BucketBusy(
            f"{bucket} has its maximum number of readers; try again in a few seconds"
        ) from error
    puller = PullConsumer(bus.client, _stream(bucket), made.name)
    body = bytearray()
    try:
        for _ in range(int(made.num_pending or 0)):
            body += (await puller.next()).data
            if len(body) > most:
                raise ProgramTooLarge
    finally:
        await puller.close()
    return bytes(body)
