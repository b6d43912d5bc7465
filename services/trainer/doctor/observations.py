"""The request to a process that tries a program (`examine.py`), and its reports: one JSON line
each.

Each report has all observations so far, so the reader knows how far the process came, however it
ends.

Label order: if nothing shuffles the examples and they are sorted, batches of one class follow each
other and the model learns the last one. Given how often each of C labels occurs (n_1 .. n_C of n),
a random order

    is sorted, up or down, with probability      2 n_1! .. n_C! / n!
    has each class in one run with probability  C! n_1! .. n_C! / n!

An order less likely than `CHANCE` is no accident. Labels of one class, and classes of one example,
prove nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from shared.messages import Consistency

Shape = tuple[int, ...]
EDGE_EXAMPLES = 4  # examples at the beginning and at the end of a batch that are compared

FIRST_BATCHES = 4  # batches whose labels are read, besides the middle and the last one
CHANCE = 1e-6


class ExamineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`program`: its file. `batch`: examples of an update. `limit_s`: limit for one call of its
    code.

    `device_batch_max`: the most examples that a worker may hold at once, if limited. `ps`: number
    of parameter servers for the trial update; 0: only read examples, to compare them with another
    process. `entry`: the program's path in its folder; empty: it is a single file. `params`: those
    of the job. `shuffled`: its examples come in another order in each epoch.
    `consistency`: how workers make its updates.
    """

    program: str
    entry: str = ""
    params: dict[str, Any] = {}
    batch: int
    device_batch_max: int | None = None
    ps: int = 0
    shuffled: bool = True
    consistency: Consistency = "async"
    limit_s: float = 75.0


class VariableInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A variable of the model. `learns`: it has a gradient; None: it is not trainable.

    `whole`: its ps sends all of it for every batch, though only some of its rows are needed.
    `divided`: it is a table whose rows are divided among all ps.
    """

    name: str
    shape: tuple[int, ...]
    bytes: int
    learns: bool | None = None
    whole: bool = False
    divided: bool = False


class Observations(msgspec.Struct, frozen=True, kw_only=True):
    """The observations so far. Times are of a later try if the first is slower.

    `files`: number of files, if the program reads files. Then `expected` is the number of examples
    of an epoch according to the program's `examples()` (0: unknown), and `examples` counts only the
    first ones. `together` and `alone`: digests of examples by number, read in a batch and one by
    one; `infinite`: those with a value that is not finite. `ordered`: the labels of the batches
    read are sorted or grouped by class. `slots`: bytes of the optimizer besides the variables.
    `combines_rows`: the kind of the optimizer, if it may combine the rows of a table.
    `loaded_gib`: memory that the program's import added. `kind`: how it trains
    (`worker/own_step.py`). `labels` and `outputs`: shapes in a batch; `span`: range of the only
    output. `lossy`: shape of a loss with a number for each pair of examples; `mixed`: the loss is
    the mean of such a loss. `parts`: workers can compute an update in parts; `whole_batch`: why
    they cannot. Neither is known with the consistency `async`.
    """

    loaded_s: float | None = None
    loaded_gib: float = 0.0
    files: int = 0
    expected: int = 0
    examples: int | None = None
    together: dict[int, str] = {}
    alone: dict[int, str] = {}
    infinite: tuple[int, ...] = ()
    ordered: bool = False
    read_s: float | None = None
    variables: tuple[VariableInfo, ...] | None = None
    slots: int = 0
    scheduled: bool = False
    combines_rows: str = ""
    labels: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()
    span: tuple[float, float] | None = None
    lossy: Shape = ()
    mixed: bool = False
    update_s: float | None = None
    loss: float | None = None
    finite: bool = True
    parts: bool = False
    whole_batch: str = ""
    evaluated: bool | None = None
    kind: str = ""
    failed: str = ""
    done: bool = False


def sample_starts(examples: int, size: int) -> tuple[int, ...]:
    """Return the starts of the batches to read: at the beginning, in the middle and at the end."""
    return tuple(sorted({0, (examples - size) // 2, examples - size}))


def sampled_examples(start: int, size: int) -> tuple[int, ...]:
    """Return the numbers of the examples of a batch that are compared."""
    numbers = range(start, start + size)
    return tuple(sorted({*numbers[:EDGE_EXAMPLES], *numbers[-EDGE_EXAMPLES:]}))


def read_size(asked: ExamineRequest, examples: int) -> int:
    """Return the number of examples that a worker of the job reads at once."""
    return min(asked.batch, asked.device_batch_max or asked.batch, examples)


def first_starts(examples: int, size: int) -> tuple[int, ...]:
    """Return the starts of the first batches."""
    return tuple(range(0, examples - size + 1, size))[:FIRST_BATCHES]


def is_ordered(labels: Sequence[float]) -> bool:
    """Return whether labels in this order are sorted or grouped, and not by accident."""
    counts = Counter(labels)
    if len(counts) < 2:
        return False
    same = sum(math.lgamma(count + 1) for count in counts.values()) - math.lgamma(len(labels) + 1)
    sorted_likely = math.log(2) + same < math.log(CHANCE)
    grouped_likely = math.lgamma(len(counts) + 1) + same < math.log(CHANCE)
    return (sorted_likely and _is_sorted(labels)) or (
        grouped_likely and _count_runs(labels) == len(counts)
    )


def _is_sorted(labels: Sequence[float]) -> bool:
    pairs = list(pairwise(labels))
    return all(a <= b for a, b in pairs) or all(a >= b for a, b in pairs)


def _count_runs(labels: Sequence[float]) -> int:
    return 1 + sum(a != b for a, b in pairwise(labels))
