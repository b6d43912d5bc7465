"""The fence: a checkpoint exists once the ledger bucket names it; only who holds the fence may name
one.

Each write is a compare-and-set on what this holder wrote or claimed last, so a stale generation's
commit is refused. What cannot be read was not written by any generation: it is set aside, and
nobody is stale because of it. Then what this holder knows counts; who knows nothing begins anew.

An entry carries its job's uid. A job may take the place of another job's entry, or of none, only
while the newest decision about the name is its own: so a pod that outlived its job cannot overwrite
the entry of the next job of that name. A smaller uid may be a later job's, too: they start again
from small numbers when the bus was lost and the ledger was not. An entry whose checkpoints are not
in the job's own folder is another job's, whatever its uid.

Every read and every write is repeated until the ledger answers. A write without a clear answer
(time-out, connection lost, no responders) may have been stored, so the ledger is read before the
write is repeated: if it holds our entry, the write is done; if it holds another one, somebody else
has written, and we are stale. A write that waits is logged at once and then every `patience.TOLD_S`
seconds.

On a bus of several servers any copy of a stream answers a read, also one that lags. What it shows
was true, so a later generation or a later job that it shows makes us stale at once. What it does
not show may be there all the same: after a refusal, or an earlier job's decision, we look again for
`LAG_S`. Nobody believes a copy that shows less than he wrote.

A bus that lost its last writes has a ledger that was set back. It says so itself, and no copy does:
a refusal names the revision that the leader of the stream has, and it is below the one that we
wrote. Where the entry there is this job's, and of no later generation, we write on top of it, and
training goes on. Of two generations that do so the later one stays, for it does not give way to the
earlier one.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
import structlog
from nats.errors import Error as NatsError
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError

from services.trainer import checkpoint_policy
from services.trainer.checkpoint_policy import Past
from shared.bus.bus import Bus
from shared.bus.client import RETRY_S, is_outage
from shared.bus.publisher import Stale
from shared.bus.subjects import LEDGER
from shared.messages import AllocationDecided, NotNegative
from shared.runtime.log import RateLimitedWarning

logger = structlog.get_logger()


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What is known to be saved. `paths`: newest first; `digests`: by path, of those that were
    sealed.

    `drained`: the last one is all that there was of its generation; `past`: what saves cost and how
    often all failed.
    """

    uid: int
    generation: int
    step: NotNegative = 0
    samples: NotNegative = 0
    paths: tuple[str, ...] = ()
    digests: dict[str, str] = {}
    drained: bool = False
    past: Past = Past()


def claimed(entry: Entry, generation: int) -> Entry:
    """A later generation that follows on one which had begun, and did not drain for it, follows on
    a failure.
    """
    lost = 0 <= entry.generation < generation and not entry.drained
    past = checkpoint_policy.failed(entry.past) if lost else entry.past
    return msgspec.structs.replace(entry, generation=generation, drained=False, past=past)


LAG_S, LOOK_S = 10.0, 0.1
"""How long a copy that lags may take to show what is there, and the time between two looks;
seconds.
"""
ODD = Entry(uid=-1, generation=-1)
NewestUid = Callable[[], Awaitable[int | None]]
"""The uid of the job that the newest decision about the name is for; None: there is no decision."""
SetAside = Callable[[str, int, bytes, str], Awaitable[None]]
"""Key, revision, body, error: keep it where a person may find it."""


class Stored(NamedTuple):
    """What the ledger holds under a key; `body` is None where it holds nothing (any more)."""

    revision: int
    body: bytes | None


async def _no_decision() -> int | None:
    return None


