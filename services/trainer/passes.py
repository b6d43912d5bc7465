"""The passes of one update: the parts of its batches that a worker takes through the model one
after the other. Pure.

With k batches of n_1 .. n_k examples in an update (k > 1: the optimizer's
`gradient_accumulation_steps`) and `device_batch_max` D, batch i is cut into ceil(n_i / D) passes.
The update's gradient is the sum over all passes of

    share x mean gradient of the pass        share = examples of the pass / (k n_i)

the mean over the k batches, each of them the mean over its examples: what one process computes that
has room for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Pass(NamedTuple):
    """Examples start .. stop - 1, and the share of their mean gradient in the update."""

    start: int
    stop: int
    share: float


def split_passes(batches: Sequence[tuple[int, int]], device_batch_max: int | None) -> list[Pass]:
    """Return the passes of an update over these batches (start, stop), each of at most
    `device_batch_max` examples.
    """
    passes = []
    for start, stop in batches:
        size = stop - start
        most = device_batch_max or size
        for first in range(start, stop, most):
            last = min(first + most, stop)
            passes.append(Pass(first, last, (last - first) / (size * len(batches))))
    return passes


def has_several(accumulated: int, batch: int, device_batch_max: int | None) -> bool:
    """Return whether an update may take more than one pass."""
    return accumulated > 1 or (device_batch_max is not None and device_batch_max < batch)
