"""The shard ledger: which examples are applied, which are in progress, which are still to do.

Law: each of the positions 0 .. epochs * examples - 1 is at any time exactly once in `todo`, `given`
or the applied rest. Position p is example p mod examples of epoch p div examples. A batch never
crosses the end of an epoch. The ledger is stored in the checkpoint, so both roll back together: an
example that is not applied in the model is to do in the ledger.
"""

from __future__ import annotations

import msgspec

from shared.text import format_count


class Shard(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Positions start .. stop - 1."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """`todo` is sorted and disjoint; `given` are the shards out with workers."""

    examples: int
    epochs: int
    todo: tuple[Shard, ...]
    given: tuple[Shard, ...] = ()

    @property
    def total(self) -> int:
        return self.examples * self.epochs

    @property
    def applied(self) -> int:
        """Examples applied since the job began."""
        return self.total - sum(shard.size for shard in (*self.todo, *self.given))

    @property
    def epoch(self) -> int:
        """The earliest epoch that is not complete (the number of epochs when all is done)."""
        open_at = [s.start for s in (*self.todo[:1], *self.given)]
        return min(open_at) // self.examples if open_at else self.epochs

    @property
    def finished(self) -> bool:
        return not self.todo and not self.given


def new_ledger(examples: int, epochs: int) -> Ledger:
    """Nothing applied yet."""
    return Ledger(examples=examples, epochs=epochs, todo=(Shard(0, examples * epochs),))


def take_shard(ledger: Ledger, size: int) -> tuple[Ledger, Shard | None]:
    """Return the ledger with the next batch given out, of at most `size` examples; None if none is
    left now.
    """
    if not ledger.todo:
        return ledger, None
    first, rest = ledger.todo[0], ledger.todo[1:]
    epoch_end = (first.start // ledger.examples + 1) * ledger.examples
    stop = min(first.start + size, first.stop, epoch_end)
    left = (Shard(stop, first.stop), *rest) if stop < first.stop else rest
    shard = Shard(first.start, stop)
    return msgspec.structs.replace(ledger, todo=left, given=(*ledger.given, shard)), shard


def mark_applied(ledger: Ledger, part: Shard) -> Ledger:
    """Return the ledger after an update with these positions, a part of one shard that is out.

    Raise ValueError for positions that were not given out.
    """
    return msgspec.structs.replace(ledger, given=_remove_part(ledger.given, part))


def return_shard(ledger: Ledger, part: Shard) -> Ledger:
    """Return the ledger with positions that were out and not applied to do again."""
    returned = mark_applied(ledger, part)
    return msgspec.structs.replace(returned, todo=_merge_shards(sorted((*returned.todo, part))))


def _remove_part(shards: tuple[Shard, ...], part: Shard) -> tuple[Shard, ...]:
    """Return the shards without this part of one of them."""
    for at, shard in enumerate(shards):
        if shard.start <= part.start < part.stop <= shard.stop:
            sides = (Shard(shard.start, part.start), Shard(part.stop, shard.stop))
            rest = tuple([side for side in sides if side.size])
            return shards[:at] + rest + shards[at + 1 :]
    raise ValueError(f"{part} is not given out")


def _merge_shards(shards: list[Shard]) -> tuple[Shard, ...]:
    """Return sorted shards with those that touch each other as one."""
    joined: list[Shard] = []
    for shard in shards:
        if joined and joined[-1].stop == shard.start:
            joined[-1] = Shard(joined[-1].start, shard.stop)
        else:
            joined.append(shard)
    return tuple(joined)


def settle_ledger(ledger: Ledger) -> Ledger:
    """Return the ledger as a checkpoint stores it: shards that are out count as to do."""
    for shard in ledger.given:
        ledger = return_shard(ledger, shard)
    return ledger


def extend_epochs(ledger: Ledger, epochs: int) -> Ledger:
    """Return the ledger of a finished or cancelled job with more epochs to train.

    Raises ValueError if it has more epochs than that already.
    """
    if epochs < ledger.epochs:
        raise ValueError(f"it has {format_count(ledger.epochs, 'epoch')}, more than {epochs}")
    ledger = settle_ledger(ledger)
    if epochs == ledger.epochs:
        return ledger
    added = Shard(ledger.total, ledger.examples * epochs)
    return msgspec.structs.replace(ledger, epochs=epochs, todo=(*ledger.todo, added))


def example_range(ledger: Ledger, shard: Shard) -> tuple[int, int]:
    """Return the example numbers (start, stop) of a shard within its epoch."""
    start = shard.start % ledger.examples
    return start, start + shard.size
