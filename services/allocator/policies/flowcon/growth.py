"""Growth efficiency, and the limits that follow from it: FlowCon (Zheng, Tynes, Gorelick, Mao,
Cheng, Hou, ICPP 2019).

Several training jobs share one machine. At time t, every `interval_s`:

    E_i = mean of loss / largest loss so far, over (t - interval, t]        [1]
    P   = |E_i - E_(i-1)| / interval                                        [1/s]  progress
    G   = P / mean share of the machine's cores used over (t - interval, t] [1/s]  growth efficiency

A container whose G falls below `alpha` goes from the new list (NL) to the watching list (WL), and
at the next low reading to the completing list (CL); one reading of `alpha` or more brings it back
to NL. Its limit is then, of the cores,

    NL: G / sum G     CL: max(G / sum G, 1 / (beta n)), beta = 1 + 1/n     WL: as it was

If all were completing before a pass, every limit is lifted. While all are completing the interval
doubles (back-off). If a container starts or ends, the pass runs at once and the interval is reset.

From the authors' published code: all of the above, that is `growth_efficiencies`, `run_pass`,
`after_pass` and `timing_after_change` below. In the paper the listeners always run, in the code
only during the back-off: here always. Ours: limits are fractions of a core, never below
`floor_cpu`, while the code cuts to whole cores and a limit of 0 lifts it; a loss that is absent or
not finite is no reading; the largest loss is the largest in magnitude; if an interval has no
reading of loss or CPU, G is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


LEAST_SHARE = 1e-12
"""A smaller share of the cores counts as no use of the CPU: a division by it could overflow."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    alpha: float = 0.03
    """A growth efficiency below this is low, 1/s."""
    interval_s: float = 30.0
    backoff_factor: float = 2.0
    listen_s: float = 10.0
    """Seconds between two looks of the listeners for containers that started or ended."""
    floor_cpu: float = 0.05
    """The least limit of a container, in cores."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """A reading of a container at one moment: loss, CPU share (0..1 of the machine), or both."""

    at_s: float
    loss: float | None = None
    cpu_share: float | None = None


class Container(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`limit` in cores, `growth` in 1/s. Neither watching nor completing: on the new list."""

    name: str
    limit: float
    growth: float = 0.0
    watching: bool = False
    completing: bool = False


# ---------------------------------------------------------------- growth efficiency


class Samples(NamedTuple):
    """Samples of many containers, in any order; NaN where a sample has no loss, or no CPU share.

    `container` [samples]: its number; the rest [samples], too.
    """

    container: Ints
    at_s: Floats
    loss: Floats
    cpu_share: Floats


def growth_efficiency(
    samples: Sequence[Sample], now: float, interval_s: float, largest: float = 0.0
) -> float:
    """Return G of one container at `now`, 1/s. `largest`: the largest loss before the samples."""
    at_s = []
    losses = []
    shares = []
    for sample in samples:
        at_s.append(sample.at_s)
        losses.append(math.nan if sample.loss is None else sample.loss)
        shares.append(math.nan if sample.cpu_share is None else sample.cpu_share)

    alone = Samples(
        container=np.zeros(len(samples), dtype=np.int64),
        at_s=np.array(at_s),
        loss=np.array(losses),
        cpu_share=np.array(shares),
    )
    of_one = growth_efficiencies(alone, now, interval_s, np.array([largest]))
    return float(of_one[0])


