"""Optimus, for comparison (Peng, Bao, Chen, Wu, Guo, EuroSys 2018), as its authors publish it.

    gain of a task = (remaining time now - remaining time with it) / amount of its dominant resource

In each interval every job gets one ps and one worker, in the order of arrival, so that no job
starves. Then the task with the largest gain of all {+ps, +worker} is added, again and again, until
no gain is positive or that task does not fit into the cluster. The dominant resource of a task is
the one of which it takes the largest share of the cluster's total. `fits.py` has the speeds, the
convergence and the probes before them.

From the authors' published scheduler: all of the above; ties (ps before worker, then the earlier
job); requested epochs have precedence over fitted ones; 20 more epochs if convergence is unknown.
Four slips of that code are not repeated: remaining epochs are divided by batches/s (here examples
by examples/s); a job without a floor keeps the counts of the interval before; a set of nodes that
holds the workers of a job but not its ps keeps the workers' capacity; after the first job that fits
nowhere no other job is placed.

`tests/allocator/policies/optimus/test_optimus.py` checks the agreement: it repeats the authors'
scheduling pass and placement step by step, and compares counts and nodes on random clusters, jobs
and speeds.

The contract requires more: bounds of ps and workers; the gang floor in place of 1 + 1; capacity for
the chief; a floor for running jobs before waiting ones, and no job shrinks to nothing; a job starts
at once and then changes at most once per interval; probes run beside other jobs, within the
capacity that the floors leave. Jobs without ps have workers only. The allocator chooses nodes by
its own rule; of Optimus' nodes only the counts that fit remain.

Choice of nodes (EuroSys 2018, and its authors' code): the smallest job first. Nodes are sorted by
their free cores, most first; the job gets the shortest prefix that holds all of it, with its ps and
its workers each spread evenly. If no number of nodes holds the job in this way, it gets as many
tasks as fit, a ps and a worker in turn, each on the first node with room. The chief (Optimus has
none) is placed first.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Literal

import msgspec

from services.allocator.placement.amounts import add, amounts, fits, multiply, subtract, total_of
from services.allocator.policies.contract import JobSnapshot, Node, Size, Target
from services.allocator.policies.optimus.fits import (
    Points,
    Quiet,
    Rate,
    SpeedModel,
    batch_of,
    converged_epoch,
    measured_points,
    pool_points,
    probe_program,
    probe_sizes,
    speed_models,
)
from shared.messages import Resources

Kind = Literal["ps", "worker"]
KINDS: tuple[Kind, ...] = ("ps", "worker")
Sizes = dict[str, Size]
Step = tuple[float, int, Kind]
"""The gain, negative so that the largest sorts first; the job's index; the role of the task."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    interval_s: float = 600.0
    """Seconds between two changes of a job."""
    probe_s: float = 180.0
    """The least time (s) that a probe trains."""
    quiet: Quiet = Quiet()
    """The rule of convergence of a loss."""
    unknown_epochs: int = 20
    """The epochs that are assumed to remain if convergence is unknown."""
    until_converged: bool = False
    """Count the remaining samples up to convergence, not up to the requested epochs."""


AS_PUBLISHED = Rules()


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """`remaining`: examples; `ps`, `worker`, `chief`: the resources of one task; `least` and
    `most`: bounds, included.
    """

    key: str
    remaining: float
    rate: Rate
    ps: Resources
    worker: Resources
    chief: Resources = Resources()
    least: Size = Size(1, 1)
    most: Size

    def task(self, kind: Kind) -> Resources:
        """Return the resources of one task."""
        return self.ps if kind == "ps" else self.worker

    def wants(self, size: Size) -> Resources:
        """Return the resources of the whole job at a size."""
        return total_resources([(self.chief, 1), (self.ps, size.ps), (self.worker, size.workers)])


def total_resources(parts: Iterable[tuple[Resources, int]]) -> Resources:
    """Return the sum of the parts, each so many times."""
    return total_of(multiply(one, count) for one, count in parts)


def allot_sizes(jobs: Sequence[Candidate], cluster: Resources, free: Resources) -> Sizes:
    """Return the size of each job, absent if not even its floor fits. `cluster`: all resources;
    `free`: those that the jobs share.
    """
    begun, left = floor_sizes(jobs, free)
    return grow_by_gain(jobs, begun, cluster, left)


