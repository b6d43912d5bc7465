"""The speed of a job with k devices and a batch: the job scalability analyser of IBM's elastic
scaler.

Saxena, Jayaram, Basu, Sabharwal, Verma: Effective Elastic Scaling of Deep Learning Workloads,
MASCOTS 2020:

    t_iter(B, k) = t_proc(B / k) + t_comm(S, k)        [s]           S: bytes of parameters
    rate(B, k)   = B / t_iter(B, k)                    [examples/s]
    scale(B, k)  = rate(B, k) / rate(B_ref, 1)         [1]           B_ref: one device's largest B
    feasible:  B_min <= B <= B_max,  B / k <= b_dev,  k <= k_max,  k divides B;   else -inf
    best batch of k:  argmax over B of scale(B, k)

The paper measures t_proc for a few batches and t_comm for a few (S, k), and interpolates. Ours is
fitted to the few speeds observed of a live job: with b = B / k examples on a device,

    t_proc(b) = step_s + sample_s b      t_comm(k) = ring_s (k - 1) / k + hop_s (k - 1)

(a ring's volume, and its hops), fitted by non-negative least squares on relative errors, drawn
softly to a prior. Only ratios enter the scale, so a job without observations has a
table too.

The batch of a job has two meanings. Without ps, and with `consistency: global-batch` or `exact`
(`split`), it is the total one, divided among the devices. Otherwise each worker applies its own
updates, and it is that of one device, so that B = b k.

`Pool` is the amount of one resource that jobs share, in whole units, which also measure the price
of a number of workers.

Jobs whose workers want devices share the devices; a unit is one device. The others share cores, and
a job's price includes its ps and its chief; a unit is the largest number of thousandths of a core
that divides every task, or a coarser one if there would be too many units. The choice of nodes, and
memory, are left to the placement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from services.allocator.models.fitting import nnls_each
from services.allocator.placement.placers import ROLES
from services.allocator.policies.contract import JobSnapshot, Node

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Amounts = Floats | Ints | float
Rate = Callable[[Ints, Ints], Floats]
"""Examples a second, from examples on each device and the number of devices; arrays that
broadcast.
"""

DRAWN = 0.1
"""A term that differs from the prior by a whole step at the reference batch counts like a speed
with this relative error.
"""
OVERHEAD = 0.1
RING = 0.1
HOP = 0.01
"""The prior's step_s, ring_s and hop_s, as shares of the time for a device's largest batch. They
are our guess.
"""
TERMS = 4
BATCHES = 8
"""Device batches tried for each k: evenly spaced, both ends among them."""

EQUAL = 1e-9
"""Speeds that differ by less, relative to the larger one, are equal."""


class Timing(msgspec.Struct, frozen=True):
    """Seconds: of every step, of every example, of a full ring, of a hop."""

    step_s: float
    sample_s: float
    ring_s: float
    hop_s: float

    def rate(self, each: Amounts, k: Amounts) -> Floats:
        """Return examples a second, from examples on each of k devices; arrays broadcast."""
        terms = (self.step_s, self.sample_s, self.ring_s, self.hop_s)
        return rate_by(terms, each, k)


def rate_by(terms: Floats | Sequence[float], each: Amounts, k: Amounts) -> Floats:
    """Return examples a second by the formula above; arrays broadcast.

    `terms`: seconds of every step, of every example, of a full ring, of a hop.
    """
    step_s, sample_s, ring_s, hop_s = terms
    hops = k - 1
    compute_s = step_s + sample_s * each
    iteration_s = compute_s + ring_s * hops / k + hop_s * hops
    rate = each * k / np.maximum(iteration_s, 1e-12)
    return np.asarray(rate, dtype=np.float64)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The pairs of devices and batch that a job may have. `device_batch_max`: the most examples
    that one device's memory holds.

    `first`: with ps, the only batch of a device until speeds show the gain of another one.
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
        """Return the largest batch that one device holds."""
        return max(1, min(self.batch_max, self.device_batch_max))

    @property
    def only_batch(self) -> int:
        """Return the only batch of a device; 0: there is a choice."""
        if self.first is None or self.split:
            return 0
        return max(self.batch_min, min(self.first, self.reference))


class Table(NamedTuple):
    """The scale of the best batch (-inf: k is infeasible), and that batch, for k = 1 .. k_max;
    shapes (k_max,).
    """

    scales: Floats
    batches: Ints


class Speed(NamedTuple):
    """One observation: examples on each device, devices, examples a second."""

    each: float
    devices: int
    rate: float


# ---------------------------------------------------------------- the scales of a job


def scale_table(rate: Rate, limits: Limits) -> Table:
    """Return the table of one job."""
    return scale_tables(rate, [limits])[0]


def scale_tables(rate: Rate, limits: Sequence[Limits]) -> list[Table]:
    """Return the tables of many jobs; `rate` is given arrays [jobs, batches, k] or alike."""
    arrays = _limit_arrays(limits)
    k = _device_numbers(arrays)
    least, most = _device_batches(arrays, k)
    batches, speeds = _fastest_batches(rate, k, least, most)

    # Relative to one device with the reference batch [jobs, k].
    references = arrays.reference[:, None]
    reference_speeds = rate(references, np.ones(1, dtype=np.int64))[:, 0]
    feasible = _has_batch(arrays, k, least, most)
    scales = np.where(feasible, speeds / reference_speeds, -np.inf)

    # Without ps the batch is that of all devices together [jobs, k].
    batches *= np.where(arrays.split, k, 1)

    tables = []
    for job, each in enumerate(limits):
        end = each.devices_max
        tables.append(Table(scales[job, :end], batches[job, :end]))
    return tables


def _fastest_batches(rate: Rate, k: Ints, least: Ints, most: Ints) -> tuple[Ints, Floats]:
    """Return the fastest of evenly spaced batches of one device, and its speed [jobs, k]; of nearly
    equal ones the smallest batch, so that rounding does not decide.
    """
    # The batches that are tried, and their speeds [jobs, batches, k].
    first = least[:, None, :]
    room = np.maximum(most - least, 0)[:, None, :]
    steps = np.arange(BATCHES)[:, None]
    tried = first + room * steps // (BATCHES - 1)
    speeds = rate(tried, k)

    highest = speeds.max(axis=1, keepdims=True)
    nearly_fastest = speeds >= (1 - EQUAL) * highest
    fastest = nearly_fastest.argmax(axis=1)[:, None, :]
    fastest_batches = np.take_along_axis(tried, fastest, axis=1)
    fastest_speeds = np.take_along_axis(speeds, fastest, axis=1)
    return fastest_batches[:, 0], fastest_speeds[:, 0]


def feasible_devices(limits: Sequence[Limits]) -> Flags:
    """Return for each job the k, from 1 on, that have a batch [jobs, k]."""
    arrays = _limit_arrays(limits)
    k = _device_numbers(arrays)
    least, most = _device_batches(arrays, k)
    return _has_batch(arrays, k, least, most)


class LimitArrays(NamedTuple):
    """The limits of many jobs, each [jobs, 1]. `split`: 1 where the job is split, else 0."""

    split: Ints
    devices_min: Ints
    devices_max: Ints
    batch_min: Ints
    batch_max: Ints
    device_batch_max: Ints
    reference: Ints
    only_batch: Ints


def _limit_arrays(limits: Sequence[Limits]) -> LimitArrays:
    """Return the limits of many jobs as arrays."""
    rows = []
    for each in limits:
        devices = (each.devices_min, each.devices_max)
        batches = (each.batch_min, each.batch_max, each.device_batch_max)
        rows.append((int(each.split), *devices, *batches, each.reference, each.only_batch))
    return LimitArrays(*np.array(rows).T[:, :, None])


def _device_numbers(arrays: LimitArrays) -> Ints:
    """Return k: all numbers of devices that one of the jobs may have."""
    return np.arange(1, arrays.devices_max.max() + 1)


def _has_batch(arrays: LimitArrays, k: Ints, least: Ints, most: Ints) -> Flags:
    """Return the k within each job's bounds that have a batch [jobs, k]."""
    is_within = (k >= arrays.devices_min) & (k <= arrays.devices_max)
    has_batch: Flags = (least <= most) & is_within
    return has_batch


