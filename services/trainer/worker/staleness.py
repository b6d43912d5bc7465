"""The staleness of gradients: updates that were applied between the time when a worker read the
parameters and the time when its gradient was applied.

It is counted on the parameter server that counts the updates, in a histogram. Both readings of the
number of updates are made there, so they cost no message.

With several workers and `consistency: async`, a gradient that is staler than `max_staleness` is
dropped. The same ps checks it when it is computed, before anything is applied:

    worker    begun --- gradient --+
    ps 0      reads the number     +-- reads it --+-- apply, on each ps --- count
              of updates               again      +-- too stale: the step fails

Gradients are sent meanwhile, so a worker does not wait for the check (`optimizers.apply_after`).

So the gradients of an update are applied as a whole or not at all, and the chief knows which when
its call returns. It puts the examples of a dropped update back to do before the next one. What the
forward pass changes (moving averages of batch normalisation, counters of the program) is changed
before the check, also by an update that is dropped. The histogram has the staleness at the time of
application. That can be larger than the limit: by the updates that others apply while the answer
and the gradient are sent. Only a lock on all ps would prevent that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from shared.messages import Staleness

LARGEST = 1023
"""Gradients that are staler are counted with this staleness."""
TOO_STALE = "weir: the gradient is too stale"
NO_GRADIENTS: tuple[int, ...] = (0,) * (LARGEST + 1)


def new_histogram() -> tf.Variable:
    """Return a variable with the number of gradients of each staleness."""
    zeros = tf.zeros([LARGEST + 1], tf.int64)
    return tf.Variable(zeros, trainable=False, name="weir_staleness")


def count_gradient(histogram: tf.Variable, step: tf.Tensor, begun: tf.Tensor) -> None:
    """Count a gradient. `step`: number of updates when it is applied; `begun`: when it was begun.

    Call it in the traced step, on the ps of the histogram.
    """
    place = tf.clip_by_value(step - begun, 0, LARGEST)
    one = tf.ones([], tf.int64)
    tf.raw_ops.ResourceScatterAdd(resource=histogram.handle, indices=place, updates=one)


def check_staleness(staleness: tf.Tensor, largest: int) -> Any:
    """Return an operation that fails if a gradient is too stale. Call it in the traced step, on the
    ps that counts updates.
    """
    return tf.raw_ops.Assert(condition=staleness <= largest, data=[TOO_STALE, staleness])


def is_too_stale(error: tf.errors.OpError) -> bool:
    """Return whether a step failed because of `check_staleness`."""
    return TOO_STALE in str(error)


def describe(before: Sequence[int], now: Sequence[int], dropped: int = 0) -> Staleness | None:
    """Return the staleness of the gradients that were applied since an earlier count, and the
    number of those that were dropped; None: there are none.
    """
    counts = [max(n - b, 0) for b, n in zip(before, now, strict=True)]
    total = sum(counts)
    if not total:
        return Staleness(dropped=dropped) if dropped else None
    return Staleness(
        dropped=dropped,
        mean=sum([place * count for place, count in enumerate(counts)]) / total,
        p99=_quantile(counts, 0.99),
        largest=max([place for place, count in enumerate(counts) if count]),
    )


def _quantile(counts: Sequence[int], share: float) -> int:
    """Return the smallest staleness that this share of the gradients does not exceed."""
    left = share * sum(counts)
    for place, count in enumerate(counts):
        left -= count
        if left <= 1e-9:
            return place
    return len(counts) - 1


def read_histogram(histogram: Any) -> tuple[int, ...]:
    return tuple(histogram.numpy().tolist())