def floor_sizes(jobs: Sequence[Candidate], free: Resources) -> tuple[Sizes, Resources]:
    """Return the floor of each job if it fits, in the order of arrival; and the rest."""
    sizes: Sizes = {}
    for job in jobs:
        wants = job.wants(job.least)
        if fits(wants, free):
            sizes[job.key] = job.least
            free = subtract(free, wants)
    return sizes, free


def grow_by_gain(
    jobs: Sequence[Candidate], begun: Mapping[str, Size], cluster: Resources, free: Resources
) -> Sizes:
    """Add task after task, each with the largest gain, to the sizes `begun`."""
    sizes = dict(begun)
    queue = _first_steps(jobs, sizes, cluster)
    heapq.heapify(queue)

    while queue:
        _, at, kind = heapq.heappop(queue)
        job = jobs[at]
        task = job.task(kind)
        if not fits(task, free):
            break
        free = subtract(free, task)
        size = size_with_task(sizes[job.key], kind)
        sizes[job.key] = size
        step = _best_step(at, job, size, cluster)
        if step:
            heapq.heappush(queue, step)
    return sizes


def _first_steps(
    jobs: Sequence[Candidate], sizes: Mapping[str, Size], cluster: Resources
) -> list[Step]:
    """Return the next step of each job that has a size, if it gains."""
    steps = []
    for at, job in enumerate(jobs):
        if job.key not in sizes:
            continue
        step = _best_step(at, job, sizes[job.key], cluster)
        if step:
            steps.append(step)
    return steps


def _best_step(at: int, job: Candidate, size: Size, cluster: Resources) -> Step | None:
    """Return the better of a job's two next tasks, if it gains."""
    now = job.rate(size)
    if now <= 0:
        return None

    best: Step | None = None
    for kind in KINDS:
        if size.of(kind) >= job.most.of(kind):
            continue
        then = job.rate(size_with_task(size, kind))
        if then <= 0:
            return None
        step = (-task_gain(job, kind, now, then, cluster), at, kind)
        if best is None or step < best:
            best = step
    return best if best and best[0] < 0 else None


def task_gain(job: Candidate, kind: Kind, now: float, then: float, cluster: Resources) -> float:
    """Return the seconds saved by one more task, going from `now` to `then` examples/s, per unit of
    its dominant resource.
    """
    dominant = 0.0
    largest_share = -math.inf
    for amount, there in zip(amounts(job.task(kind)), amounts(cluster), strict=True):
        share = amount / there if there else 0.0
        if share > largest_share:
            largest_share = share
            dominant = amount
    saved_s = job.remaining / now - job.remaining / then
    return float(saved_s / (dominant or 1.0))


def size_with_task(size: Size, kind: Kind) -> Size:
    """Return the size with one more task."""
    if kind == "ps":
        return Size(size.ps + 1, size.workers)
    return Size(size.ps, size.workers + 1)


def optimus(
    cluster: Sequence[Node], jobs: Sequence[JobSnapshot], now: float, rules: Rules = AS_PUBLISHED
) -> list[Target]:
    """Return the targets of the jobs that may change now."""
    # 1. The jobs that may change now, and the resources that they share: the free ones and their
    # own.
    points = pool_points(jobs)
    due, missing = _due_jobs(jobs, points, now, rules)
    nodes = _shared_nodes(cluster, due)
    models = _speed_models(due, points)
    candidates = []
    for job in due:
        candidates.append(_candidate(job, models[job.key], rules))

    # 2. Floors, then probes, then gains.
    shared = total_resources((free, 1) for free in nodes.values())
    sizes, left = floor_sizes(candidates, shared)
    probing, ready, left = _probe_first(candidates, sizes, missing, left)
    everything = total_resources((node.allocatable, 1) for node in cluster)
    sizes = grow_by_gain(ready, sizes, everything, left) | probing

    # 3. As many tasks as have a node.
    nodes_by_job = choose_nodes(candidates, sizes, nodes)
    targets = []
    for job in due:
        ps, workers = nodes_by_job.get(job.key, ([], []))
        size = Size(len(ps), len(workers))
        if size.ps < job.least.ps or size.workers < job.least.workers:
            continue
        is_probe = job.key in probing
        targets.append(_optimus_target(job, size, models[job.key], is_probe))
    return targets