def _device_batches(arrays: LimitArrays, k: Ints) -> tuple[Ints, Ints]:
    """Return the smallest and the largest batch of one device [jobs, k]."""
    only = arrays.only_batch
    reference = arrays.reference

    # With ps a batch is one device's, and the same for every k.
    least = np.where(only > 0, only, arrays.batch_min)
    most = np.where(only > 0, np.minimum(only, reference), reference)

    # Without ps the total batch is divided by k.
    least_part = -(-arrays.batch_min // k)
    most_part = np.minimum(arrays.batch_max // k, arrays.device_batch_max)
    least = np.where(arrays.split, least_part, least)
    most = np.where(arrays.split, most_part, most)
    return least, most


# ---------------------------------------------------------------- the timing of a job


def prior_timing(reference: int) -> Timing:
    """Return the timing before any observation, in units of the time for one example."""
    return Timing(OVERHEAD * reference, 1.0, RING * reference, HOP * reference)


def fit_timing(seen: Sequence[Speed], reference: int) -> Timing:
    """Return the timing nearest to the observed speeds, by relative error; speeds that are not
    numbers above 0 are ignored.
    """
    return fit_timings([(seen, reference)])[0]


def fit_timings(cases: Sequence[tuple[Sequence[Speed], int]]) -> list[Timing]:
    """Return the timings of many jobs, fitted in one pass."""
    systems = []
    for seen, reference in cases:
        systems.append(_timing_system(_usable_speeds(seen), reference))
    solutions = nnls_each([(system.rows, system.goals) for system in systems])

    timings = []
    for solution, system, (_, reference) in zip(solutions, systems, cases, strict=True):
        if len(system.goals) > TERMS:
            timings.append(Timing(*(solution * system.units).tolist()))
        else:
            timings.append(prior_timing(reference))
    return timings


def _usable_speeds(seen: Sequence[Speed]) -> list[Speed]:
    """Return the speeds that are numbers above 0."""
    usable = []
    for speed in seen:
        is_number = math.isfinite(speed.rate) and speed.rate > 0
        if is_number and speed.each > 0 and speed.devices > 0:
            usable.append(speed)
    return usable


class System(NamedTuple):
    """Linear equations: those of the speeds, then those of the prior."""

    rows: Floats
    goals: Floats
    units: Floats


def _timing_system(usable: Sequence[Speed], reference: int) -> System:
    """Return the equations of one job: rows [speeds + terms, terms], goals, units [terms]."""
    guess = np.array(msgspec.structs.astuple(prior_timing(reference)))
    if not usable:
        return System(np.eye(TERMS), np.zeros(TERMS), guess)
    terms, took_s = _observed_terms(usable)

    # The prior at the level of the speeds; a term's unit is the time of a step at the reference.
    slower = took_s / (terms @ guess)
    guess *= np.exp(np.mean(np.log(slower)))
    step_s = guess[0] + reference * guess[1]
    units = step_s / np.array([1.0, reference, 1.0, 1.0])

    speed_rows = terms * units / took_s[:, None]
    prior_rows = DRAWN * np.eye(TERMS)
    speed_goals = np.ones(len(usable))
    prior_goals = DRAWN * guess / units
    rows = np.vstack([speed_rows, prior_rows])
    goals = np.concatenate([speed_goals, prior_goals])
    return System(rows, goals, units)


def _observed_terms(usable: Sequence[Speed]) -> tuple[Floats, Floats]:
    """Return the terms of each speed [speeds, terms], and the seconds of its iteration [speeds]."""
    each, k, rate = np.array(usable, dtype=np.float64).T
    terms = np.empty((len(usable), TERMS))
    terms[:, 0] = 1.0
    terms[:, 1] = each
    terms[:, 2] = (k - 1) / k
    terms[:, 3] = k - 1
    return terms, each * k / rate


Amount = TypeVar("Amount", int, Ints)

UNITS_MAX = 2048
"""The most units in which cores are counted."""


class Pool(NamedTuple):
    """`units`: how many there are in all; `unit`: the devices, or the thousandths of a core, of
    one.
    """

    units: int
    unit: int
    devices: bool

    def cost(self, job: JobSnapshot, workers: int) -> int:
        """Return the units of the whole job, rounded up."""
        if self.devices:
            return ceil_division(workers * job.sizes.worker.gpu, self.unit)
        return ceil_division(cores_of_workers(job, workers), self.unit)

    def costs(self, jobs: Sequence[JobSnapshot], most: int) -> Ints:
        """Return the units of each job with 1 to `most` workers [jobs, workers]."""
        workers = np.arange(1, most + 1)
        if self.devices:
            devices = np.array([job.sizes.worker.gpu for job in jobs])
            amounts = workers * devices[:, None]
        else:
            amounts = _cores_each(jobs, workers)
        return ceil_division(amounts, self.unit)


def _cores_each(jobs: Sequence[JobSnapshot], workers: Ints) -> Ints:
    """Return thousandths of a core of each job with each number of workers [jobs, workers]."""
    tasks = []
    for job in jobs:
        sizes = job.sizes
        chief_milli = _milli(sizes.chief.cpu)
        ps_milli = _milli(sizes.ps.cpu)
        worker_milli = _milli(sizes.worker.cpu)
        tasks.append((chief_milli, ps_milli, worker_milli))
    chief, ps, worker = np.array(tasks).T[:, :, None]
    of_ps = _ps_each(jobs, workers) * ps
    of_all: Ints = chief + of_ps + workers * worker
    return of_all


def _ps_each(jobs: Sequence[JobSnapshot], workers: Ints) -> Ints:
    """Return the ps beside each number of workers [jobs, workers], as in `ps_beside`."""
    bounds = []
    for job in jobs:
        request = job.request
        ps = request.ps
        bounds.append((request.workers.start, ps.start, ps.min, ps.max))
    start_workers, start_ps, least_ps, most_ps = np.array(bounds).T[:, :, None]
    wanted = ceil_division(workers * start_ps, start_workers)
    number: Ints = np.maximum(np.minimum(wanted, most_ps), least_ps)
    return number


def cores_of_workers(job: JobSnapshot, workers: int) -> int:
    """Return thousandths of a core, of the whole job."""
    sizes = job.sizes
    of_ps = ps_beside(job, workers) * _milli(sizes.ps.cpu)
    of_workers = workers * _milli(sizes.worker.cpu)
    return _milli(sizes.chief.cpu) + of_ps + of_workers


def ps_beside(job: JobSnapshot, workers: int) -> int:
    """Return the number of ps for so many workers: in the ratio of the start, within the job's
    bounds.
    """
    ps = job.request.ps
    wanted = ceil_division(workers * ps.start, job.request.workers.start)
    return max(ps.min, min(ps.max, wanted))


def device_pool(cluster: Iterable[Node], jobs: Sequence[JobSnapshot]) -> Pool:
    """Return the devices that are free or that these jobs hold."""
    there = {}
    for node in cluster:
        there[node.name] = node.free.gpu if node.open else 0
    for job in jobs:
        for task in job.tasks:
            if task.node in there:
                there[task.node] += task.resources.gpu
    return Pool(sum(there.values()), 1, devices=True)


def core_pool(cluster: Iterable[Node], jobs: Sequence[JobSnapshot], taken: int) -> Pool:
    """Return the cores that are free or that these jobs hold, less those that others will need.

    `taken`: the thousandths of a core that others will need. Only whole units of each node count.
    """
    there = _node_cores(cluster, jobs)
    unit = _unit(jobs, sum(there))
    units = 0
    for amount in there:
        units += amount // unit
    return pool_without(Pool(units, unit, devices=False), taken)


def _node_cores(cluster: Iterable[Node], jobs: Sequence[JobSnapshot]) -> list[int]:
    """Return the thousandths of a core on each node that are free or that these jobs hold."""
    there = {}
    for node in cluster:
        there[node.name] = math.floor(node.free.cpu * 1000 + 1e-6) if node.open else 0
    for job in jobs:
        for task in job.tasks:
            if task.node in there:
                there[task.node] += math.floor(task.resources.cpu * 1000 + 1e-6)
    return list(there.values())


def pool_without(pool: Pool, taken: int) -> Pool:
    """Return the pool less so many thousandths of a core, rounded up to units."""
    left = pool.units - ceil_division(taken, pool.unit)
    return pool._replace(units=max(0, left))


def _unit(jobs: Sequence[JobSnapshot], there: int) -> int:
    """Return the largest number of thousandths that divides every task, or a coarser one."""
    tasks = set()
    for job in jobs:
        for role in ROLES:
            tasks.add(_milli(getattr(job.sizes, role).cpu))
    return max(1, math.gcd(*tasks), ceil_division(there, UNITS_MAX))


def ceil_division(amount: Amount, by: Amount | int) -> Amount:
    """Return the quotient, rounded up."""
    return -(-amount // by)


def _milli(cpu: float) -> int:
    """Return the cores of one task in thousandths, rounded up."""
    return math.ceil(cpu * 1000 - 1e-6)
