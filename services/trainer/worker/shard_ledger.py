"""The shard ledger: which examples are applied, which are in progress, which are still to do.

Law: each of the positions 0 .. epochs * examples - 1 is at any time exactly once in `todo`, `given`
or the applied rest. Position p is example p mod examples of epoch p div examples. A batch never
crosses the end of an epoch. The ledger is stored in the checkpoint, so both roll back together: an
example that is not applied in the model is to do in the ledger.

Files: how many examples a file has is known once it is read to its end. So each group of files
(`file_source.py`) has `GROUP_POSITIONS` positions, of which the first ones are its examples, and
`examples` counts these positions. One worker reads a group, in order. What a crash leaves to do of
it is read by another worker from there on. At its end the positions without an example are dropped
(`end_group`).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shared.text import format_count


class Shard(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Positions start .. stop - 1."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


Run = tuple[Shard, ...]
"""Positions that are used one after the other. They are not adjacent where a hand-over or a lost
worker has left gaps.
"""
GROUP_POSITIONS = 1 << 40
UNKNOWN = -1
"""Stands for the number of examples of a group that was not read to its end yet."""


class FileCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the examples of files.

    `digest`: of the list of files; `expected`: examples of an epoch according to the program, 0:
    unknown; `applied`: examples applied since the job began; `lengths`: number of examples of each
    group, or `UNKNOWN`.
    """

    digest: int
    expected: int = 0
    applied: int = 0
    lengths: tuple[int, ...]


