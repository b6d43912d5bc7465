"""The gradient noise scale, from gradients of batches that workers compare (`gradient_noise.py`).

The gradient of one example is G on average, and has the variance S, summed over all parameters. The
noise scale is phi = S / |G|^2, in examples (McCandlish et al., "An Empirical Model of Large-Batch
Training", arXiv:1812.06162, appendix A.1). K batches of n different examples each have the mean
gradients g_i, whose mean is g. Without bias

    S      =  n K / (K - 1) (mean |g_i|^2 - |g|^2)
    |G|^2  =  |g|^2 - S / (K n)              from examples that are drawn independently
    |G|^2  =  |g|^2 - S / (K n) + S / N      from different examples of an epoch of N

These are McCandlish's formulas for batches of n and of K n examples, of which the large one consists
of the small ones. The last summand makes up for drawing without replacement. It matters if phi is
not small against N. G and S are then those of the epoch. If batches have different sizes, n is their
harmonic mean: the variance of g_i is S / n_i.

One comparison says little: for K n below phi, |G|^2 is mostly noise. So both are averaged over many
before they are divided, as the mean of quotients would be biased. A comparison counts by its n. The
noise scale rises while a model learns, often by orders of magnitude, and |G|^2 falls, so that an
average over a long time shows the past. We keep averages over several numbers of comparisons, and
use the shortest one whose standard error is small enough.

A noise scale that is large against K n needs very many comparisons. A lower bound is known much
earlier: S is known well, and |G|^2 is not above its mean by more than a few standard errors. It is
enough to let a batch grow.

The standard error is that of a quotient: with the residuals r = S - phi |G|^2 of k comparisons, it
is std(r) / (|G|^2 sqrt(k)). Changes within the time of an average raise it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

WINDOWS = (16, 64, 256, 1024, 4096)
"""Comparisons over which is averaged: the weight of one falls by 1/e within so many."""
MIN_COMPARISONS = 20.0
"""Comparisons before an average is used."""
MAX_RELATIVE_ERROR = 0.12
"""Maximum standard error of a noise scale that is used, as a share of it."""
BOUND_STANDARD_ERRORS = 3.0
"""Standard errors of |G|^2 by which a lower bound of the noise scale is below its estimate."""
MIN_NOISE_SCALE = 1.0
"""The noise scale, in examples, below which an error of MAX_RELATIVE_ERROR examples is small enough."""


class Comparison(NamedTuple):
    """The mean gradients of several batches. `examples`: the harmonic mean of the batches' numbers of
    examples; `mean_square_norm`: the mean of |g_i|^2; `square_norm_of_mean`: |g|^2.
    """

    batches: float
    examples: float
    mean_square_norm: float
    square_norm_of_mean: float

    @property
    def variance(self) -> float:
        """S, of the gradient of one example."""
        spread = self.mean_square_norm - self.square_norm_of_mean
        return self.examples * spread * self.batches / (self.batches - 1.0)

    def mean_square(self, epoch: int) -> float:
        """Return |G|^2. `epoch`: the number of its examples; 0: not known."""
        square = self.square_norm_of_mean - self.variance / (self.batches * self.examples)
        return square + self.variance / epoch if epoch else square


class NoiseAverage(NamedTuple):
    """Sums over comparisons, of weights w, variances S (`s`) and squares |G|^2 (`g`), and of their
    products. Older ones count less.
    """

    window: int
    w: float = 0.0
    w2: float = 0.0
    s: float = 0.0
    g: float = 0.0
    ss: float = 0.0
    sg: float = 0.0
    gg: float = 0.0

    def add(self, w: float, s: float, g: float) -> NoiseAverage:
        keep = math.exp(-1.0 / self.window)
        return NoiseAverage(
            window=self.window,
            w=keep * self.w + w,
            w2=keep**2 * self.w2 + w**2,
            s=keep * self.s + w * s,
            g=keep * self.g + w * g,
            ss=keep * self.ss + w * s**2,
            sg=keep * self.sg + w * s * g,
            gg=keep * self.gg + w * g**2,
        )

    @property
    def effective(self) -> float:
        """The number of comparisons of equal weight that have the same error."""
        return self.w**2 / self.w2 if self.w2 else 0.0

    def noise_scale(self) -> float | None:
        """Return phi in examples; None: it is not sure enough."""
        if self.effective < MIN_COMPARISONS or self.g <= 0.0:
            return None
        phi = max(self.s / self.g, 0.0)
        residual2 = (self.ss - 2.0 * phi * self.sg + phi**2 * self.gg) / self.w
        square = self.g / self.w
        error = math.sqrt(max(residual2, 0.0) / (self.effective - 1.0)) / square
        return phi if error <= MAX_RELATIVE_ERROR * max(phi, MIN_NOISE_SCALE) else None

    def lower_bound(self) -> float | None:
        """Return a noise scale in examples that phi is not below; None: too few comparisons."""
        if self.effective < MIN_COMPARISONS:
            return None
        variance, square = self.s / self.w, self.g / self.w
        deviation2 = max(self.gg / self.w - square**2, 0.0)
        most = square + BOUND_STANDARD_ERRORS * math.sqrt(deviation2 / (self.effective - 1.0))
        return max(variance / most, 0.0) if most > 0.0 else None


class NoiseEstimate(NamedTuple):
    """The noise scale of a generation, in examples. `phi`: the last one that was sure enough;
    `at_least`: a lower bound; None: there was none. `examples`: of an epoch; 0: not known.
    """

    examples: int = 0
    averages: Sequence[NoiseAverage] = tuple(map(NoiseAverage, WINDOWS))
    phi: float | None = None
    at_least: float | None = None

    def add(self, found: Comparison) -> NoiseEstimate:
        """Return the estimate with one more comparison.

        One without finite numbers (in half precision) is left out, and one of batches that have
        examples in common.
        """
        if not all(map(math.isfinite, found)) or found.batches < 2 or found.examples < 1:
            return self
        if self.examples and found.batches * found.examples > self.examples:
            return self
        variance, square = found.variance, found.mean_square(self.examples)
        averages = tuple([each.add(found.examples, variance, square) for each in self.averages])
        sure = [phi for each in averages if (phi := each.noise_scale()) is not None]
        bounds = [least for each in averages if (least := each.lower_bound()) is not None]
        return self._replace(
            averages=averages,
            phi=sure[0] if sure else self.phi,
            at_least=max(bounds, default=self.at_least),
        )


class MeasurementTimer:
    """The time at which a worker measures next. `share`: the most of its time that measuring takes;
    0: never.

    The first measurement of a worker is slower than the others, so its time does not count.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._count = 0
        self._due_s = 0.0 if share else math.inf

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._due_s

    def record(self, began_s: float, ended_s: float) -> None:
        """Record a measurement."""
        self._count += 1
        if self._count > 1:
            self._due_s = ended_s + (ended_s - began_s) / self._share

    def stop(self) -> None:
        """Measure no more."""
        self._due_s = math.inf
