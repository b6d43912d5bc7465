"""The rules by which training scales: variables over ps, an update's batches in passes, the rate.

Placement: largest variable first to the emptiest ps. Round-robin puts every large kernel of a plain
network on one ps and every bias on the other; then adding ps does nothing (tensorflow#37100).
Largest first to the emptiest keeps the fullest within 4/3 of the best (Graham 1969).

Passes: with k batches of n_1 .. n_k examples in an update (k > 1: the optimizer's
`gradient_accumulation_steps`) and `device_batch_max` D, batch i is cut into ceil(n_i / D) passes.
The update's gradient is the sum over all passes of

    share x mean gradient of the pass        share = examples of the pass / (k n_i)

which is the mean over the k batches, each of them the mean over its examples: the result of one
process with enough memory for all.

Learning rate: it follows the batch by the job's rule, and the number of workers by stability.
Workers apply gradients that are stale by about workers - 1 updates. Gradient descent with rate r,
curvature c and a delay of d updates is stable as long as r c < 2 sin(pi / (2 (2 d + 1))): the root
condition of x' = x - r c x[-d], which is 2 for d = 0. A job that has settled at the edge of what
its few workers allow is beyond it as soon as six continue at the same rate: we saw the loss of a
converged net jump from 0.001 to 61 within a second and never come back. The user chose the rate for
`workers.start`. With more workers, each update's rate falls with the bound, about as 1 / workers,
so that a round of all workers moves the weights about as far as one did. This rule is our own. It
is off with `rate_with_workers: keep`, and with `global-batch` and `exact`, where no gradient is
stale. If the rate is a schedule, its result at each step is scaled (`optimizers.py`).

The delay d is workers - 1, and not the staleness that is measured (`staleness.py`). The mean
staleness is workers - 1 for any speeds of the workers, as long as all are busy: each update is
missed by about one gradient of each other worker. It is less only while workers wait for data, so
the rule errs on the stable side. And the rate has to be known before the first update of a
generation, of whose size there may be no measurement. A rate that followed the measurements would
make a job's result depend on the load of its nodes, and feed back: the rate of a job would change
whenever it does. Gradients that are much staler than the mean are limited by `max_staleness`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def largest_first(sizes: Sequence[int], bins: int) -> list[int]:
    """Return the index of each variable's ps, for sizes in bytes in order of creation. Ties go to
    the lower index.
    """
    held = [0] * bins
    chosen = [0] * len(sizes)
    for which in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        emptiest = min(range(bins), key=lambda b: (held[b], b))
        held[emptiest] += max(sizes[which], 1)
        chosen[which] = emptiest
    return chosen


class PlacementPlan:
    """The ps of each variable while a model is created. `sizes`: sizes from an earlier creation, in
    order.

    A variable's size is known only after it is created. While the sizes come as before, each
    variable goes where `largest_first` has it. Other variables go to the emptiest ps.
    """

    def __init__(self, sizes: Sequence[int], bins: int) -> None:
        self._sizes, self._chosen = list(sizes), largest_first(sizes, bins)
        self._held = [0] * bins
        self._next = 0

    def next_place(self) -> int:
        """Return the ps of the variable that is created next."""
        if self._next < len(self._chosen):
            return self._chosen[self._next]
        return min(range(len(self._held)), key=lambda b: (self._held[b], b))

    def record_size(self, place: int, size: int) -> None:
        """Record a variable of this size on this ps, and find it among the expected ones."""
        self._held[place] += max(size, 1)
        if size in self._sizes[self._next :]:
            self._next = self._sizes.index(size, self._next) + 1


def has_several_passes(accumulated: int, batch: int, device_batch_max: int | None) -> bool:
    """Return whether an update may take more than one pass."""
    return accumulated > 1 or (device_batch_max is not None and device_batch_max < batch)


def stability_bound(workers: int) -> float:
    """Return the greatest stable product of rate and curvature with this number of workers."""
    return 2.0 * math.sin(math.pi / (2.0 * (2.0 * (workers - 1) + 1.0)))


def rate_for_workers(rule: str, workers: int, start: int) -> float:
    """Return the factor for the number of workers: with `stable` the ratio of the bounds, once
    there are more workers than the rate was chosen for.
    """
    return (
        stability_bound(workers) / stability_bound(start)
        if rule == "stable" and workers > start
        else 1.0
    )


def rate_for_batch(rule: str, batch: int, start: int) -> float:
    """Return the factor for the batch: its ratio (`linear`), the root of the ratio (`sqrt`), or 1
    (`keep`).
    """
    ratio = batch / start
    return {"keep": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[rule]
