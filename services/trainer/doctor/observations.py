"""What is asked of a process that tries a program (`examine.py`), and what it tells: one JSON
document a line. Pure.

After each step the process tells all that it knows by then; so whoever reads knows how far it came,
however it ends.

Whether labels come in an order that training suffers from: sorted, or class after class. Pure.

Nothing shuffles the examples, so batches of one class follow each other, and the model learns the
last one. Given how often each of C labels occurs (n_1 .. n_C of n), a random order

    is sorted, up or down, with probability      2 n_1! .. n_C! / n!
    has each class in one run with probability  C! n_1! .. n_C! / n!

What is less likely than `CHANCE` is no accident. Labels of one class, and classes of one example,
prove nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import msgspec

Shape = tuple[int, ...]
ENDS = 4  # of a batch, so many examples at its beginning, and at its end, are looked at

FIRST = 4  # batches of which the labels are looked at, besides the middle and the last one


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """`program`: its file. `batch`: examples of an update. `limit_s`: how long one call of its code
    may take.

    `device_batch_max`: the most examples that a worker may hold at once, if there is such a limit.
    `ps`: on so many parameter servers an update is made; 0: only examples are read, for another
    process reads them too.
    """

    program: str
    batch: int
    device_batch_max: int | None = None
    ps: int = 0
    limit_s: float = 75.0


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A variable of the model. `learns`: its gradient is there; None: it is not to be trained.

    `whole`: all of it leaves its ps for every batch, though only some of its rows are needed.
    """

    name: str
    shape: tuple[int, ...]
    bytes: int
    learns: bool | None = None
    whole: bool = False


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen so far. Seconds are of a later try, where the first is slower.

    `together` and `alone`: digests of examples, by number, read with others of their batch and each
    by itself; `infinite`: those of them with a number that is none. `ordered`: the labels of the
    batches read are sorted, or come class by class. `slots`: bytes that the optimizer keeps besides
    the variables. `loaded_gib`: what the program's import added to the process. `labels` and
    `outputs`: shapes of a batch's, `span`: the least and the most of its only output. `lossy`:
    shape of a loss that has a number for each pair of examples; `mixed`: it has, and is the mean of
    them.
    """

    loaded_s: float | None = None
    loaded_gib: float = 0.0
    examples: int | None = None
    together: dict[int, str] = {}
    alone: dict[int, str] = {}
    infinite: tuple[int, ...] = ()
    ordered: bool = False
    read_s: float | None = None
    variables: tuple[Held, ...] | None = None
    slots: int = 0
    scheduled: bool = False
    labels: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()
    span: tuple[float, float] | None = None
    lossy: Shape = ()
    mixed: bool = False
    update_s: float | None = None
    loss: float | None = None
    finite: bool = True
    evaluated: bool | None = None
    failed: str = ""
    done: bool = False


def starts(examples: int, size: int) -> tuple[int, ...]:
    """Where batches of `size` are read: at the beginning, in the middle and at the end."""
    return tuple(sorted({0, (examples - size) // 2, examples - size}))


def looked_at(start: int, size: int) -> tuple[int, ...]:
    """The numbers of a batch's examples that are looked at."""
    numbers = range(start, start + size)
    return tuple(sorted({*numbers[:ENDS], *numbers[-ENDS:]}))


def reads_at_once(asked: Asked, examples: int) -> int:
    """Return how many examples a worker of the job reads at once."""
    return min(asked.batch, asked.device_batch_max or asked.batch, examples)


def first_starts(examples: int, size: int) -> tuple[int, ...]:
    """Return where the first batches begin."""
    return tuple(range(0, examples - size + 1, size))[:FIRST]


CHANCE = 1e-6


def is_ordered(labels: Sequence[float]) -> bool:
    """Return whether labels in this order are sorted or grouped, and not by accident."""
    counts = Counter(labels)
    if len(counts) < 2:
        return False
    same = sum(math.lgamma(count + 1) for count in counts.values()) - math.lgamma(len(labels) + 1)
    sorted_likely = math.log(2) + same < math.log(CHANCE)
    grouped_likely = math.lgamma(len(counts) + 1) + same < math.log(CHANCE)
    return (sorted_likely and _is_sorted(labels)) or (
        grouped_likely and _runs(labels) == len(counts)
    )


def _is_sorted(labels: Sequence[float]) -> bool:
    pairs = list(pairwise(labels))
    return all(a <= b for a, b in pairs) or all(a >= b for a, b in pairs)


def _runs(labels: Sequence[float]) -> int:
    return 1 + sum(a != b for a, b in pairwise(labels))