class Ledger(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`todo` is sorted and disjoint; `given` are the shards that workers have.

    `examples`: positions of an epoch. `files`: None if examples have numbers.
    """

    examples: int
    epochs: int
    todo: tuple[Shard, ...]
    given: tuple[Shard, ...] = ()
    files: FileCounts | None = None

    @property
    def total(self) -> int:
        """The number of examples of all epochs.

        For files it is an estimate until the first epoch is over, and 0 as long as nothing is
        known.
        """
        if self.files is None:
            return self.examples * self.epochs
        return self.files.applied if self.finished else self._expected_total(self.files)

    def _expected_total(self, files: FileCounts) -> int:
        """Return the estimate of `total`, at least the examples applied.

        While a group is unknown, the program's own number counts. If it gives none, unknown groups
        have the mean length of the known ones. If none is known, all have as many examples as are
        applied of the group that is furthest.
        """
        known = [length for length in files.lengths if length != UNKNOWN]
        if len(known) < len(files.lengths) and files.expected:
            an_epoch = files.expected
        elif known:
            an_epoch = round(sum(known) / len(known) * len(files.lengths))
        else:
            begun = [shard.start % GROUP_POSITIONS for shard in (*self.todo, *self.given)]
            an_epoch = max(begun, default=0) * len(files.lengths)
        return max(an_epoch * self.epochs, files.applied)

    @property
    def applied(self) -> int:
        """The number of examples applied since the job began."""
        if self.files is not None:
            return self.files.applied
        return self.total - sum(shard.size for shard in (*self.todo, *self.given))

    @property
    def unit(self) -> int:
        """The number of positions that a shard never leaves: an epoch, or a group of files."""
        return self.examples if self.files is None else GROUP_POSITIONS

    @property
    def epoch(self) -> int:
        """The earliest epoch that is not complete (the number of epochs when all is done)."""
        open_at = [s.start for s in (*self.todo[:1], *self.given)]
        return min(open_at) // self.examples if open_at else self.epochs

    @property
    def finished(self) -> bool:
        return not self.todo and not self.given


def new_ledger(examples: int, epochs: int) -> Ledger:
    """Return the ledger of a job in which nothing is applied yet."""
    return Ledger(examples=examples, epochs=epochs, todo=(Shard(0, examples * epochs),))


def new_file_ledger(groups: int, epochs: int, digest: int, expected: int = 0) -> Ledger:
    """Return the ledger of a job with files in which nothing is applied yet.

    `digest`, `expected`: as in `FileCounts`.
    """
    counts = FileCounts(digest=digest, expected=expected, lengths=(UNKNOWN,) * groups)
    ledger = new_ledger(groups * GROUP_POSITIONS, epochs)
    return msgspec.structs.replace(ledger, files=counts)


def take_shard(ledger: Ledger, size: int) -> tuple[Ledger, Shard | None]:
    """Return the ledger with the next shard given out, of at most `size` positions; None if none is
    left now.
    """
    if not ledger.todo:
        return ledger, None
    first, rest = ledger.todo[0], ledger.todo[1:]
    unit_end = (first.start // ledger.unit + 1) * ledger.unit
    stop = min(first.start + size, first.stop, unit_end)
    left = (Shard(stop, first.stop), *rest) if stop < first.stop else rest
    shard = Shard(first.start, stop)
    return msgspec.structs.replace(ledger, todo=left, given=(*ledger.given, shard)), shard


def take_run(ledger: Ledger, size: int) -> tuple[Ledger, Run]:
    """Return the ledger with the next positions given out: at most `size`, all of one unit; none if
    none is left now.
    """
    run: list[Shard] = []
    while size:
        if run and ledger.todo and _unit_of(ledger, ledger.todo[0]) != _unit_of(ledger, run[0]):
            break
        ledger, shard = take_shard(ledger, size)
        if shard is None:
            break
        run.append(shard)
        size -= shard.size
    return ledger, tuple(run)


def take_shards(ledger: Ledger, shards: Iterable[Shard]) -> Ledger:
    """Return the ledger with these positions given out. Raise ValueError unless all are to do."""
    todo = ledger.todo
    taken = tuple(shards)
    for shard in taken:
        todo = _remove_part(todo, shard)
    return msgspec.structs.replace(ledger, todo=todo, given=(*ledger.given, *taken))


def left_in_unit(ledger: Ledger) -> int:
    """Return the number of positions that are to do in the unit of the first of them."""
    if not ledger.todo:
        return 0
    unit = _unit_of(ledger, ledger.todo[0])
    end = (unit + 1) * ledger.unit
    inside = [shard for shard in ledger.todo if shard.start < end]
    return sum([min(shard.stop, end) - shard.start for shard in inside])


def _unit_of(ledger: Ledger, shard: Shard) -> int:
    return shard.start // ledger.unit


def mark_applied(ledger: Ledger, part: Shard) -> Ledger:
    """Return the ledger after an update with these positions, a part of one given shard.

    Raise ValueError for positions that were not given out.
    """
    ledger = _without_given(ledger, part)
    if ledger.files is None:
        return ledger
    applied = ledger.files.applied + part.size
    return msgspec.structs.replace(
        ledger, files=msgspec.structs.replace(ledger.files, applied=applied)
    )


def mark_runs_applied(ledger: Ledger, runs: Iterable[Run]) -> Ledger:
    """Return the ledger after updates with these positions, as `mark_applied`."""
    for run in runs:
        for shard in run:
            ledger = mark_applied(ledger, shard)
    return ledger


def return_shard(ledger: Ledger, part: Shard) -> Ledger:
    """Return the ledger with positions back in `todo` that were given out and not applied."""
    returned = _without_given(ledger, part)
    return msgspec.structs.replace(returned, todo=_merge_shards(sorted((*returned.todo, part))))


def mark_update_applied(ledger: Ledger, parts: Iterable[Run], examples: int) -> Ledger:
    """Return the ledger after one update with all these parts.

    Raise ValueError unless they have `examples` examples of one epoch, or fewer and all other
    updates of that epoch have as many. Of files, the update with fewer is the last of its epoch.
    """
    runs = list(parts)
    ledger = mark_runs_applied(ledger, runs)
    shards = [shard for run in runs for shard in run]
    applied = sum([shard.size for shard in shards])
    epochs = {shard.start // ledger.examples for shard in shards}
    left = _left_in_epoch(ledger, min(epochs))
    is_short = applied < examples and (left == 0 or (not ledger.files and left % examples == 0))
    if len(epochs) > 1 or not (applied == examples or is_short):
        raise ValueError(
            f"an update with {format_count(applied, 'example')} in place of {examples}: {shards}"
        )
    return ledger


def _left_in_epoch(ledger: Ledger, epoch: int) -> int:
    """Return the number of positions of an epoch that are to do or given out."""
    begin, end = epoch * ledger.examples, (epoch + 1) * ledger.examples
    shards = (*ledger.todo, *ledger.given)
    return sum([max(min(each.stop, end) - max(each.start, begin), 0) for each in shards])


def end_group(ledger: Ledger, rest: Shard, group: int) -> Ledger:
    """Return the ledger after a worker has read the group of files with this number to its end.
    `rest`: the positions of its shard that have no example.
    """
    ledger = _without_given(ledger, rest)
    assert ledger.files is not None
    lengths = list(ledger.files.lengths)
    lengths[group] = rest.start % GROUP_POSITIONS
    files = msgspec.structs.replace(ledger.files, lengths=tuple(lengths))
    return msgspec.structs.replace(ledger, files=files)


def is_open(ledger: Ledger, shard: Shard) -> bool:
    """Return whether a shard reaches to the end of its group, whose length may be unknown."""
    return ledger.files is not None and shard.stop % GROUP_POSITIONS == 0


def _without_given(ledger: Ledger, part: Shard) -> Ledger:
    return msgspec.structs.replace(ledger, given=_remove_part(ledger.given, part))


def _remove_part(shards: tuple[Shard, ...], part: Shard) -> tuple[Shard, ...]:
    """Return the shards without this part of one of them."""
    for at, shard in enumerate(shards):
        if shard.start <= part.start < part.stop <= shard.stop:
            sides = (Shard(shard.start, part.start), Shard(part.stop, shard.stop))
            rest = tuple([side for side in sides if side.size])
            return shards[:at] + rest + shards[at + 1 :]
    raise ValueError(f"{part} is not among {shards}")


def _merge_shards(shards: list[Shard]) -> tuple[Shard, ...]:
    """Return sorted shards, with adjacent ones merged."""
    joined: list[Shard] = []
    for shard in shards:
        if joined and joined[-1].stop == shard.start:
            joined[-1] = Shard(joined[-1].start, shard.stop)
        else:
            joined.append(shard)
    return tuple(joined)


def settle_ledger(ledger: Ledger) -> Ledger:
    """Return the ledger as a checkpoint stores it: shards that workers have are back in `todo`."""
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
    added = Shard(ledger.examples * ledger.epochs, ledger.examples * epochs)
    return msgspec.structs.replace(ledger, epochs=epochs, todo=(*ledger.todo, added))


def run_size(run: Run) -> int:
    return sum([shard.size for shard in run])


def split_run(run: Run, size: int) -> tuple[Run, Run]:
    """Return the first `size` positions of a run, and the others."""
    head: list[Shard] = []
    for place, shard in enumerate(run):
        if size < shard.size:
            cut = shard.start + size
            if size:
                head.append(Shard(shard.start, cut))
            return tuple(head), (Shard(cut, shard.stop), *run[place + 1 :])
        head.append(shard)
        size -= shard.size
    return tuple(head), ()


def example_range(ledger: Ledger, shard: Shard) -> tuple[int, int]:
    """Return the places (start, stop) of a shard within its epoch, or within its group of files."""
    start = shard.start % ledger.unit
    return start, start + shard.size


def describe_shard(ledger: Ledger, shard: Shard) -> str:
    """Return the place of a shard in its epoch, as text."""
    start, stop = example_range(ledger, shard)
    if ledger.files is None:
        return f"the examples at places {start} .. {stop - 1} of their epoch"
    place = shard.start % ledger.examples // ledger.unit + 1
    group = f"group {place} of {len(ledger.files.lengths)} of the files of their epoch"
    if is_open(ledger, shard):
        return f"the examples from {start} on in {group}"
    return f"the examples {start} .. {stop - 1} in {group}"
