"""Growth efficiency, and what it makes of limits: FlowCon (Zheng, Tynes, Gorelick, Mao, Cheng, Hou, ICPP 2019).

Several training jobs share one machine. At time t, every `interval_s`:

    E_i = mean of loss / largest loss so far, over (t - interval, t]             [1]
    P   = |E_i - E_(i-1)| / interval                                             [1/s]   progress
    G   = P / mean share of the machine's cores used over (t - interval, t]      [1/s]   growth efficiency

A container whose G falls below `alpha` goes from the new list (NL) to the watching list (WL), and at the next low
reading to the completing list (CL); one reading of `alpha` or more brings it back to NL. Its limit is then

    NL: G / sum G     CL: max(G / sum G, 1 / (beta n)), beta = 1 + 1/n     WL: as it was     (of the cores)

and once all were completing before a pass, every limit is lifted; while all are completing the interval doubles
(back-off). A container that comes or goes calls the pass at once and sets the interval back.

From the authors' published code: all of the above, which is `growth`, `pass_`, `after_pass` and `heard` below. The
paper has listeners always, their code only while backing off: here always. Ours: limits are fractions of a core, never
below `floor_cpu`, where the code cuts to whole cores and a limit of 0 lifts it; a loss that is absent or not finite is
no reading; the largest loss is the largest in magnitude; where no interval has a loss or CPU reading, G is 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    alpha: float = 0.03
    """Growth efficiency below which a container counts as flattened, 1/s."""
    interval_s: float = 30.0
    backoff_factor: float = 2.0
    listen_s: float = 10.0
    """How often the listeners look who runs."""
    floor_cpu: float = 0.05
    """Cores that nobody falls below."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """What was read of a container at one moment: a loss, a CPU share (0..1 of the machine), or both."""

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


def growth(samples: Sequence[Sample], now: float, interval_s: float, largest: float = 0.0) -> float:
    """G at `now`, 1/s; 0 where an interval has no loss, or no CPU was used. `largest`: loss seen before the samples."""
    past = [s for s in samples if s.at_s <= now]
    here = [s for s in past if s.at_s > now - interval_s]
    before = [s for s in past if now - 2 * interval_s < s.at_s <= now - interval_s]
    new, old = _mean(_losses(here)), _mean(_losses(before))
    if new is None or old is None:
        return 0.0
    scale = max([abs(largest), *(abs(loss) for loss in _losses(past))])
    cpu = _mean([s.cpu_share for s in here if s.cpu_share is not None and math.isfinite(s.cpu_share)])
    if not cpu or cpu < 0 or not scale:
        return 0.0
    return abs(new / scale - old / scale) / interval_s / cpu


def _losses(samples: Iterable[Sample]) -> list[float]:
    return [s.loss for s in samples if s.loss is not None and math.isfinite(s.loss)]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(value / len(values) for value in values) if values else None


# ---------------------------------------------------------------- Algorithm 1


def pass_(containers: Sequence[Container], cores: float, rules: Rules) -> tuple[Container, ...]:
    """The lists and limits after one pass; each container's `growth` was measured just before."""
    released = all(c.completing for c in containers)
    listed = tuple(_listed(c, rules.alpha) for c in containers)
    total = math.fsum(c.growth for c in listed)
    if released:
        return tuple(replace(c, limit=cores) for c in listed)
    if total <= 0:
        return listed
    return tuple(c if c.watching else replace(c, limit=_limit(c, total, len(listed), cores, rules)) for c in listed)


def _listed(c: Container, alpha: float) -> Container:
    """NL -> WL -> CL with each low reading, and back to NL with one that is not."""
    if c.growth >= alpha:
        return replace(c, watching=False, completing=False)
    return c if c.completing else replace(c, watching=not c.watching, completing=c.watching)


def _limit(c: Container, total: float, n: int, cores: float, rules: Rules) -> float:
    beta = 1 + 1 / n
    share = c.growth / total
    share = max(share, 1 / (beta * n)) if c.completing else min(share, 1.0)
    return max(rules.floor_cpu, share * cores)


# ---------------------------------------------------------------- Algorithm 2


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """When the next pass is due, and who ran when that was last looked at."""

    interval_s: float
    due_s: float
    names: frozenset[str] = frozenset()


def after_pass(timing: Timing, containers: Sequence[Container], now: float, rules: Rules) -> Timing:
    """Back off while all are completing."""
    flat = bool(containers) and all(c.completing for c in containers)
    interval_s = timing.interval_s * (rules.backoff_factor if flat else 1.0)
    return replace(timing, interval_s=interval_s, due_s=now + interval_s)


def heard(timing: Timing, names: frozenset[str], now: float, rules: Rules) -> Timing:
    """The listeners: somebody came or went, so a pass is due at once and the back-off ends."""
    if names == timing.names:
        return timing
    return Timing(interval_s=rules.interval_s, due_s=now, names=names)