class Fence:
    """One job's entry, as one generation holds it. Its calls are served one after the other.

    `folder`: where the job's checkpoints are; empty: anywhere.
    """

    newest_uid: NewestUid = staticmethod(_no_decision)

    def __init__(self, bus: Bus, key: str, uid: int, set_aside: SetAside, folder: str = "") -> None:
        self._bucket, self._client = bus.entry_store(LEDGER), bus.client
        self._key = key
        self._uid = uid
        self._set_aside = set_aside
        self._folder = folder
        self._revision = 0
        self._held = -1  # the generation that claimed last
        self._turn, self._plaint = asyncio.Lock(), RateLimitedWarning()
        self.entry = Entry(uid=uid, generation=-1)
        self.waited_s = 0.0  # for how long the last write waited for a clear answer

    async def claim(self, generation: int, *, back: bool = False) -> Entry:
        """Take the fence; raises `Stale` where a later generation has it (unless it gives it
        `back`).

        A refusal says that another has written since. Look again until that is shown, for `LAG_S`
        at most.
        """
        async with self._turn:
            until_s = time.monotonic() + LAG_S
            while True:
                await self._look()
                if self.entry.generation > generation and not back:
                    raise Stale(
                        f"generation {self.entry.generation} has taken over from {generation}"
                    )
                if self.entry.generation < 0:
                    await self._check_name()
                try:
                    await self._write(claimed(self.entry, generation))
                    self._held = generation
                    return self.entry
                except Stale as error:
                    if time.monotonic() > until_s:
                        raise
                    await self._look_later(str(error))

    async def commit(
        self,
        path: str,
        step: int,
        samples: int,
        keep: int,
        digest: str = "",
        past: Past | None = None,
        final: bool = False,
    ) -> Entry:
        """Name a checkpoint; raises `Stale` where another has written since our claim. `past` None:
        as before.
        """
        async with self._turn:
            if (
                self.entry.generation != self._held
            ):  # somebody looked since, and saw that another has claimed
                raise Stale(f"{self._key}: generation {self._held} holds the fence no more")
            paths = (path, *(p for p in self.entry.paths if p != path))[:keep]
            known = {**self.entry.digests, path: digest}
            await self._write(
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

    async def look(self) -> Entry:
        """Read what is there; an entry of another job of this name counts as none. What we know to
        be newer counts.
        """
        async with self._turn:
            known, revision = self.entry, self._revision
            await self._look()
            if self._revision < revision:
                self.entry, self._revision = known, revision
            return self.entry

    async def _look(self) -> Entry:
        found = await self._found()
        if found is not None and found is not ODD:
            self.entry = found if self._is_own(found) else Entry(uid=self._uid, generation=-1)
        return self.entry

    def _is_own(self, entry: Entry) -> bool:
        """Return whether an entry is of this job: not of an earlier one whose uid was used again
        after a lost bus.
        """
        below = f"{self._folder}/" if self._folder else ""
        return entry.uid == self._uid and all(path.startswith(below) for path in entry.paths)

    async def _check_name(self) -> None:
        """Raise `Stale` where the name belongs to another job now: at once to a later one, else
        after `LAG_S`.
        """
        until_s = time.monotonic() + LAG_S
        while (newest := await self.newest_uid()) not in (None, self._uid):
            why = f"{self._key}: job {newest} has this name now, not job {self._uid}"
            if newest > self._uid or time.monotonic() > until_s:
                raise Stale(why)
            await self._look_later(why)

    async def _look_later(self, why: str) -> None:
        """Wait for a copy to catch up."""
        self._plaint.warn("LedgerLags", key=self._key, revision=self._revision, why=why)
        await asyncio.sleep(LOOK_S)

    async def _found(self) -> Entry | None:
        """The entry that is there; None where there is none, `ODD` where it cannot be read."""
        stored = await self._read()
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
            return ODD

    async def _write(self, entry: Entry) -> None:
        """Store an entry on top of the one that we know; raises `Stale` where there is another
        one.
        """
        began, body = time.monotonic(), msgspec.json.encode(entry)
        try:
            if not await self._is_stored(body) and (
                await self._found() is not ODD or not await self._is_stored(body)
            ):
                raise Stale(f"{self._key}: somebody else has saved since")
        finally:
            self.waited_s = time.monotonic() - began
        self.entry = entry

    async def _is_stored(self, body: bytes) -> bool:
        """Write until the ledger says that it has this on top of the known revision, or that it has
        another entry.
        """
        unclear, until_s = False, 0.0
        while True:
            await self._connected()
            try:
                self._revision = await self._bucket.update(self._key, body, last=self._revision)
                return True
            except KeyWrongLastSequenceError as error:
                if await self._was_set_back(leading_revision(error)):
                    continue
                if not unclear:
                    return False
                until_s = until_s or time.monotonic() + LAG_S
                await self._wait("LedgerWriteWaits", error)
            except NatsError as error:
                if not is_outage(error):
                    raise
                unclear = True
                await self._wait("LedgerWriteWaits", error)
            there = await self._read()
            if there.revision > self._revision:
                mine = there.body == body
                self._revision = there.revision if mine else self._revision
                return mine
            if there.revision < self._revision and until_s and time.monotonic() > until_s:
                return False  # no copy that lags: the bucket was made anew

    async def _was_set_back(self, leading: int | None) -> bool:
        """Return whether the ledger has lost what we wrote, and we may write on top of what is
        left.
        """
        if leading is None or leading >= self._revision:
            return False
        until_s = time.monotonic() + LAG_S
        while (there := await self._read()).revision != leading:
            if there.revision > leading or time.monotonic() > until_s:
                return False  # somebody else has written meanwhile
            await self._look_later(f"{self._key}: its leader has revision {leading}")
        if not self._may_follow(there.body):
            return False
        logger.warning("LedgerSetBack", key=self._key, revision=self._revision, now=leading)
        self._revision = leading
        return True

    def _may_follow(self, body: bytes | None) -> bool:
        """Return whether an entry is this job's, and of no later generation than ours; or there is
        none.
        """
        if body is None:
            return True
        try:
            found = msgspec.json.decode(body, type=Entry)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        return self._is_own(found) and found.generation <= self._held

    async def _read(self) -> Stored:
        """What the ledger holds, as soon as it answers. A server of several may show an older
        revision.
        """
        while True:
            await self._connected()
            try:
                found = await self._bucket.get(self._key)
                return Stored(int(found.revision or 0), found.value or b"")
            except KeyNotFoundError as error:
                return Stored(
                    int(getattr(error.entry, "revision", 0) or 0) if error.entry else 0, None
                )
            except NatsError as error:
                if not is_outage(error):
                    raise
                await self._wait("LedgerReadWaits", error)

    async def _connected(self) -> None:
        """Return when there is a connection; else the client would keep what it cannot send, and
        send it late.
        """
        while self._client.is_reconnecting:
            await self._wait("LedgerWaits", NatsError("the connection to the bus is lost"))

    async def _wait(self, event: str, error: NatsError) -> None:
        """Wait until the next try, and say in the log why."""
        self._plaint.warn_error(event, error, key=self._key, revision=self._revision, remedy=REMEDY)
        await asyncio.sleep(RETRY_S)


def leading_revision(error: KeyWrongLastSequenceError) -> int | None:
    """Return the revision that the leader of the ledger has of an entry, as its refusal says; None:
    it does not say.
    """
    found = WRONG_REVISION.search(error.description or "")
    return int(found[1]) if found else None


WRONG_REVISION = re.compile(r"wrong last sequence: (\d+)")
REMEDY = "nothing is lost: it is tried until the bus answers; training goes on meanwhile, unless it has to drain"


async def of(bus: Bus, key: str, uid: int, folder: str = "") -> Fence:
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
