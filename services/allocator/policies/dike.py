"""Size a job by its model, then by probing: Dike (Xu & Li, Electronics 8(3):327, 2019).

From the paper: an automatic resource manager for distributed TensorFlow that decides number and
place of workers and ps by the model's characteristics (number and type of parameters and layers),
the nodes (CPU/GPU ratio) and the input data, so that users write no configuration; at least 95 % of
the optimal throughput. Its formulas and components were not available, so everything below is our
reconstruction.

    profile -> kind: compute-bound, communication-bound or balanced   (`models/model_profile.py`)
    compute-bound:        as many workers as the offer holds, and the fewest ps that keep it so
    communication-bound:  a ps for each worker, and as many workers as leave transfer <= compute
    balanced, or nothing known of the model: the best by the performance model   (`models/speed.py`)
    then probe, refit, refine: the size with the largest expected improvement   (`models/search.py`)

The requested size is the first probe, the size by the rule the second. There are `PROBES` in all,
and one is made only if it should save more seconds of the remaining work than two pauses cost: to
go there, and perhaps back. Then the best size that was tried is kept. The job changes again only if
another size is clearly better: an untried one, after an offer has grown, that is sure to be faster;
or a tried one that is faster by more than the noise of two speeds.

Jobs are served one by one, waiting jobs before running ones: the paper sizes one job at a time. A
policy does not choose nodes; the placement puts tasks beside the job's others, and on nodes without
devices first. Batch and task sizes stay as requested.

An offer is a size of a job that the nodes can hold (the term is Mesos'); it may be less than
requested. Ps are counted one by one on the nodes where the placement would put them (fewest devices
wasted, then least cpu left). For each number of ps, the offer has the number of workers that fit
beside them. The capacity that the job holds itself counts as free to it. An offer is a count and no
placement: a size is placed when it is granted.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence

import msgspec
import numpy as np

from services.allocator.models.fitting import Prior, fit_closest_form, is_believable
from services.allocator.models.model_profile import Kind, fitted_kind, prior_of, profile_of
from services.allocator.models.search import (
    Probe,
    certain_gain,
    expected_gain,
    mean_log_speeds,
    predict_log_speeds,
)
from services.allocator.models.speed import NOISE, Array, Fit, Form
from services.allocator.placement.amounts import ROUNDING, amounts
from services.allocator.placement.placers import place, place_most
from services.allocator.placement.room import Room
from services.allocator.policies.contract import (
    JobSnapshot,
    Node,
    Observed,
    Size,
    Target,
    models_of,
    shares_batch,
    start_target,
)
from shared.messages import Alternative
from shared.text import format_count

PROBES = 8
"""The number of sizes that a job tries, its first one included."""
THERE_AND_BACK = 2.0
"""The number of pauses that a probe costs."""
LOST = "expected to be slower"
HOLD = 0.02
"""The gain for which a job leaves a size that it has just tried for a faster one: less is not worth
a pause.
"""
NEW = 3
"""A job with no more reports at a size has just tried it: some reports may come before the
allocator looks.
"""
SETTLED = 3.0 * math.sqrt(2.0) * NOISE
"""The gain for which a job leaves a size at which it stays: less may be the noise of two speeds,
and both change with each report.
"""


class DikeModel(msgspec.Struct, frozen=True):
    """The performance model of one job. `fit`: None until a speed was observed at its batch.

    `tried`: the observed sizes; `log_speeds`: the model's mean for each of them. `untried`: other
    sizes that may be offered; `gains`: the gain of each of them, as in `Probe`.
    """

    fit: Fit | None = None
    tried: tuple[Size, ...] = ()
    log_speeds: tuple[float, ...] = ()
    untried: tuple[Size, ...] = ()
    gains: tuple[float, ...] = ()

    def best_of(self, sizes: Container[Size]) -> Size:
        """Return the fastest of the sizes that were tried and are among these; one must be."""
        best = -1
        for n, size in enumerate(self.tried):
            if size not in sizes:
                continue
            if best < 0 or self.log_speeds[n] > self.log_speeds[best]:
                best = n
        return self.tried[best]

    def speed(self, size: Size) -> float:
        """Return samples a second at a size that was tried."""
        return math.exp(self.log_speeds[self.tried.index(size)])


def dike(cluster: Sequence[Node], jobs: Sequence[JobSnapshot], now: float) -> list[Target]:
    """Return the targets of the waiting jobs, then one by one those of the running jobs."""
    room = Room(cluster)
    targets = []
    running = []
    for job in jobs:
        if job.size is None:
            place_most(room, job.key, (), job.start, job.least, job.sizes, serial=0)
            targets.append(start_target(job, "the first probe is the requested size"))
        elif not job.busy:
            running.append(job)

    nodes = FreeNodes(room.nodes.values())
    models = models_of(running, DikeModel, fit_dike_jobs)
    for job, model in zip(running, models, strict=True):
        target = _running_target(job, model, nodes)
        if target.size != job.size:
            _place_resized(job, target.size, room, nodes)
        targets.append(target)
    return targets


def _place_resized(job: JobSnapshot, size: Size, room: Room, nodes: FreeNodes) -> None:
    """Place a running job at another size, if it fits."""
    changed = []
    for task in place(room, job.key, job.tasks, size, job.sizes, serial=0) or ():
        node = room.nodes.get(task.node)
        if node is not None:
            changed.append(node)
    nodes.update(changed)


# ---------------------------------------------------------------- a job's model


def fit_dike_jobs(jobs: Sequence[JobSnapshot]) -> list[DikeModel]:
    """Return the model of each job, all fitted in one pass."""
    seen_speeds = [_believed_points(job) for job in jobs]
    cases = []
    for job, seen in zip(jobs, seen_speeds, strict=True):
        if seen:
            cases.append((seen, _dike_priors(job)))
    fits = iter(fit_closest_form(cases))

    models = []
    for job, seen in zip(jobs, seen_speeds, strict=True):
        if seen:
            models.append(_model_at(job, seen, next(fits)))
        else:
            models.append(DikeModel())
    return models


def _model_at(job: JobSnapshot, seen: Sequence[Observed], fit: Fit) -> DikeModel:
    """Return the model of a job from the fit to its speeds."""
    tried = [Size(one.ps, one.workers) for one in seen]
    log_speeds = mean_log_speeds(fit, tried, job.batch).tolist()
    untried = [size for size in all_sizes(job) if size not in tried]
    gains = _expected_gains(fit, untried, len(tried), job.batch, max(log_speeds))
    return DikeModel(
        fit=fit,
        tried=tuple(tried),
        log_speeds=tuple(log_speeds),
        untried=tuple(untried),
        gains=tuple(gains),
    )


def _expected_gains(
    fit: Fit, sizes: Sequence[Size], tried: int, batch: int, best: float
) -> list[float]:
    """Return the gain of a probe at each size; after `PROBES` only certain gains count.

    `best`: the largest mean of log speed among the sizes that were `tried`.
    """
    if not sizes:
        return []
    mean, spread = predict_log_speeds(fit, sizes, batch)
    gain = certain_gain if tried >= PROBES else expected_gain
    gains: list[float] = gain(mean, spread, best).tolist()
    return gains


def _believed_points(job: JobSnapshot) -> list[Observed]:
    """Return the believable speeds at the job's batch."""
    believed = []
    for seen in job.observed:
        if seen.batch == job.batch and is_believable(seen):
            believed.append(seen)
    return believed


