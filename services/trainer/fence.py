"""The fence: a checkpoint exists once the ledger bucket names it; only who holds the fence may name one.

Each write is a compare-and-set on what this holder wrote or claimed last, so a stale generation's commit is refused.
What cannot be read was not written by any generation: it is set aside, and nobody is stale because of it. Then what
this holder knows counts; who knows nothing begins anew.

An entry carries its job's uid. A job may take the place of another job's entry, or of none, only while the newest
decision about the name is its own: so a pod that outlived its job cannot overwrite the entry of the next job of that
name. Uids are not compared: they start again from small numbers when the bus was lost and the ledger was not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import structlog
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from services.trainer import interval
from services.trainer.interval import Past
from shared.bus import Bus, Stale
from shared.messages import AllocationDecided, NotNegative
from shared.subjects import LEDGER

logger = structlog.get_logger()


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What is known to be saved. `paths`: newest first; `digests`: by path, of those that were sealed.

    `drained`: the last one is all that there was of its generation; `past`: what saves cost and how often all failed.
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
    """A later generation that follows on one which had begun, and did not drain for it, follows on a failure."""
    lost = 0 <= entry.generation < generation and not entry.drained
    past = interval.failed(entry.past) if lost else entry.past
    return msgspec.structs.replace(entry, generation=generation, drained=False, past=past)


LOOKS, LOOK_S = 3, 0.1
ODD = Entry(uid=-1, generation=-1)
NewestUid = Callable[[], Awaitable[int | None]]
"""The uid of the job that the newest decision about the name is for; None: there is no decision."""
SetAside = Callable[[str, int, bytes, str], Awaitable[None]]
"""Key, revision, body, error: keep it where a person may find it."""


async def _no_decision() -> int | None:
    return None


class Fence:
    """One job's entry, as one generation holds it."""

    newest_uid: NewestUid = staticmethod(_no_decision)

    def __init__(self, bucket: KeyValue, key: str, uid: int, set_aside: SetAside) -> None:
        self._bucket, self._key, self._uid, self._set_aside = bucket, key, uid, set_aside
        self._revision = 0
        self._held = -1  # the generation that claimed last
        self.entry = Entry(uid=uid, generation=-1)

    async def claim(self, generation: int, *, back: bool = False) -> Entry:
        """Take the fence; raises `Stale` where a later generation has it (unless it gives it `back`).

        A server of several may show what another has overwritten just now: then we look again.
        """
        for left in reversed(range(LOOKS)):
            await self.look()
            if self.entry.generation > generation and not back:
                raise Stale(f"generation {self.entry.generation} has taken over from {generation}")
            if self.entry.generation < 0:
                await self._check_name()
            try:
                await self._write(claimed(self.entry, generation))
                self._held = generation
                break
            except Stale:
                if not left:
                    raise
                await asyncio.sleep(LOOK_S)
        return self.entry

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
        """Name a checkpoint; raises `Stale` where another has written since our claim. `past` None: as before."""
        if self.entry.generation != self._held:  # somebody looked since, and saw that another has claimed
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
        """Read what is there; an entry of another job of this name counts as none."""
        found = await self._found()
        if found is not None and found is not ODD:
            self.entry = found if found.uid == self._uid else Entry(uid=self._uid, generation=-1)
        return self.entry

    async def _check_name(self) -> None:
        """Raise `Stale` where the name belongs to another job now."""
        newest = await self.newest_uid()
        if newest is not None and newest != self._uid:
            raise Stale(f"{self._key}: job {newest} has this name now, not job {self._uid}")

    async def _found(self) -> Entry | None:
        """The entry that is there; None where there is none, `ODD` where it cannot be read."""
        try:
            found = await self._bucket.get(self._key)
        except KeyNotFoundError as error:
            self._revision = int(getattr(error.entry, "revision", 0) or 0) if error.entry else 0
            return None
        self._revision = int(found.revision or 0)
        try:
            return msgspec.json.decode(found.value or b"", type=Entry)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            logger.error("OddLedgerEntry", bucket=LEDGER, key=self._key, revision=self._revision, error=str(error))
            await self._set_aside(self._key, self._revision, found.value or b"", str(error))
            await self._check_name()
            return ODD

    async def _write(self, entry: Entry) -> None:
        if not await self._written(entry) and (await self._found() is not ODD or not await self._written(entry)):
            raise Stale(f"{self._key}: somebody else has saved since")
        self.entry = entry

    async def _written(self, entry: Entry) -> bool:
        """Whether nobody has written since we last looked or wrote."""
        try:
            self._revision = await self._bucket.update(self._key, msgspec.json.encode(entry), last=self._revision)
        except KeyWrongLastSequenceError:
            return False
        return True


async def of(bus: Bus, key: str, uid: int) -> Fence:
    async def set_aside(key: str, revision: int, body: bytes, error: str) -> None:
        await bus.bury_entry(LEDGER, key, revision, body, error)

    async def newest_uid() -> int | None:
        decided = await bus.last(AllocationDecided, key)
        return decided.message.uid if decided and isinstance(decided.message, AllocationDecided) else None

    fence = Fence(bus.entries(LEDGER), key, uid, set_aside)
    fence.newest_uid = newest_uid
    return fence
