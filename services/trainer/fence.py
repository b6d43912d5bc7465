"""The fence: a checkpoint exists once the ledger bucket names it; only who holds the fence may name one.

Each write is a compare-and-set on what this holder wrote or claimed last, so a stale generation's commit is refused.
"""

from __future__ import annotations

import msgspec
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from shared.bus import LEDGER, Bus, Stale


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What is known to be saved. `paths`: newest first."""

    uid: int
    generation: int
    step: int = 0
    samples: int = 0
    paths: tuple[str, ...] = ()


class Fence:
    """One job's entry, as one generation holds it."""

    def __init__(self, bucket: KeyValue, key: str, uid: int) -> None:
        self._bucket, self._key, self._uid = bucket, key, uid
        self._revision = 0
        self.entry = Entry(uid=uid, generation=-1)

    async def claim(self, generation: int, *, back: bool = False) -> Entry:
        """Take the fence; raises `Stale` where a later generation has it (unless it gives it `back`)."""
        await self.look()
        if self.entry.generation > generation and not back:
            raise Stale(f"generation {self.entry.generation} has taken over from {generation}")
        await self._write(msgspec.structs.replace(self.entry, generation=generation))
        return self.entry

    async def commit(self, path: str, step: int, samples: int, keep: int) -> Entry:
        """Name a checkpoint; raises `Stale` where another has written since our claim."""
        paths = (path, *(p for p in self.entry.paths if p != path))[:keep]
        await self._write(msgspec.structs.replace(self.entry, paths=paths, step=step, samples=samples))
        return self.entry

    async def look(self) -> Entry:
        """Read what is there; an entry of another job of this name counts as none."""
        try:
            found = await self._bucket.get(self._key)
            self._revision = int(found.revision or 0)
            entry = msgspec.json.decode(found.value or b"", type=Entry)
        except KeyNotFoundError as error:
            self._revision = int(getattr(error.entry, "revision", 0) or 0) if error.entry else 0
            return self.entry
        self.entry = entry if entry.uid == self._uid else Entry(uid=self._uid, generation=-1)
        return self.entry

    async def _write(self, entry: Entry) -> None:
        try:
            self._revision = await self._bucket.update(self._key, msgspec.json.encode(entry), last=self._revision)
        except KeyWrongLastSequenceError as error:
            raise Stale(f"{self._key}: somebody else has saved since") from error
        self.entry = entry


async def of(bus: Bus, key: str, uid: int) -> Fence:
    return Fence(await bus.bucket(LEDGER), key, uid)