def _dike_priors(job: JobSnapshot) -> list[Prior]:
    """Return a prior for each meaning of a batch: each worker's own, or one that they share.

    The request says it with `consistency: global-batch` or `exact`, and without ps. Otherwise speeds
    decide between them; until then it is each worker's own, as in Weir's training.
    """
    known = None
    if job.progress and job.progress.profile:
        known = profile_of(job.progress.profile)
    forms: tuple[Form, ...] = ("synchronous",)
    if not shares_batch(job.request):
        forms = ("asynchronous", "synchronous")
    return [prior_of(known, job.batch, form) for form in forms]


# ---------------------------------------------------------------- its size


def _running_target(job: JobSnapshot, model: DikeModel, nodes: FreeNodes) -> Target:
    """Return the target of a running job, among the sizes that there is room for."""
    size = job.size or job.start
    if model.fit is None or size not in model.tried:
        return _dike_target(job, size, "keeps its size until its speed is measured")
    sizes = list(dict.fromkeys([size, *offered_sizes(nodes, job)]))
    if len(sizes) == 1:
        return _unchanged_target(job, size, model)

    # A probe; or else the best size that was tried.
    best = model.best_of(set(sizes))
    probe = _next_probe(job, model, model.fit, sizes)
    if probe is not None and _is_worth_trying(job, probe, model.speed(best)):
        expected = f"expected to be {probe.gain:.0%} faster"
        reason = f"probe {len(model.tried) + 1}: {expected}"
        return _dike_target(job, probe.size, reason, 1.0 + probe.gain, best)
    if best == size:
        return _unchanged_target(job, size, model)
    return _target_at_best(job, size, best, model)


