"""A service's snapshot in `weir-state`: one entry or, where it is too large for a message, several.
Edge.

Promise: what is loaded is one whole snapshot that was stored. Parts are written beside those of the
snapshot before; the entry that names them is written last, and says which they are.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable

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

PART_BYTES = 900_000
"""Bytes of one entry; the server's default for a message is 1 MiB."""
MOST_PARTS = 64
SETS = ("a", "b")
BYTES = Family(
    name="weir_snapshot_bytes",
    kind="gauge",
    help="Size of the state as it was stored last, compressed.",
)
FAILING = Family(
    name="weir_snapshot_failing_seconds",
    kind="gauge",
    help="For so long the state could not be stored, and a restart reads the log since then; 0: it was stored.",
)


class SnapshotTooLarge(Exception):
    """More than all parts of a snapshot may hold."""


class SnapshotHead(msgspec.Struct, frozen=True):
    """Where the parts of a snapshot are, and the digest of them all."""

    parts: int
    set: str
    digest: str


async def load_snapshot(bus: Bus, key: str) -> bytes:
    """Return the last snapshot. Raises `NotFoundError` where there is none, or where its parts are
    not whole.
    """
    bucket = await bus.bucket(STATE)
    body = await _entry(bus, bucket, key)
    head = _head(body)
    if head is None:
        return body
    parts = [await _entry(bus, bucket, part) for part in _part_keys(key, head)]
    whole = b"".join(parts)
    if _digest(whole) != head.digest:
        raise NotFoundError
    return whole


async def store_snapshot(bus: Bus, key: str, body: bytes) -> None:
    """Replace the snapshot. Raises `TooLarge`, `NatsError`, and `Stale` where another has written
    since we looked.
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
    """Return the name of the parts that the last snapshot does not use."""
    try:
        head = _head(await _entry(bus, await bus.bucket(STATE), key))
    except NotFoundError:
        return SETS[0]
    return next(name for name in SETS if head is None or name != head.set)


async def _entry(bus: Bus, bucket: KeyValue, key: str) -> bytes:
    return (await bus.retry_until_answered(lambda: bucket.get(key))).value or b""


def _head(body: bytes) -> SnapshotHead | None:
    """Return what an entry says of its parts; None for one that is a snapshot itself, which is
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


class SnapshotStore:
    """Stores a service's state again and again, and tells for how long that has failed."""

    def __init__(self, bus: Bus, key: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.bus = bus
        self.key = key
        self.clock = clock
        self.bytes = 0
        self.failing_since_s: float | None = None

    async def store(self, body: bytes) -> None:
        """Store it; where the bus is away, another leads or it is too large, a restart will read
        more.
        """
        try:
            await store_snapshot(self.bus, self.key, body)
        except (NatsError, Stale, SnapshotTooLarge) as error:
            log.warning("SnapshotFailed", bytes=len(body), error=repr(error))
            self.failing_since_s = (
                self.clock() if self.failing_since_s is None else self.failing_since_s
            )
        else:
            self.bytes, self.failing_since_s = len(body), None

    def measures(self) -> Iterable[Measure]:
        failing_s = 0.0 if self.failing_since_s is None else self.clock() - self.failing_since_s
        return [Measure(BYTES, {(): float(self.bytes)}), Measure(FAILING, {(): failing_s})]
