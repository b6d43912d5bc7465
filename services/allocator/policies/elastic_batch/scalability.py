"""How fast a job runs with k devices and a batch: the job scalability analyser of IBM's elastic scaler.

Saxena, Jayaram, Basu, Sabharwal, Verma: Effective Elastic Scaling of Deep Learning Workloads, MASCOTS 2020:

    t_iter(B, k) = t_proc(B / k) + t_comm(S, k)        [s]           S: bytes of parameters
    rate(B, k)   = B / t_iter(B, k)                    [examples/s]
    scale(B, k)  = rate(B, k) / rate(B_ref, 1)         [1]           B_ref: the largest batch that one device holds
    feasible:  B_min <= B <= B_max,  B / k <= b_dev,  k <= k_max,  k divides B;   else -inf
    best batch of k:  argmax over B of scale(B, k)

The paper measures t_proc for a few batches and t_comm for a few (S, k), and interpolates. Ours is what a live job's few
observed speeds can tell: with b = B / k examples on a device,

    t_proc(b) = step_s + sample_s b      t_comm(k) = ring_s (k - 1) / k + hop_s (k - 1)

(a ring's volume, and its hops), fitted by non-negative least squares on relative errors, drawn softly to a prior. Only
ratios enter the scale, so a job of which nothing was observed yet has a table too.

Which batch a job means: without ps (`split`) the total one, divided among the devices; with ps each worker applies its
own updates, so a batch is one device's and B = b k.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from services.allocator.models.nnls import nnls_each

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Amounts = Floats | Ints | float
Rate = Callable[[Ints, Ints], Floats]
"""Examples a second, from examples on each device and the number of devices; arrays that broadcast."""

DRAWN = 0.1
"""A term that differs from the prior by a whole step at the reference batch counts like a speed missed by so much."""
OVERHEAD, RING, HOP = 0.1, 0.1, 0.01
"""The prior's step_s, ring_s and hop_s, as shares of the time for a device's largest batch. Guessed, ours."""
TERMS = 4
BATCHES = 8
"""Device batches tried for each k: evenly spaced, both ends among them."""


class Timing(msgspec.Struct, frozen=True):
    """Seconds: of every step, of every example, of a full ring, of a hop."""

    step_s: float
    sample_s: float
    ring_s: float
    hop_s: float

    def rate(self, each: Amounts, k: Amounts) -> Floats:
        step_s = self.step_s + self.sample_s * each + self.ring_s * (k - 1) / k + self.hop_s * (k - 1)
        return np.asarray(each * k / np.maximum(step_s, 1e-12), dtype=np.float64)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Which pairs of devices and batch a job may have. `device_batch_max`: what one device's memory holds.

    `first`: with ps, the only batch of a device as long as no speed tells what another would gain.
    """

    batch_min: int
    batch_max: int
    device_batch_max: int
    devices_max: int
    devices_min: int = 1
    split: bool = True
    first: int | None = None

    @property
    def reference(self) -> int:
        return max(1, min(self.batch_max, self.device_batch_max))


class Table(NamedTuple):
    """For k = 1 .. k_max: the scale of the best batch (-inf: k is infeasible), and that batch; shapes (k_max,)."""

    scales: Floats
    batches: Ints


class Speed(NamedTuple):
    """What was observed: examples on each device, devices, examples a second."""

    each: float
    devices: int
    rate: float


def scale_table(rate: Rate, limits: Limits) -> Table:
    k = np.arange(1, limits.devices_max + 1)
    least, most = _device_batches(limits, k)
    feasible = (least <= most) & (k >= limits.devices_min)
    steps = np.arange(BATCHES)[:, None]
    each = least + np.maximum(most - least, 0) * steps // (BATCHES - 1)
    speeds = rate(each, k)
    best = speeds.argmax(axis=0)
    reference = rate(np.asarray(limits.reference), np.asarray(1))
    scales = np.where(feasible, speeds[best, k - 1] / reference, -np.inf)
    return Table(scales, each[best, k - 1] * (k if limits.split else 1))


def _device_batches(limits: Limits, k: Ints) -> tuple[Ints, Ints]:
    """The smallest and the largest batch of one device, by k."""
    if limits.split:
        return -(-limits.batch_min // k), np.minimum(limits.batch_max // k, limits.device_batch_max)
    if limits.first is not None:
        only = max(limits.batch_min, min(limits.first, limits.reference))
        return np.full_like(k, only), np.full_like(k, min(only, limits.reference))
    return np.full_like(k, limits.batch_min), np.full_like(k, limits.reference)


def prior(reference: int) -> Timing:
    """Before anything was observed; in units of the time for one example."""
    return Timing(OVERHEAD * reference, 1.0, RING * reference, HOP * reference)


def fitted(seen: Sequence[Speed], reference: int) -> Timing:
    """The timing nearest to the speeds seen, by relative error; speeds that are no numbers above 0 are passed over."""
    return fitted_each([(seen, reference)])[0]


def fitted_each(cases: Sequence[tuple[Sequence[Speed], int]]) -> list[Timing]:
    """Of many jobs, in one pass."""
    systems = [_system(_usable(seen), reference) for seen, reference in cases]
    found = nnls_each([(system.rows, system.goals) for system in systems])
    return [
        Timing(*(x * system.units).tolist()) if len(system.goals) > TERMS else prior(reference)
        for x, system, (_, reference) in zip(found, systems, cases, strict=True)
    ]


def _usable(seen: Sequence[Speed]) -> list[Speed]:
    return [s for s in seen if math.isfinite(s.rate) and s.rate > 0 and s.each > 0 and s.devices > 0]


class System(NamedTuple):
    """Of linear equations: those of the speeds, then those of the prior."""

    rows: Floats
    goals: Floats
    units: Floats


def _system(usable: Sequence[Speed], reference: int) -> System:
    guess = np.array(msgspec.structs.astuple(prior(reference)))
    if not usable:
        return System(np.eye(TERMS), np.zeros(TERMS), guess)
    each, k, rate = (np.array(column, dtype=np.float64) for column in zip(*usable, strict=True))
    terms = np.stack([np.ones_like(k), each, (k - 1) / k, k - 1], axis=1)
    took_s = each * k / rate
    guess *= np.exp(np.mean(np.log(took_s / (terms @ guess))))
    units = (guess @ [1.0, reference, 0.0, 0.0]) / [1.0, reference, 1.0, 1.0]
    rows = np.vstack([terms * units / took_s[:, None], DRAWN * np.eye(len(units))])
    goals = np.concatenate([np.ones(len(usable)), DRAWN * guess / units])
    return System(rows, goals, units)
