"""The division of an update's examples among the workers that make it together.

Which examples an update has is planned for some updates at a time, a round. Each worker reads a run
of positions in a round, so that it reads long ranges:

    round of 3 updates   worker-0: 0 .. 11             worker-1: 12 .. 23
    update 0             0 .. 3                        12 .. 15
    update 1             4 .. 7                        16 .. 19
    update 2             8 .. 11                       20 .. 23

An update has examples of one epoch. The last one of an epoch has those that are left, as in one
process. A faster worker gets a larger part, so that all parts are ready at about the same time.

With `consistency: exact`, the examples of an update do not depend on the number of workers. A round
is a fixed number of updates, and each update has a fixed number of parts (virtual workers). Each
worker computes some of them.

Files have unknown lengths, so the examples of an update are not planned. Each update takes the
first staged examples of all workers, cut so that they are as many as it needs (`divide_staged`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from services.trainer.worker import shard_ledger
from services.trainer.worker.shard_ledger import Ledger, Run, Shard
from shared.text import format_count

EQUALLY_FAST = 1.25
"""Workers whose speeds differ by less than this factor get equal parts, because speeds vary."""


EXACT_ROUND = 32
"""The number of updates in a round. It may not change: a job continues under a later version in the
middle of a round.
"""


class Round(NamedTuple):
    """Some updates. `parts`: examples of each worker in an update; `runs`: positions of each."""

    updates: int
    parts: tuple[int, ...]
    runs: tuple[Run, ...]


def plan_round(
    ledger: Ledger, update: int, speeds: Sequence[float], most_updates: int
) -> tuple[Ledger, Round]:
    """Return the ledger with the examples of the next updates given out, and these as a round.

    `update`: examples of an update; `speeds`: of the workers. There have to be examples to do.
    """
    left = shard_ledger.left_in_unit(ledger)
    updates = max(min(left // update, most_updates), 1)
    parts = divide_examples(min(left, update), speeds)
    runs = []
    for part in parts:
        ledger, run = shard_ledger.take_run(ledger, part * updates)
        runs.append(run)
    return ledger, Round(updates, parts, tuple(runs))


def divide_examples(examples: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Return whole parts of `examples`: one for each speed, and the others in proportion to the
    speeds (method of largest remainders). The first parts have one if there are too few examples.
    """
    if examples < len(speeds):
        return (1,) * examples + (0,) * (len(speeds) - examples)
    shares = [(examples - len(speeds)) * speed / sum(speeds) for speed in speeds]
    parts = [1 + int(share) for share in shares]
    by_remainder = sorted(range(len(parts)), key=lambda at: int(shares[at]) - shares[at])
    for at in by_remainder[: examples - sum(parts)]:
        parts[at] += 1
    return tuple(parts)


def count_parts(update: int, most: int | None, wanted: int) -> int:
    """Return the number of parts of an exact update: it divides the update, and a part has at most
    `most` examples. It is the largest up to `wanted`, or else the smallest above.
    """
    divisors = [count for count in range(1, update + 1) if update % count == 0]
    fitting = [count for count in divisors if most is None or update // count <= most]
    few = [count for count in fitting if count <= wanted]
    return max(few) if few else min(fitting)


def exact_updates(ledger: Ledger, update: int, part_count: int) -> list[tuple[Shard, ...]]:
    """Return the parts of each update, from the first that is to do to the end of its round.
    `update`: examples of an update; `part_count`: its number of parts.

    They depend on the number of examples that are applied in the epoch alone. Raise ValueError if
    that is no whole number of updates.
    """
    begun = ledger.examples - shard_ledger.left_in_unit(ledger)
    number, rest = divmod(begun, update)
    if rest:
        done = format_count(begun, "example")
        raise ValueError(f"{done} of an epoch are no whole number of updates of {update}")
    base = ledger.todo[0].start // ledger.examples * ledger.examples
    whole = ledger.examples // update
    if number == whole:
        start, stop = base + whole * update, base + ledger.examples
        part = -(-(stop - start) // part_count)
        return [tuple([Shard(at, min(at + part, stop)) for at in range(start, stop, part)])]
    first = number // EXACT_ROUND * EXACT_ROUND
    count = min(EXACT_ROUND, whole - first)
    part = update // part_count
    start = base + first * update
    updates = []
    for place in range(number - first, count):
        starts = [start + (at * count + place) * part for at in range(part_count)]
        updates.append(tuple([_part_at(each, part) for each in starts]))
    return updates


def can_begin_exactly(ledger: Ledger, update: int, part_count: int) -> bool:
    """Return whether exact updates can continue here: what is to do is what they leave to do. Any
    number of whole epochs may be applied.
    """
    if not ledger.todo:
        return True
    first = ledger.todo[0].start // ledger.examples
    later = sum([shard.size for shard in ledger.todo]) - shard_ledger.left_in_unit(ledger)
    if later != (ledger.epochs - first - 1) * ledger.examples:
        return False
    try:
        updates = exact_updates(ledger, update, part_count)
        rest = shard_ledger.take_shards(ledger, [part for parts in updates for part in parts])
    except ValueError:
        return False
    # As many positions are left as behind the round, so they are these if none is before it.
    end = max(part.stop for parts in updates for part in parts)
    behind = rest.todo[0].start if rest.todo else (first + 1) * ledger.examples
    return behind >= end


def _part_at(start: int, size: int) -> Shard:
    return Shard(start, start + size)


def divide_staged(staged: Sequence[Sequence[int]], examples: int) -> list[list[int]] | None:
    """Return the sizes of the passes of each worker in an update of `examples` examples; None if
    fewer are staged.

    `staged`: the sizes of the staged batches of each worker, of which the first ones are taken.
    The last pass of a worker may be the beginning of a batch.
    """
    if sum([sum(sizes) for sizes in staged]) < examples:
        return None
    wanted = [0] * len(staged)
    missing = examples
    while missing:
        open_ = [at for at, sizes in enumerate(staged) if wanted[at] < sum(sizes)]
        for at, more in zip(open_, divide_examples(missing, [1.0] * len(open_)), strict=True):
            wanted[at] = min(wanted[at] + more, sum(staged[at]))
        missing = examples - sum(wanted)
    return [_first_examples(sizes, count) for sizes, count in zip(staged, wanted, strict=True)]


def _first_examples(sizes: Sequence[int], count: int) -> list[int]:
    """Return the sizes of the first batches, of which the last is cut, with `count` examples."""
    taken: list[int] = []
    for size in sizes:
        if count > 0:
            taken.append(min(size, count))
            count -= size
    return taken


def part_speeds(examples_per_s: Sequence[float]) -> list[float]:
    """Return relative speeds: equal unless all are known (not 0) and they clearly differ."""
    known = [speed for speed in examples_per_s if speed > 0.0 and math.isfinite(speed)]
    if len(known) < len(examples_per_s) or max(known) < EQUALLY_FAST * min(known):
        return [1.0] * len(examples_per_s)
    return list(examples_per_s)