def _is_worth_trying(job: JobSnapshot, probe: Probe, speed: float) -> bool:
    """Return True if a probe should save more seconds than its two pauses cost. `speed`:
    at the best size that was tried.
    """
    saves_s = _saved_s(job, speed, probe.gain)
    return saves_s > THERE_AND_BACK * job.pauses_s


def _target_at_best(job: JobSnapshot, size: Size, best: Size, model: DikeModel) -> Target:
    """Return the target for the best size that was tried, if it is clearly faster than the present
    one and worth a pause; else for the present size.
    """
    speed = model.speed(size)
    gain = model.speed(best) / speed - 1.0
    least_gain = HOLD if _was_just_tried(job, size) else SETTLED
    saves_s = _saved_s(job, speed, gain)
    if gain > least_gain and saves_s > job.pauses_s:
        tried = format_count(len(model.tried), "size")
        reason = f"the best of {tried} tried, {gain:.0%} faster"
        return _dike_target(job, best, reason, 1.0 + gain, size)
    return _unchanged_target(job, size, model)


def _next_probe(
    job: JobSnapshot, model: DikeModel, fit: Fit, sizes: Sequence[Size]
) -> Probe | None:
    """Return the size to try next.

    The second size follows the model's kind if its profile is known; the others are chosen by
    expected gain. After `PROBES` only a certain gain counts.
    """
    tried = model.tried
    if len(tried) == 1 and job.progress and job.progress.profile:
        kind = fitted_kind(fit, tried[0], job.batch)
        named = size_by_kind(kind, fit, sizes, job.batch)
        if named is not None and named not in tried:
            sizes = [named]
    untried = [size for size in sizes if size not in tried]
    gain_at = _gain_by_size(job, model, fit, untried)
    probe: Probe | None = None
    for size in untried:
        if probe is None or gain_at[size] > probe.gain:
            probe = Probe(size, gain_at[size])
    if probe is not None and len(tried) >= PROBES and probe.gain <= 0.0:
        return None
    return probe


def _gain_by_size(
    job: JobSnapshot, model: DikeModel, fit: Fit, untried: Sequence[Size]
) -> dict[Size, float]:
    """Return the gain of a probe at each size. The model already has the gains of the usual
    sizes.
    """
    gain_at = dict(zip(model.untried, model.gains, strict=True))
    others = [size for size in untried if size not in gain_at]
    best = max(model.log_speeds)
    gains = _expected_gains(fit, others, len(model.tried), job.batch, best)
    gain_at.update(zip(others, gains, strict=True))
    return gain_at


def size_by_kind(kind: Kind, fitted: Fit, sizes: Sequence[Size], batch: int) -> Size | None:
    """Return the offered size that the rule for this kind names; None: it has no rule."""
    if kind == "compute-bound":
        return _most_workers(fitted, sizes, batch)
    if kind == "communication-bound":
        return _most_pairs(fitted, sizes, batch)
    return None


def _most_workers(fitted: Fit, sizes: Sequence[Size], batch: int) -> Size:
    """Return the size with the most workers and the fewest ps that keep the job compute-bound; with
    the most ps, if no number of them does.
    """
    most = max([size.workers for size in sizes])
    widest = [size for size in sizes if size.workers == most]
    widest.sort(key=lambda size: size.ps)
    for size in widest:
        if fitted_kind(fitted, size, batch) == "compute-bound":
            return size
    return widest[-1]