def _due_jobs(
    jobs: Sequence[JobSnapshot], points: Mapping[str, Points], now: float, rules: Rules
) -> tuple[list[JobSnapshot], dict[str, list[Size]]]:
    """Return the jobs that may change now, running ones first, then by arrival; and the sizes that
    each of them has to probe.
    """
    due = []
    missing = {}
    for job in sorted(jobs, key=lambda job: (job.size is None, job.submitted_s)):
        to_probe = probe_sizes(job, points.get(probe_program(job), {}))
        if _is_due(job, bool(to_probe), now, rules):
            due.append(job)
            missing[job.key] = to_probe
    return due, missing


def _is_due(job: JobSnapshot, has_probes: bool, now: float, rules: Rules) -> bool:
    """Return True if the job may change: it is new; or it did not change in this interval; or it is
    done with a probe that another follows. Its speed must have been reported.
    """
    if job.busy:
        return False
    if job.size is None:
        return True
    if job.size not in measured_points(job):
        return False
    if has_probes:
        return now - job.since_s >= rules.probe_s
    interval_start_s = math.floor(now / rules.interval_s) * rules.interval_s
    return job.since_s < interval_start_s


def _shared_nodes(cluster: Sequence[Node], jobs: Sequence[JobSnapshot]) -> dict[str, Resources]:
    """Return the free resources of each node, and those of these jobs there."""
    nodes = {}
    for node in cluster:
        if node.open:
            nodes[node.name] = node.free
    for job in jobs:
        for task in job.tasks:
            if task.node in nodes:
                nodes[task.node] = add(nodes[task.node], task.resources)
    return nodes


def _speed_models(
    jobs: Sequence[JobSnapshot], points: Mapping[str, Points]
) -> dict[str, SpeedModel]:
    """Return the model of each job's program, by job; all are fitted side by side."""
    batches = {}
    together = set()
    for job in jobs:
        name = probe_program(job)
        batches[name] = batch_of(job)
        if job.request.makes_updates_together:
            together.add(name)
    cases = []
    synchronous = set()
    for at, (name, batch) in enumerate(batches.items()):
        cases.append((points.get(name, {}), batch))
        if name in together:
            synchronous.add(at)
    by_program = dict(zip(batches, speed_models(cases, synchronous), strict=True))

    models = {}
    for job in jobs:
        models[job.key] = by_program[probe_program(job)]
    return models


def _candidate(job: JobSnapshot, model: SpeedModel, rules: Rules) -> Candidate:
    """Return a job as the rule sees it."""
    return Candidate(
        key=job.key,
        remaining=remaining_examples(job, rules),
        rate=model,
        ps=job.sizes.ps,
        worker=job.sizes.worker,
        chief=job.sizes.chief,
        least=job.least,
        most=job.most,
    )


def remaining_examples(job: JobSnapshot, rules: Rules) -> float:
    """Return the examples to go: to the epochs asked for, or to convergence; 1 while nothing was
    reported.
    """
    if job.progress is None or not job.progress.total_samples:
        return 1.0
    done = job.progress.samples
    asked = job.progress.total_samples
    if not rules.until_converged:
        return float(max(0, asked - done))
    epoch = asked / job.request.epochs
    epochs, losses = _loss_curve(job, epoch)
    end = converged_epoch(epochs, losses, done / epoch, rules.quiet)
    if end is None:
        return rules.unknown_epochs * epoch
    return max(0.0, end * epoch - done)


def _loss_curve(job: JobSnapshot, epoch: float) -> tuple[list[float], list[float]]:
    """Return the epoch and the loss of each point. `epoch`: the samples of one."""
    epochs = []
    losses = []
    for point in job.curve:
        if math.isfinite(point.loss):
            epochs.append(point.samples / epoch)
            losses.append(point.loss)
    return epochs, losses


def _probe_first(
    jobs: Sequence[Candidate],
    sizes: Sizes,
    missing: Mapping[str, Sequence[Size]],
    free: Resources,
) -> tuple[Sizes, list[Candidate], Resources]:
    """Give each job with a floor that has to probe its next probe. Return these sizes, the other
    jobs, and the rest.
    """
    probing = {}
    ready = []
    for job in jobs:
        to_probe = missing[job.key]
        if job.key in sizes and to_probe:
            probing[job.key], free = _next_probe(job, to_probe, free)
        else:
            ready.append(job)
    return probing, ready, free


def _next_probe(job: Candidate, sizes: Sequence[Size], free: Resources) -> tuple[Size, Resources]:
    """Return the first probe that fits into the free resources, else the floor; and the rest."""
    for size in sizes:
        more_ps = multiply(job.ps, size.ps - job.least.ps)
        more_workers = multiply(job.worker, size.workers - job.least.workers)
        more = add(more_ps, more_workers)
        if fits(more, free):
            return size, subtract(free, more)
    return job.least, free


