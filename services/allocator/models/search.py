"""Which size to try next, and which to keep: the search of sizes by measuring a few.

Each observation is fitted (`speed.py`), and the size with the largest expected improvement is tried next (Mockus, 1975;
Jones, Schonlau & Welch, Efficient Global Optimization, 1998). With m and s the mean and the standard deviation of log
speed at a size, and b the largest mean among the sizes that were tried:

    z = (m - b)/s      gain = (m - b) Phi(z) + s phi(z)             [relative speed, to first order]

It is by how much the size would be faster, in the mean, counting nothing where it would be slower. So a promising size
is worth a try, and so is a little-known one; none is, once nothing is left to be gained. Kept is the size with the best
*mean* among those that were tried, not the one that was luckiest. That probing and refitting bring the last per cents
is known of Dike's problem; that probes are chosen in this way is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from services.allocator.models.fitting import Prior, fit
from services.allocator.models.speed import Array, Fit
from services.allocator.policies.contract import Observed, Size


class Probe(msgspec.Struct, frozen=True):
    """A size worth trying. `gain`: expected, relative to the best size that was tried."""

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
    new = _untried(sizes, tried)
    if not new:
        return None
    mean, spread = predicted(fitted, new, batch)
    best = means(fitted, tried, batch).max() if tried else mean.max()
    gains = expected_gain(mean, spread, float(best))
    top = int(gains.argmax())
    return Probe(new[top], float(gains[top]))


def certain(fitted: Fit, sizes: Sequence[Size], tried: Sequence[Size], batch: int) -> Probe | None:
    """A size that was not tried and is better, though it be slower by its standard deviation; None where none is."""
    new = _untried(sizes, tried)
    if not new or not tried:
        return None
    mean, spread = predicted(fitted, new, batch)
    sure = mean - spread - means(fitted, tried, batch).max()
    top = int(sure.argmax())
    return Probe(new[top], float(np.expm1(sure[top]))) if sure[top] > 0.0 else None


def best_of(fitted: Fit, sizes: Sequence[Size], batch: int) -> Size:
    """The size with the highest mean; of equal ones the first."""
    return sizes[int(means(fitted, sizes, batch).argmax())] if len(sizes) > 1 else sizes[0]


def means(fitted: Fit, sizes: Sequence[Size], batch: int) -> Array:
    """Of log speed [sizes]."""
    return fitted.mean(fitted.points([(s.ps, s.workers) for s in sizes], batch))


def predicted(fitted: Fit, sizes: Sequence[Size], batch: int) -> tuple[Array, Array]:
    """Mean and standard deviation of log speed [sizes]."""
    return fitted.predict(fitted.points([(s.ps, s.workers) for s in sizes], batch))


def searched(
    sizes: Sequence[Size], batch: int, measure: Callable[[Size], float], probes: int, prior: Prior | None = None
) -> Found:
    """Measure at most so many sizes, each once, and choose among them. `measure`: samples a second.

    Without a prior one is believed whose shares are those of a step of a single sample. Until something was measured a
    batch then seems to be mostly computing and look-up, and the first size has more workers than the usual shares would
    give it: a worse start, but it tells more, and four probes come 1 % nearer to the best (on random surfaces).
    """
    observed: list[Observed] = []
    while True:
        fitted, tried = fit(observed, prior), [Size(o.ps, o.workers) for o in observed]
        probe = next_probe(fitted, sizes, tried, batch) if len(tried) < probes else None
        if probe is None:
            return Found(best_of(fitted, tried, batch), tuple(observed))
        observed.append(Observed(probe.size.ps, probe.size.workers, batch, measure(probe.size)))


def _untried(sizes: Sequence[Size], tried: Sequence[Size]) -> list[Size]:
    known = set(tried)
    return [size for size in sizes if size not in known]
