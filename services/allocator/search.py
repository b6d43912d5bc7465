"""Which size to try next, and which to keep: the search of sizes by measuring a few.

Each observation is fitted (`speed.py`), and the size with the largest expected improvement is tried next (Mockus,
1975; Jones, Schonlau & Welch, Efficient Global Optimization, 1998). With m and s the mean and standard deviation of log
speed at a size, and b the largest mean among the sizes that were tried:

    z = (m - b)/s      gain = (m - b) Phi(z) + s phi(z)             [relative speed, to first order]

It is the mean of what the size would be faster, where it would be. So a promising and a little-known size are both
worth a try, and no try is worth it once nothing is left to be gained. Kept is the size with the best *mean* among
those that were tried, not the one with the best luck. That probing and refitting make the last per cents is what
Dike's figures need; that they are chosen this way is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from services.allocator.job import Observed
from services.allocator.placement import Size
from services.allocator.speed import Array, Fit, Prior, fit


class Probe(msgspec.Struct, frozen=True):
    """A size worth trying. `gain`: expected, relative to the speed of the best size that was tried."""

    size: Size
    gain: float


class Found(msgspec.Struct, frozen=True):
    """What a search chose, and everything that it measured, in order."""

    size: Size
    observed: tuple[Observed, ...]


def expected_gain(mean: Array, spread: Array, best: float) -> Array:
    """The formula above; `mean` and `spread` of log speed [sizes]."""
    z = (mean - best) / spread
    below = np.array([0.5 * math.erfc(-x / math.sqrt(2.0)) for x in z.tolist()])
    return np.asarray((mean - best) * below + spread * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi))


def next_probe(fitted: Fit, sizes: Sequence[Size], tried: Sequence[Size], batch: int) -> Probe | None:
    """The most promising size that was not tried; None where all were. `tried` need not be among `sizes`."""
    new = [size for size in sizes if size not in set(tried)]
    if not new:
        return None
    mean, spread = fitted.predict(fitted.points([(s.ps, s.workers) for s in new], batch))
    best = max_mean(fitted, tried, batch) if tried else float(mean.max())
    gains = expected_gain(mean, spread, best)
    top = int(gains.argmax())
    return Probe(new[top], float(gains[top]))


def max_mean(fitted: Fit, sizes: Sequence[Size], batch: int) -> float:
    return float(fitted.predict(fitted.points([(s.ps, s.workers) for s in sizes], batch))[0].max())


def best_of(fitted: Fit, sizes: Sequence[Size], batch: int) -> Size:
    """The size with the highest mean; of equal ones the first."""
    return sizes[int(fitted.predict(fitted.points([(s.ps, s.workers) for s in sizes], batch))[0].argmax())]


def searched(
    sizes: Sequence[Size], batch: int, measure: Callable[[Size], float], probes: int, prior: Prior | None = None
) -> Found:
    """Measure at most so many sizes, each once, and choose among them. `measure`: samples a second."""
    observed: list[Observed] = []
    while True:
        fitted, tried = fit(observed, prior), [Size(o.ps, o.workers) for o in observed]
        probe = next_probe(fitted, sizes, tried, batch) if len(tried) < probes else None
        if probe is None:
            return Found(best_of(fitted, tried, batch), tuple(observed))
        observed.append(Observed(probe.size.ps, probe.size.workers, batch, measure(probe.size)))