def _most_pairs(fitted: Fit, sizes: Sequence[Size], batch: int) -> Size:
    """Return the largest size with a ps for each worker that leaves the job not
    communication-bound.

    If there is none: the fewest workers, with the most ps.
    """
    most: Size | None = None
    for size in sizes:
        if size.ps != size.workers:
            continue
        if most is not None and size.workers <= most.workers:
            continue
        if fitted_kind(fitted, size, batch) != "communication-bound":
            most = size
    if most is not None:
        return most
    return min(sizes, key=lambda size: (size.workers, -size.ps))


def _was_just_tried(job: JobSnapshot, size: Size) -> bool:
    """Return True if there are too few reports at a size to count as staying there."""
    reports = 0
    for seen in job.recent:
        if seen.ps == size.ps and seen.workers == size.workers:
            reports += 1
    return reports <= NEW


def _saved_s(job: JobSnapshot, speed: float, gain: float) -> float:
    """Return the seconds until the job's end that a gain saves, relative to a speed (samples/s).

    Infinity for a gain if the end is not known.
    """
    progress = job.progress
    if progress is None or progress.total_samples <= 0:
        return math.inf if gain > 0 else 0.0
    left = max(0, progress.total_samples - progress.samples)
    return left / speed * gain / (1 + gain)


# ---------------------------------------------------------------- the answer


def _unchanged_target(job: JobSnapshot, size: Size, model: DikeModel) -> Target:
    """Return the target for the present size."""
    tried = format_count(len(model.tried), "size")
    reason = f"the best of {tried} tried; another probe is not worth the pause"
    return _dike_target(job, size, reason)


def _dike_target(
    job: JobSnapshot, size: Size, reason: str, faster: float | None = None, kept: Size | None = None
) -> Target:
    """Return the target of a job. `kept`: the size that it would have otherwise."""
    alternatives = []
    if kept is not None and kept != size:
        lost = Alternative(ps=kept.ps, workers=kept.workers, batch=job.batch, why=LOST)
        alternatives.append(lost)
    return Target(
        job=job.key,
        ps=size.ps,
        workers=size.workers,
        batch=job.batch,
        reason=reason,
        alternatives=tuple(alternatives),
        speedup=faster,
    )


# ---------------------------------------------------------------- offers

Amounts = tuple[float, float, float]
"""Cores, GiB and devices."""

EVERY = 8
"""All numbers of tasks up to this one are offered. Above it, each is `RATIO` times the one before,
and the largest number is offered, too.
"""
RATIO = 1.25
NOTHING = (0.0, 0.0, 0.0)
ANY_NUMBER = 10**9
"""The number of tasks without any resources that fit on one node."""
CPU, MEMORY, DEVICES = range(3)
"""Rows of the arrays."""


class FreeNodes:
    """Amounts that are free on each node, for the offers of one pass; nothing on a closed node."""

    def __init__(self, cluster: Iterable[Node]) -> None:
        columns: list[Amounts] = []
        self._column_of: dict[str, int] = {}
        for node in cluster:
            self._column_of[node.name] = len(columns)
            columns.append(_free_amounts(node))
        by_node = np.array(columns, dtype=float).reshape(-1, 3)
        self._free = by_node.T.copy()  # [3, nodes]

    def update(self, changed: Iterable[Node]) -> None:
        """Update the free amounts of some of these nodes."""
        for node in changed:
            self._free[:, self._column_of[node.name]] = _free_amounts(node)

    def with_tasks_of(self, job: JobSnapshot) -> Array:
        """Return cores, GiB and devices [3, nodes], as if the job's ps and workers held nothing."""
        free = self._free.copy()
        columns = []
        held = []
        for task in job.tasks:
            if task.role != "chief" and task.node in self._column_of:
                columns.append(self._column_of[task.node])
                held.append(amounts(task.resources))
        if held:
            np.add.at(free.T, columns, np.array(held))
        return free


def offered_sizes(nodes: FreeNodes, job: JobSnapshot) -> list[Size]:
    """Return the sizes within the job's bounds that fit, small ones first."""
    free = nodes.with_tasks_of(job)
    if not job.tasks:
        chief = amounts(job.sizes.chief)
        best_first = _best_nodes(free, chief)
        if not best_first:
            return []
        free[:, best_first[0]] -= chief

    least = job.least
    most = job.most
    offered_ps = set(growing_steps(least.ps, most.ps))
    sizes: list[Size] = []
    for ps, room in enumerate(_worker_room(job, free)):
        if ps in offered_ps:
            for workers in growing_steps(least.workers, min(most.workers, room)):
                sizes.append(Size(ps, workers))
    return sizes


