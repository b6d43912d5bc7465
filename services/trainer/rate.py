"""The learning rate across hand-overs: it follows the batch by the job's rule, and the number of
workers by stability.

Workers apply gradients that are stale by about workers - 1 updates. Gradient descent with rate r,
curvature c and a delay of d updates is stable as long as r c < 2 sin(pi / (2 (2 d + 1))): the root
condition of x' = x - r c x[-d], which is 2 for d = 0. A job that has settled at the edge of what
its few workers allow is beyond it the moment six go on at the same rate: we saw the loss of a
converged net jump from 0.001 to 61 within a second, and never come back. The user chose the rate
for `workers.start`; with more, each update's rate falls with the bound, about as 1 / workers, so
that a round of all workers moves the weights about as far as one did. This is our own rule.

Where the rate is a schedule, it is what the schedule gives at each step that is scaled
(`optimizers.py`).
"""

from __future__ import annotations

import math


def bound(workers: int) -> float:
    """The greatest stable rate times curvature with so many workers."""
    return 2.0 * math.sin(math.pi / (2.0 * (2.0 * (workers - 1) + 1.0)))


def of_workers(rule: str, workers: int, start: int) -> float:
    """How the rate follows the workers: `stable` by the bound, once there are more than the rate
    was chosen for.
    """
    return bound(workers) / bound(start) if rule == "stable" and workers > start else 1.0


def of_batch(rule: str, batch: int, start: int) -> float:
    """How the rate follows the batch: `linear` by the ratio, `sqrt` by its root, `keep` not at
    all.
    """
    ratio = batch / start
    return {"keep": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[rule]
