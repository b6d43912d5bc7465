"""Portions: the batches that a worker is given and reads at a time, and how many it stages."""

from __future__ import annotations

import math

from services.trainer.worker import shard_ledger
from services.trainer.worker.input_pipeline import PORTION_EXAMPLES, DataPlan, Portion
from services.trainer.worker.shard_ledger import Run

STAGED_S = 1.0
"""Seconds of training for which batches are staged on a worker. Half of them are staged by one call,
which costs the worker as much CPU as staging several batches.
"""
FEWEST_STAGED, USUAL_STAGED, MOST_STAGED = 2, 8, 32
"""Bounds of the number of staged batches: it is USUAL_STAGED unless updates are quick, and at least
FEWEST_STAGED where batches are large.
"""
READING_CALL_S = 0.25
"""Seconds that a call may take to stage batches, where reading is slower than training."""
STAGED_BYTES = 64 * 2**20
QUICK_MS, SLOW_MS = 100, 5_000
"""Bounds in ms of the time in which the examples of a portion are to be read."""
CALL_SHARE = 0.1
"""The time that a portion's call of Python may take, as a share of the time to read its examples.
"""
FASTEST_GROWTH, WORST_MS = 16, 20_000
"""A portion has at most FASTEST_GROWTH times as many batches as the one before. It has fewer if
reading it might take longer than WORST_MS. It may always have twice as many.
"""


def staged_batches(plan: DataPlan, batch_s: float, is_end: bool) -> int:
    """Return the number of batches to keep staged on a worker that trains one in `batch_s` seconds.

    `is_end`: all batches are given out, so that a worker with many of them may be the last.
    """
    wanted = float(USUAL_STAGED)
    if plan.has_fixed_size and not is_end:
        wanted = min(max(STAGED_S / max(batch_s, 1e-6), USUAL_STAGED), MOST_STAGED)
    fits = STAGED_BYTES // (plan.example_bytes * plan.batch)
    return max(min(int(wanted), fits), FEWEST_STAGED, 2 * plan.accumulated)


def batches_to_stage(ready: int, most: int, batch_s: float, read_s: float) -> int:
    """Return the number of batches to stage in one call, at most `most` and at least one.

    `batch_s`, `read_s`: seconds for training and for reading a batch. If training is slower: as many
    as are ready, but no more than are read while the worker trains those, so that it has work until
    the call returns. If reading is slower, the worker waits anyway: as many as are read in
    `READING_CALL_S`, because each call costs the worker CPU that it could use for reading.
    """
    if read_s > batch_s:
        return int(max(min(READING_CALL_S / read_s, most), 1))
    ready = max(ready, 1)
    read_meanwhile = ready * batch_s / max(read_s, 1e-6)
    return int(max(min(ready, most, read_meanwhile), 1))


class PortionSize:
    """The number of batches that a worker reads at a time.

    Each portion costs a call of Python besides its examples: read_ms = call_ms + batch_ms x
    batches. Both are estimated from the last two sizes. The first portion is one batch, so that
    training begins soon.
    """

    def __init__(self) -> None:
        self.batches = 1
        self._read_ms: dict[int, int] = {}  # of the last two sizes

    def record_read(self, asked: int, size: int, read_ms: int) -> None:
        """Choose the size of the next portions after a portion of `size` batches took `read_ms`.

        `asked`: the size that was asked for, which may differ. A portion that was asked for before
        the last change of size does not count.
        """
        if asked != self.batches:
            return
        read_ms = max(read_ms, 1)
        self._read_ms.pop(size, None)
        self._read_ms = dict([*self._read_ms.items(), (size, read_ms)][-2:])
        wanted = self._wanted_batches(size, read_ms)
        growth = min(max(WORST_MS / read_ms, 2), FASTEST_GROWTH)
        wanted = int(max(min(wanted, growth * size, PORTION_EXAMPLES), 1))
        if wanted > size or wanted <= size / 2:
            self.batches = wanted

    def _wanted_batches(self, size: int, read_ms: int) -> float:
        """Return the size at which the call of Python takes its share of the time.

        The time for the examples stays within `QUICK_MS` and `SLOW_MS`. Return twice the size if
        the time of a batch cannot be estimated yet.
        """
        if len(self._read_ms) == 1:
            return 2.0 * size
        other_size, other_ms = next(iter(self._read_ms.items()))
        batch_ms = max((read_ms - other_ms) / (size - other_size), 0.0)
        mean_ms = read_ms / size
        if batch_ms > mean_ms and other_size > size:  # reading was slower at that time
            return 2.0 * size
        batch_ms = min(batch_ms, mean_ms)
        call_ms = read_ms - batch_ms * size
        examples_ms = min(max(call_ms / CALL_SHARE, QUICK_MS), SLOW_MS)
        return examples_ms / batch_ms if batch_ms else math.inf


class PendingPortion:
    """A portion that a worker reads.

    `run`: the positions that are not staged; `position`: the position that the worker reports for
    the next batch (`StagedPass`). `asked`: the number of batches that was asked for; `batches`: the
    number that it has.
    """

    def __init__(self, portion: Portion, asked: int) -> None:
        self.portion = portion
        self.run = portion.run
        self.position = portion.start
        self.asked = asked
        self.batches = -(-portion.size // portion.batch)

    def take(self, examples: int) -> Run:
        """Remove the first positions from the run, and return them."""
        taken, self.run = shard_ledger.split_run(self.run, examples)
        self.position += examples
        return taken
