"""The progress that training makes by an example: less in a larger batch, less by a stale gradient.

The gradient noise scale phi is the variance of an example's gradient over the square of the mean
gradient, in examples (McCandlish et al., "An Empirical Model of Large-Batch Training",
arXiv:1812.06162). A batch of B examples makes as much progress as one without noise times B / (phi
+ B), so an example of it makes progress in proportion to 1 / (phi + B). Pollux (OSDI 2021) sizes
batches by this ratio.

Staleness: while a gradient of B examples is computed, s others of B examples are applied. We count
its progress as that of an example in one batch of all of them, (1 + s) B: with much noise the
updates add up, and with little each of them repeats what the others do. This rule is ours.
"""

from __future__ import annotations

import math


def sample_efficiency(batch: float, start: float, noise: float | None = None) -> float:
    """Return the progress by a sample of this batch, relative to one of the first batch. `noise`:
    phi, the gradient noise scale in samples.
    """
    if batch <= 0 or start <= 0:
        return 1.0
    if noise is None or not math.isfinite(noise) or noise < 0:
        return min(1.0, 2.0 * start / (start + batch))
    return (noise + start) / (noise + batch)


def staleness_cost(batch: float, staleness: float, noise: float) -> float:
    """Return the share of progress that is lost because gradients are `staleness` updates old in
    the mean: 0 to 1.
    """
    if batch <= 0 or staleness <= 0 or not math.isfinite(noise):
        return 0.0
    return 1.0 - sample_efficiency((1.0 + staleness) * batch, batch, max(noise, 0.0))