def _worker_room(job: JobSnapshot, free: Array) -> Iterator[int]:
    """Return how many workers there is room for beside no ps, one ps, and so on, up to the most
    that the job may have and that fit.
    """
    worker = amounts(job.sizes.worker)
    total = int(_room_on_each(free, worker).sum())
    yield total

    # One ps more each time, on the best node until it is full, then on the next one.
    ps_wants = amounts(job.sizes.ps)
    best_nodes = iter(_best_nodes(free, ps_wants))
    left = NOTHING
    has_room = False
    for _ in range(job.most.ps):
        if not has_room:
            node = next(best_nodes, None)
            if node is None:
                return
            cpu, memory, devices = free[:, node].tolist()
            left = (cpu, memory, devices)
        total -= _room_beside(left, worker)
        left = _less(left, ps_wants)
        total += _room_beside(left, worker)
        has_room = _has_room(left, ps_wants)
        yield total


def all_sizes(job: JobSnapshot) -> list[Size]:
    """Return the sizes within the job's bounds that are offered if there is room for all of
    them.
    """
    all_workers = growing_steps(job.least.workers, job.most.workers)
    sizes = []
    for ps in growing_steps(job.least.ps, job.most.ps):
        for workers in all_workers:
            sizes.append(Size(ps, workers))
    return sizes


def growing_steps(least: int, most: int) -> list[int]:
    """Return numbers from `least` to `most`, both included, in growing steps; none if `most` is
    less.
    """
    if most < least:
        return []
    numbers = []
    number = least
    while number < most:
        numbers.append(number)
        number = number + 1 if number < EVERY else math.ceil(number * RATIO)
    numbers.append(most)
    return numbers


def _free_amounts(node: Node) -> Amounts:
    return amounts(node.free) if node.open else NOTHING


def _best_nodes(free: Array, wants: Amounts) -> list[int]:
    """Return the nodes that have room for a task, in the order of the amounts left: of devices,
    then of cores, then of GiB, the least first. A task on the first of them changes nothing in
    their order.
    """
    enough = free[CPU] + ROUNDING >= wants[CPU]
    enough &= free[MEMORY] + ROUNDING >= wants[MEMORY]
    enough &= free[DEVICES] + ROUNDING >= wants[DEVICES]
    nodes = np.flatnonzero(enough)
    cpu, memory, devices = free[:, nodes]
    order = np.lexsort((memory, cpu, devices))
    best_first: list[int] = nodes[order].tolist()
    return best_first


def _has_room(left: Amounts, wants: Amounts) -> bool:
    """Return True if a task fits in the free part of a node."""
    return (
        left[CPU] + ROUNDING >= wants[CPU]
        and left[MEMORY] + ROUNDING >= wants[MEMORY]
        and left[DEVICES] + ROUNDING >= wants[DEVICES]
    )


def _less(left: Amounts, wants: Amounts) -> Amounts:
    """Return the free part of a node beside one task more."""
    cpu = left[CPU] - wants[CPU]
    memory = left[MEMORY] - wants[MEMORY]
    devices = left[DEVICES] - wants[DEVICES]
    return cpu, memory, devices


def _room_on_each(free: Array, wants: Amounts) -> Array:
    """Return how many such tasks fit on each node [nodes]."""
    room = np.full(free.shape[1], float(ANY_NUMBER))
    for resource in (CPU, MEMORY, DEVICES):
        if wants[resource] > 0:
            fitting = np.floor((free[resource] + ROUNDING) / wants[resource])
            room = np.minimum(room, fitting)
    return np.asarray(np.maximum(room, 0.0))


def _room_beside(left: Amounts, wants: Amounts) -> int:
    """Return how many such tasks fit on a node with this free part."""
    room = ANY_NUMBER
    for resource in (CPU, MEMORY, DEVICES):
        if wants[resource] > 0:
            fitting = math.floor((left[resource] + ROUNDING) / wants[resource])
            room = min(room, fitting)
    return max(room, 0)