def _optimus_target(job: JobSnapshot, size: Size, model: SpeedModel, is_probe: bool) -> Target:
    """Return the target for a size. A probe is made whatever its gain."""
    reason = "no other task saves more time for its dominant resource"
    faster = None
    if is_probe:
        reason = "a probe to measure the speed"
        faster = math.inf
    elif job.size and model(job.size) > 0:
        faster = model(size) / model(job.size) or None
    return Target(
        job=job.key,
        ps=size.ps,
        workers=size.workers,
        batch=batch_of(job),
        reason=reason,
        speedup=faster,
    )


TaskNodes = tuple[list[str], list[str]]
"""The node of each ps, and of each worker."""


def choose_nodes(
    jobs: Sequence[Candidate], sizes: Mapping[str, Size], nodes: Mapping[str, Resources]
) -> dict[str, TaskNodes]:
    """Return the nodes of the tasks of each job; absent: not even one ps and one worker of it fit.
    `nodes`: the free resources of each.
    """
    free = dict(nodes)
    nodes_by_job = {}
    granted = []
    for job in jobs:
        if job.key in sizes:
            granted.append((job, sizes[job.key]))
    granted.sort(key=_number_of_tasks)
    for job, size in granted:
        there = _place_evenly(job, size, free) or _place_by_turns(job, size, free)
        if there:
            nodes_by_job[job.key] = there
    return nodes_by_job


def _number_of_tasks(granted: tuple[Candidate, Size]) -> int:
    """Return the number of ps and workers of a job and its size."""
    _, size = granted
    return size.ps + size.workers


def _place_evenly(
    job: Candidate, size: Size, free: MutableMapping[str, Resources]
) -> TaskNodes | None:
    """Take the whole job from `free`, where it fits: task i is on node i modulo their number."""
    most = max(size.ps, size.workers)
    order = heapq.nlargest(most, free, key=lambda name: free[name].cpu)
    if not order or not fits(job.chief, free[order[0]]):
        return None

    beside_chief = subtract(free[order[0]], job.chief)
    for count in range(1, len(order) + 1):
        left = {order[0]: beside_chief}
        ps = _spread_evenly(order, count, size.ps)
        if not _take_resources(free, left, ps, job.ps):
            continue
        workers = _spread_evenly(order, count, size.workers)
        if _take_resources(free, left, workers, job.worker):
            free.update(left)
            return ps, workers
    return None


def _spread_evenly(order: Sequence[str], count: int, tasks: int) -> list[str]:
    """Return the node of each task: the first `count` nodes, again and again."""
    return [order[i % count] for i in range(tasks)]


def _take_resources(
    free: Mapping[str, Resources],
    left: MutableMapping[str, Resources],
    names: Sequence[str],
    wants: Resources,
) -> bool:
    """Take a task from each of the nodes; return True if they fit. `left`: of the nodes that were
    touched.
    """
    for name in names:
        here = left.get(name, free[name])
        if not fits(wants, here):
            return False
        left[name] = subtract(here, wants)
    return True


def _place_by_turns(
    job: Candidate, size: Size, free: MutableMapping[str, Resources]
) -> TaskNodes | None:
    """Take as much of the job from `free` as fits, unless not even one of each does."""
    tried = dict(free)
    if _put_on_first_node(tried, job.chief) is None:
        return None

    chosen: dict[Kind, list[str]] = {"ps": [], "worker": []}
    for kind in _roles_by_turns(size):
        node = _put_on_first_node(tried, job.task(kind))
        if node is None:
            break
        chosen[kind].append(node)

    ps = chosen["ps"]
    workers = chosen["worker"]
    if not workers or (size.ps and not ps):
        return None
    free.update(tried)
    return ps, workers


def _roles_by_turns(size: Size) -> list[Kind]:
    """Return the kinds of the tasks in turn, a ps first; then those that remain of one kind."""
    turns: list[Kind] = []
    for number in range(max(size.ps, size.workers)):
        if number < size.ps:
            turns.append("ps")
        if number < size.workers:
            turns.append("worker")
    return turns


def _put_on_first_node(free: MutableMapping[str, Resources], wants: Resources) -> str | None:
    """Take a task from the first node with room for it; None if there is none."""
    for name, there in free.items():
        if fits(wants, there):
            free[name] = subtract(there, wants)
            return name
    return None
