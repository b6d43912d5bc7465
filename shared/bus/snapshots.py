"""The snapshot of a service's state in the bucket `weir-state`.

A small snapshot is one entry. One that is too large for a message has several parts.

Promise: `load_snapshot` returns one whole snapshot that was stored. Parts are written beside the
parts of the snapshot before; the entry that names them is written last.

`load_state` and `encode_state` read and write a struct. A service starts from its snapshot and then
reads the rest of the log. If the snapshot is absent, unreadable (another version wrote it) or ahead
of a stream (the streams were made anew), the service reads the log from its beginning.
"""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec
import structlog
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError
from nats.js.kv import KeyValue

from shared.bus.bus import Bus
from shared.bus.publisher import Stale
from shared.bus.subjects import STATE
from shared.runtime.metrics import Family, Measure

log = structlog.get_logger()
S = TypeVar("S", bound=msgspec.Struct)

PART_BYTES = 900_000
"""Bytes of one entry. The server takes messages of 1 MiB by default."""
MOST_PARTS = 64
SETS = ("a", "b")
FASTEST_COMPRESSION = 1
BYTES = Family(
    name="weir_snapshot_bytes",
    kind="gauge",
    help="Size of the state as it was stored last, compressed.",
)
FAILING = Family(
    name="weir_snapshot_failing_seconds",
    kind="gauge",
    help=(
        "Time since the state was stored last; a restart reads the log since then. 0: it is stored."
    ),
)


class NoSnapshot(Exception):
    """There is no usable snapshot; the text is the reason."""


class SnapshotAhead(NoSnapshot):
    """The snapshot contains messages that a stream does not have: the stream was created again."""

    def __init__(self, stream: str, sequence: int, last: int) -> None:
        super().__init__(f"{stream} ends at {last}, and the snapshot has read up to {sequence}")
        self.stream = stream
        self.sequence = sequence
        self.last = last


class SnapshotTooLarge(Exception):
    """The snapshot needs more than `MOST_PARTS` parts."""


class SnapshotHead(msgspec.Struct, frozen=True):
    """The entry that names the parts of a snapshot, with the digest of all of them."""

    parts: int
    set: str
    digest: str


# ---------------------------------------------------------------- state


async def load_state(
    bus: Bus, key: str, kind: type[S], sequences_of: Callable[[S], Mapping[str, int]]
) -> S:
    """Return the state that `encode_state` encoded. Raises `NoSnapshot`, `SnapshotAhead`.

    `sequences_of`: by stream, the sequence of the last message that is in the state.
    """
    try:
        body = zlib.decompress(await load_snapshot(bus, key))
        state = msgspec.json.decode(body, type=kind)
    except (NotFoundError, zlib.error, msgspec.DecodeError) as error:
        raise NoSnapshot(repr(error)) from error
    for stream, sequence in sequences_of(state).items():
        last = await bus.last_stored(stream)
        if sequence > last:
            raise SnapshotAhead(stream, sequence, last)
    return state


def encode_state(state: msgspec.Struct) -> bytes:
    """Return the encoded state, compressed."""
    return zlib.compress(msgspec.json.encode(state), FASTEST_COMPRESSION)


class SnapshotStore:
    """Stores a service's state repeatedly, and measures for how long storing has failed."""

    def __init__(self, bus: Bus, key: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.bus = bus
        self.key = key
        self.clock = clock
        self.bytes = 0
        self.failing_since_s: float | None = None

    async def store(self, body: bytes) -> None:
        """Store a snapshot. A failure is logged: a restart then reads more of the log.

        Raises `StreamSetBack` (`Bus.write_state`).
        """
        try:
            await store_snapshot(self.bus, self.key, body)
        except (NatsError, Stale, SnapshotTooLarge) as error:
            log.warning("SnapshotFailed", bytes=len(body), error=repr(error))
            if self.failing_since_s is None:
                self.failing_since_s = self.clock()
        else:
            self.bytes = len(body)
            self.failing_since_s = None

    def measures(self) -> Iterable[Measure]:
        failing_s = 0.0 if self.failing_since_s is None else self.clock() - self.failing_since_s
        return [Measure(BYTES, {(): float(self.bytes)}), Measure(FAILING, {(): failing_s})]


# ---------------------------------------------------------------- bytes


async def load_snapshot(bus: Bus, key: str) -> bytes:
    """Return the last snapshot. Raises `NotFoundError` if there is none, or parts are missing."""
    bucket = await bus.bucket(STATE)
    body = await _read_entry(bus, bucket, key)
    head = _snapshot_head(body)
    if head is None:
        return body
    parts = [await _read_entry(bus, bucket, part) for part in _part_keys(key, head)]
    whole = b"".join(parts)
    if _digest(whole) != head.digest:
        raise NotFoundError
    return whole


async def store_snapshot(bus: Bus, key: str, body: bytes) -> None:
    """Replace the snapshot. Raises `SnapshotTooLarge`, `NatsError`, and `Stale` if another replica
    has written an entry meanwhile.
    """
    if len(body) <= PART_BYTES:
        return await bus.write_state(key, body)
    parts = [body[begin : begin + PART_BYTES] for begin in range(0, len(body), PART_BYTES)]
    if len(parts) > MOST_PARTS:
        raise SnapshotTooLarge(f"{len(body)} bytes")
    head = SnapshotHead(len(parts), await _unused_set(bus, key), _digest(body))
    for part_key, part in zip(_part_keys(key, head), parts, strict=True):
        await bus.write_state(part_key, part)
    await bus.write_state(key, msgspec.json.encode(head))


async def _unused_set(bus: Bus, key: str) -> str:
    """Return the name of the set of parts that the last snapshot does not use."""
    try:
        head = _snapshot_head(await _read_entry(bus, await bus.bucket(STATE), key))
    except NotFoundError:
        return SETS[0]
    return next(name for name in SETS if head is None or name != head.set)


async def _read_entry(bus: Bus, bucket: KeyValue, key: str) -> bytes:
    return (await bus.retry_until_answered(lambda: bucket.get(key))).value or b""


def _snapshot_head(body: bytes) -> SnapshotHead | None:
    """Return the head that an entry holds; None if the entry is a whole snapshot, which is
    compressed.
    """
    try:
        return msgspec.json.decode(body, type=SnapshotHead)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _part_keys(key: str, head: SnapshotHead) -> list[str]:
    return [f"{key}.{head.set}.{number}" for number in range(head.parts)]


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