def growth_efficiencies(samples: Samples, now: float, interval_s: float, largest: Floats) -> Floats:
    """Return G of each container at `now`, 1/s [containers].

    It is 0 if an interval has no loss, or if no CPU was used (at most LEAST_SHARE). `largest`
    [containers]: the largest loss before the samples.
    """
    container, at_s, loss, cpu_share = samples
    count = len(largest)
    has_loss = np.isfinite(loss)
    has_share = np.isfinite(cpu_share)
    start_s = now - interval_s
    here = (at_s > start_s) & (at_s <= now)
    before = (at_s > now - 2 * interval_s) & (at_s <= start_s)

    # Mean loss of this interval and of the one before, mean CPU share [containers].
    new = _window_means(container, loss, here & has_loss, count)
    old = _window_means(container, loss, before & has_loss, count)
    cpu = _window_means(container, cpu_share, here & has_share, count)

    # P / share where all of them are known.
    past = (at_s <= now) & has_loss
    scale = _largest_losses(container[past], loss[past], largest)
    has_losses = np.isfinite(new) & np.isfinite(old)
    known = has_losses & (cpu > LEAST_SHARE) & (scale > 0)
    largest_loss = scale[known]
    change = new[known] / largest_loss - old[known] / largest_loss
    progress = np.abs(change) / interval_s
    found = np.zeros(count)
    found[known] = progress / cpu[known]
    return found


def _largest_losses(container: Ints, loss: Floats, before: Floats) -> Floats:
    """Return the largest loss of each container, in magnitude [containers]. `before`: the largest
    before these.
    """
    largest = np.abs(before)
    np.maximum.at(largest, container, np.abs(loss))
    return np.asarray(largest)


def _window_means(container: Ints, values: Floats, chosen: Flags, count: int) -> Floats:
    """Return the mean of each container's chosen values [containers]; NaN where it has none."""
    of = container[chosen]
    number = np.bincount(of, minlength=count)
    parts = values[chosen] / number[of]
    means = np.bincount(of, weights=parts, minlength=count).astype(float)
    means[number == 0] = math.nan
    return np.asarray(means)


# ---------------------------------------------------------------- Algorithm 1


def run_pass(containers: Sequence[Container], cores: float, rules: Rules) -> tuple[Container, ...]:
    """Return lists and limits after one pass; each container's `growth` was measured just
    before.
    """
    released = all(c.completing for c in containers)
    listed = [_list_after_pass(c, rules.alpha) for c in containers]
    total = math.fsum([c.growth for c in listed])
    if total <= 0 and not released:
        return tuple(listed)

    limited = []
    for c in listed:
        if released:
            limited.append(replace(c, limit=cores))
        elif c.watching:
            limited.append(c)
        else:
            limit = _limit(c, total, len(listed), cores, rules)
            limited.append(replace(c, limit=limit))
    return tuple(limited)


def _list_after_pass(c: Container, alpha: float) -> Container:
    """Move a container NL -> WL -> CL with each low reading, and back to NL with one that is not
    low.
    """
    if c.growth >= alpha:
        return replace(c, watching=False, completing=False)
    if c.completing:
        return c
    return replace(c, watching=not c.watching, completing=c.watching)


def _limit(c: Container, total: float, n: int, cores: float, rules: Rules) -> float:
    """Return the limit of one of `n` containers, whose growths sum to `total`."""
    share = c.growth / total
    if c.completing:
        beta = 1 + 1 / n
        least_share = 1 / (beta * n)
        share = max(share, least_share)
    else:
        share = min(share, 1.0)
    return max(rules.floor_cpu, share * cores)


# ---------------------------------------------------------------- Algorithm 2


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The next pass, and the containers that ran when the listeners last looked."""

    interval_s: float
    due_s: float
    names: frozenset[str] = frozenset()


def after_pass(timing: Timing, containers: Sequence[Container], now: float, rules: Rules) -> Timing:
    """Return the timing after a pass. While all are completing, the interval grows (back-off)."""
    interval_s = timing.interval_s
    if containers and all(c.completing for c in containers):
        interval_s *= rules.backoff_factor
    return replace(timing, interval_s=interval_s, due_s=now + interval_s)


def timing_after_change(timing: Timing, names: frozenset[str], now: float, rules: Rules) -> Timing:
    """Return the timing after the listeners looked. If a container started or ended, a pass is due
    at once and the back-off ends.
    """
    if names == timing.names:
        return timing
    return Timing(interval_s=rules.interval_s, due_s=now, names=names)
