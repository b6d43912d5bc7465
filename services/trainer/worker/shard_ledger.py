"""The shard ledger: which examples were applied, which are being worked on, which are still to do.

Law: all positions 0 .. epochs * examples - 1 are at any time exactly once in `todo`, `given` or the
applied rest. Position p is example p mod examples of epoch p div examples. A batch never crosses an
epoch's end. The ledger travels inside the checkpoint, so both roll back together: what is not
applied in the model is to do in the ledger.
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
        return self.total - sum(s.size for s in self.todo) - sum(s.size for s in self.given)

    @property
    def epoch(self) -> int:
        """The earliest epoch that is not complete (the number of epochs when all is done)."""
        open_at = [s.start for s in (*self.todo[:1], *self.given)]
        return min(open_at) // self.examples if open_at else self.epochs

    @property
    def finished(self) -> bool:
        return not self.todo and not self.given


def fresh(examples: int, epochs: int) -> Ledger:
    """Nothing applied yet."""
    return Ledger(examples=examples, epochs=epochs, todo=(Shard(0, examples * epochs),))


def take(ledger: Ledger, size: int) -> tuple[Ledger, Shard | None]:
    """Give out the next batch of at most `size` examples; None where nothing is to do just now."""
    if not ledger.todo:
        return ledger, None
    first, rest = ledger.todo[0], ledger.todo[1:]
    epoch_end = (first.start // ledger.examples + 1) * ledger.examples
    stop = min(first.start + size, first.stop, epoch_end)
    left = (Shard(stop, first.stop), *rest) if stop < first.stop else rest
    shard = Shard(first.start, stop)
    return msgspec.structs.replace(ledger, todo=left, given=(*ledger.given, shard)), shard


def done(ledger: Ledger, shard: Shard) -> Ledger:
    """The shard's update is applied; raises ValueError for a shard that was not given out."""
    given = list(ledger.given)
    given.remove(shard)
    return msgspec.structs.replace(ledger, given=tuple(given))


def give_back(ledger: Ledger, shard: Shard) -> Ledger:
    """The shard was not applied: it is to do again."""
    returned = done(ledger, shard)
    return msgspec.structs.replace(returned, todo=tuple(sorted((*returned.todo, shard))))


def settled(ledger: Ledger) -> Ledger:
    """The ledger as a checkpoint holds it: what is out counts as to do."""
    for shard in ledger.given:
        ledger = give_back(ledger, shard)
    return ledger


def extend(ledger: Ledger, epochs: int) -> Ledger:
    """Return the ledger of a finished or cancelled job with more epochs to train.

    Raises ValueError if it has more epochs than that already.
    """
    if epochs < ledger.epochs:
        raise ValueError(f"it has {format_count(ledger.epochs, 'epoch')}, more than {epochs}")
    ledger = settled(ledger)
    if epochs == ledger.epochs:
        return ledger
    added = Shard(ledger.total, ledger.examples * epochs)
    return msgspec.structs.replace(ledger, epochs=epochs, todo=(*ledger.todo, added))


def examples_of(ledger: Ledger, shard: Shard) -> tuple[int, int]:
    """The example numbers (start, stop) of a shard within its epoch."""
    start = shard.start % ledger.examples
    return start, start + shard.size
