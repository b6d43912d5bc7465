"""The fence (a fencing token): a checkpoint exists once the ledger bucket names it, and only the
holder of the fence may name one.

Each write is a compare-and-set on the revision that this holder wrote or claimed last, so the
ledger refuses the commit of a stale generation. An unreadable entry was not written by any
generation: it is set aside and makes no holder stale. The holder then relies on its own last entry;
a holder without one starts from an empty entry.

An entry carries its job's uid. A job may replace another job's entry, or a missing one, only while
the newest decision about the name is its own. So a pod that outlived its job cannot overwrite the
entry of the next job of that name. A smaller uid may also be a later job's: uids start again from
small numbers when the bus was lost and the ledger was not. An entry whose checkpoints are outside
the job's folder belongs to another job, whatever its uid.

Every read and every write is repeated until the ledger answers. A write without a clear answer
(timeout, connection lost, no responders) may have been stored, so the ledger is read before the
write is repeated. If it holds our entry, the write is done; if it holds another one, this holder is
stale. A waiting write is logged at once and then at intervals (`RateLimitedWarning`).

On a bus of several servers any copy of a stream may answer a read, even one that lags. A lagging
copy shows only true entries, so a later generation or job that it shows makes us stale at once. An
entry that it does not show may exist: after a refusal, or an earlier job's decision, we read again
for `LAG_S`. A copy that shows less than this holder wrote is not believed.

A bus that lost its last writes has a ledger that was set back. Only the leader of the stream
reports that: its refusal names its revision, which is below the one that we wrote. If its entry is
this job's and of no later generation, we write on top of it and training continues. Of two
generations that do so the later one stays, because it does not give way to the earlier one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
import structlog
from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError

from services.trainer import checkpoint_policy
from services.trainer.checkpoint_policy import SaveHistory
from shared.bus.bus import Bus
from shared.bus.client import RETRY_S, is_outage
from shared.bus.publisher import Stale, leading_revision
from shared.bus.subjects import LEDGER
from shared.messages import AllocationDecided, NotNegative
from shared.runtime.log import RateLimitedWarning

logger = structlog.get_logger()
LAG_S, LOOK_S = 10.0, 0.1
"""Seconds for a lagging copy to catch up, and between two reads."""
NewestUid = Callable[[], Awaitable[int | None]]
"""The uid of the job in the newest decision about the name; None: there is no decision."""
SetAside = Callable[[str, int, bytes, str], Awaitable[None]]
"""Key, revision, body, error: store it for a person."""
REMEDY = (
    "nothing is lost: Weir retries until the bus answers; training continues unless it has to drain"
)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The saved state of a job. `paths`: newest first. `digests`: by path, of sealed checkpoints.

    `drained`: the last checkpoint is the final one of its generation. `past`: costs of saves and
    number of failures.
    """

    uid: int
    generation: int
    step: NotNegative = 0
    samples: NotNegative = 0
    paths: tuple[str, ...] = ()
    digests: dict[str, str] = {}
    drained: bool = False
    past: SaveHistory = SaveHistory()


def claim_entry(entry: Entry, generation: int) -> Entry:
    """Return the entry of a later generation. If the previous one began and did not drain, count a
    failure.
    """
    lost = 0 <= entry.generation < generation and not entry.drained
    past = checkpoint_policy.record_failure(entry.past) if lost else entry.past
    return msgspec.structs.replace(entry, generation=generation, drained=False, past=past)


UNREADABLE = Entry(uid=-1, generation=-1)


class StoredEntry(NamedTuple):
    """The content of the ledger under a key; `body` None: there is no entry."""

    revision: int
    body: bytes | None


async def _no_decision() -> int | None:
    return None


class Fence:
    """One job's entry as one generation holds it. Calls are served one after the other.

    `folder`: the folder of the job's checkpoints; empty: anywhere.
    """

    newest_uid: NewestUid = staticmethod(_no_decision)

    def __init__(self, bus: Bus, key: str, uid: int, set_aside: SetAside, folder: str = "") -> None:
        self._bucket, self._client = bus.entry_store(LEDGER), bus.client
        self._key = key
        self._uid = uid
        self._set_aside = set_aside
        self._folder = folder
        self._revision = 0
        self._claimed_generation = -1
        self._lock, self._warning = asyncio.Lock(), RateLimitedWarning()
        self.entry = Entry(uid=uid, generation=-1)
        self.waited_s = 0.0  # time of the last write until a clear answer

    async def claim(self, generation: int, *, back: bool = False) -> Entry:
        """Take the fence. Raise `Stale` if a later generation holds it (unless it gives it `back`).

        A refusal means that another holder has written. Read again until that entry appears, for
        `LAG_S` at most.
        """
        async with self._lock:
            until_s = time.monotonic() + LAG_S
            while True:
                await self._refresh()
                if self.entry.generation > generation and not back:
                    raise Stale(
                        f"generation {self.entry.generation} has taken over from {generation}"
                    )
                if self.entry.generation < 0:
                    await self._check_name()
                try:
                    await self._write_entry(claim_entry(self.entry, generation))
                    self._claimed_generation = generation
                    return self.entry
                except Stale as error:
                    if time.monotonic() > until_s:
                        raise
                    await self._wait_for_lagging_copy(str(error))

    async def commit(
        self,
        path: str,
        step: int,
        samples: int,
        keep: int,
        digest: str = "",
        past: SaveHistory | None = None,
        final: bool = False,
    ) -> Entry:
        """Name a checkpoint. Raise `Stale` if another holder has written since our claim. `past`
        None: unchanged.
        """
        async with self._lock:
            if self.entry.generation != self._claimed_generation:
                # A read since then has shown the claim of another generation.
                raise Stale(
                    f"{self._key}: generation {self._claimed_generation} no longer holds the fence"
                )
            paths = (path, *(p for p in self.entry.paths if p != path))[:keep]
            known = {**self.entry.digests, path: digest}
            await self._write_entry(
                msgspec.structs.replace(
                    self.entry,
                    paths=paths,
                    digests={path: known[path] for path in paths if known.get(path)},
                    step=step,
                    samples=samples,
                    drained=final,
                    past=self.entry.past if past is None else past,
                )
            )
            return self.entry

    async def refresh(self) -> Entry:
        """Read the entry; an entry of another job of this name counts as none. A newer entry of our
        own counts.
        """
        async with self._lock:
            known, revision = self.entry, self._revision
            await self._refresh()
            if self._revision < revision:
                self.entry, self._revision = known, revision
            return self.entry

    async def _refresh(self) -> Entry:
        found = await self._read_entry()
        if found is not None and found is not UNREADABLE:
            self.entry = found if self._is_own(found) else Entry(uid=self._uid, generation=-1)
        return self.entry

    def _is_own(self, entry: Entry) -> bool:
        """Return whether an entry is of this job, and not of an earlier one with the same uid after
        a lost bus.
        """
        below = f"{self._folder}/" if self._folder else ""
        return entry.uid == self._uid and all(path.startswith(below) for path in entry.paths)

    async def _check_name(self) -> None:
        """Raise `Stale` if the name belongs to another job: at once for a later one, else after
        `LAG_S`.
        """
        until_s = time.monotonic() + LAG_S
        while (newest := await self.newest_uid()) not in (None, self._uid):
            why = f"{self._key}: job {newest} has this name now, not job {self._uid}"
            if newest > self._uid or time.monotonic() > until_s:
                raise Stale(why)
            await self._wait_for_lagging_copy(why)

    async def _wait_for_lagging_copy(self, why: str) -> None:
        """Wait for a copy to catch up."""
        self._warning.warn("LedgerLags", key=self._key, revision=self._revision, why=why)
        await asyncio.sleep(LOOK_S)

    async def _read_entry(self) -> Entry | None:
        """Return the stored entry; None if there is none, `UNREADABLE` if it cannot be decoded."""
        stored = await self._read_stored()
        self._revision = stored.revision
        if stored.body is None:
            return None
        try:
            return msgspec.json.decode(stored.body, type=Entry)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            logger.error(
                "OddLedgerEntry",
                bucket=LEDGER,
                key=self._key,
                revision=self._revision,
                error=str(error),
            )
            await self._set_aside(self._key, self._revision, stored.body, str(error))
            await self._check_name()
            return UNREADABLE

    async def _write_entry(self, entry: Entry) -> None:
        """Store an entry on top of the known revision. Raise `Stale` if there is another one."""
        began, body = time.monotonic(), msgspec.json.encode(entry)
        try:
            stored = await self._is_stored(body)
            if not stored and await self._read_entry() is UNREADABLE:
                stored = await self._is_stored(body)
            if not stored:
                raise Stale(f"{self._key}: another holder has written since")
        finally:
            self.waited_s = time.monotonic() - began
        self.entry = entry

    async def _is_stored(self, body: bytes) -> bool:
        """Write until the ledger confirms this entry (True) or shows another one (False)."""
        unclear, until_s = False, 0.0
        while True:
            await self._wait_connected()
            try:
                self._revision = await self._bucket.update(self._key, body, last=self._revision)
                return True
            except KeyWrongLastSequenceError as error:
                if await self._was_set_back(leading_revision(error)):
                    continue
                if not unclear:
                    return False
                until_s = until_s or time.monotonic() + LAG_S
                await self._wait_to_retry("LedgerWriteWaits", error)
            except NatsError as error:
                if not is_outage(error):
                    raise
                unclear = True
                await self._wait_to_retry("LedgerWriteWaits", error)
            there = await self._read_stored()
            if there.revision > self._revision:
                mine = there.body == body
                self._revision = there.revision if mine else self._revision
                return mine
            if there.revision < self._revision and until_s and time.monotonic() > until_s:
                return False  # no lagging copy: the bucket was created again

    async def _was_set_back(self, leading: int | None) -> bool:
        """Return whether the ledger has lost our last write and we may write on top of the rest."""
        if leading is None or leading >= self._revision:
            return False
        until_s = time.monotonic() + LAG_S
        while (there := await self._read_stored()).revision != leading:
            if there.revision > leading or time.monotonic() > until_s:
                return False  # another holder has written
            await self._wait_for_lagging_copy(f"{self._key}: its leader has revision {leading}")
        if not self._may_follow(there.body):
            return False
        logger.warning("LedgerSetBack", key=self._key, revision=self._revision, now=leading)
        self._revision = leading
        return True

    def _may_follow(self, body: bytes | None) -> bool:
        """Return whether the stored entry is this job's and of no later generation, or missing."""
        if body is None:
            return True
        try:
            found = msgspec.json.decode(body, type=Entry)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        return self._is_own(found) and found.generation <= self._claimed_generation

    async def _read_stored(self) -> StoredEntry:
        """Return the stored entry as soon as the ledger answers. A lagging server may show an older
        revision.
        """
        while True:
            await self._wait_connected()
            try:
                found = await self._bucket.get(self._key)
                return StoredEntry(int(found.revision or 0), found.value or b"")
            except KeyNotFoundError as error:
                return StoredEntry(
                    int(getattr(error.entry, "revision", 0) or 0) if error.entry else 0, None
                )
            except NatsError as error:
                if not is_outage(error):
                    raise
                await self._wait_to_retry("LedgerReadWaits", error)

    async def _wait_connected(self) -> None:
        """Wait for a connection. Without one, the client would buffer the write and send it
        late.
        """
        while self._client.is_reconnecting:
            await self._wait_to_retry("LedgerWaits", NatsError("the connection to the bus is lost"))

    async def _wait_to_retry(self, event: str, error: NatsError) -> None:
        """Log the reason and wait until the next try."""
        self._warning.warn_error(
            event, error, key=self._key, revision=self._revision, remedy=REMEDY
        )
        await asyncio.sleep(RETRY_S)


async def open_fence(bus: Bus, key: str, uid: int, folder: str = "") -> Fence:
    async def set_aside(key: str, revision: int, body: bytes, error: str) -> None:
        await bus.add_dead_entry(LEDGER, key, revision, body, error)

    async def newest_uid() -> int | None:
        decided = await bus.last_message(AllocationDecided, key)
        return (
            decided.message.uid
            if decided and isinstance(decided.message, AllocationDecided)
            else None
        )

    fence = Fence(bus, key, uid, set_aside, folder)
    fence.newest_uid = newest_uid
    return fence
