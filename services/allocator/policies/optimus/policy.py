"""The outside yardstick: Optimus (Peng, Bao, Chen, Wu, Guo, EuroSys 2018), as its authors publish it.

    gain of a task = (remaining time now - remaining time with it) / its amount of its dominant resource

Every interval: one ps and one worker for each job, in the order of arrival, so that nobody starves; then again and
again the task of the largest gain of all {+ps, +worker}, until no gain is positive or that task does not fit into the
cluster any more. A task's dominant resource is the one of whose total in the cluster it takes the largest share. Speeds
and convergence: `services/allocator/policies/optimus/fits.py`; the probes before them, `probes.py`; nodes, `nodes.py`.

From the authors' published scheduler: all of the above; ties (ps before worker, then the earlier job); epochs that were
asked for go before such as are fitted; 20 epochs more where convergence cannot be told. Not repeated are four slips of
that code: remaining epochs are divided by batches/s (here examples by examples/s); a job without a floor keeps the
counts of the interval before; a set of nodes that holds a job's workers but not its ps keeps the workers' room; and
after the first job that fits nowhere no other is placed.

How the agreement was checked: `tests/allocator/policies/test_optimus.py` writes the authors' scheduling pass and their
placement down again, slowly and step by step, and compares counts and nodes on random clusters, jobs and speeds.

What the contract asks for on top: bounds of ps and workers; the gang floor in place of 1 + 1; room for the chief;
whoever runs has a floor before whoever waits, and nobody shrinks to nothing; a job starts at once and then changes at
most once an interval; probes, within what the floors leave, go on beside the others. Jobs without ps have workers
only. The allocator chooses nodes by its own rule: of Optimus' nodes the counts that fit remain.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence

import msgspec

from services.allocator.placing.amounts import fits, less, plus, times
from services.allocator.policies.contract import JobSeen, Node, Size, Want
from services.allocator.policies.optimus.candidate import Candidate, Kind, total
from services.allocator.policies.optimus.fits import Quiet, Rate, converged_epoch, speed_model
from services.allocator.policies.optimus.nodes import chosen
from services.allocator.policies.optimus.probes import Points, batch_of, measured, pooled, probes, program
from shared.messages import Resources

Sizes = dict[str, Size]
Step = tuple[float, int, Kind]
"""The gain, negative so that the largest sorts first; whose; of which task."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    interval_s: float = 600.0
    """Between two changes of a job."""
    probe_s: float = 180.0
    """How long a probe trains at least."""
    quiet: Quiet = Quiet()
    """When a loss has converged."""
    unknown_epochs: int = 20
    """What is taken to remain where convergence cannot be told."""
    until_converged: bool = False
    """Count what remains up to convergence instead of to the epochs asked for."""


AS_PUBLISHED = Rules()


# ---------------------------------------------------------------- the rule


def allotted(jobs: Sequence[Candidate], cluster: Resources, free: Resources) -> Sizes:
    """The size of each job, absent where not even its floor fits. `cluster`: all there is; `free`: theirs to share."""
    begun, left = floors(jobs, free)
    return marginal(jobs, begun, cluster, left)


def floors(jobs: Sequence[Candidate], free: Resources) -> tuple[Sizes, Resources]:
    """The floor for each job for which it fits, in the order of arrival; and what is left."""
    sizes: Sizes = {}
    for job in jobs:
        wants = job.wants(job.least)
        if fits(wants, free):
            sizes[job.key], free = job.least, less(free, wants)
    return sizes, free


def marginal(jobs: Sequence[Candidate], begun: Mapping[str, Size], cluster: Resources, free: Resources) -> Sizes:
    """Task after task to the largest gain, from the sizes begun with."""
    sizes = dict(begun)
    queue = [step for at, job in enumerate(jobs) if job.key in sizes for step in _step(at, job, sizes, cluster)]
    heapq.heapify(queue)
    while queue:
        _, at, kind = heapq.heappop(queue)
        job = jobs[at]
        if not fits(job.task(kind), free):
            break
        free = less(free, job.task(kind))
        sizes[job.key] = larger(sizes[job.key], kind)
        for step in _step(at, job, sizes, cluster):
            heapq.heappush(queue, step)
    return sizes


def _step(at: int, job: Candidate, sizes: Mapping[str, Size], cluster: Resources) -> list[Step]:
    """The better of a job's two next tasks, if it gains."""
    size = sizes[job.key]
    kinds: list[Kind] = [kind for kind in ("ps", "worker") if size.of(kind) < job.most.of(kind)]
    now, *then = [job.rate(size), *(job.rate(larger(size, kind)) for kind in kinds)]
    if now <= 0 or min(then, default=0.0) <= 0:
        return []
    steps: list[Step] = [(-gain(job, k, now, rate, cluster), at, k) for k, rate in zip(kinds, then, strict=True)]
    best = min(steps)
    return [best] if best[0] < 0 else []


def gain(job: Candidate, kind: Kind, now: float, then: float, cluster: Resources) -> float:
    """Seconds saved by one more task, going from `now` to `then` examples/s, per unit of its dominant resource."""
    amounts, there = msgspec.structs.astuple(job.task(kind)), msgspec.structs.astuple(cluster)
    shares = [amount / all_ if all_ else 0.0 for amount, all_ in zip(amounts, there, strict=True)]
    dominant = amounts[shares.index(max(shares))]
    return float((job.remaining / now - job.remaining / then) / (dominant or 1.0))


def larger(size: Size, kind: Kind) -> Size:
    return Size(size.ps + (kind == "ps"), size.workers + (kind == "worker"))


# ---------------------------------------------------------------- the policy


def optimus(cluster: Sequence[Node], jobs: Sequence[JobSeen], now: float, rules: Rules = AS_PUBLISHED) -> list[Want]:
    # 1. Who may change now, and what these share: what is free, and what they hold.
    known = pooled(jobs)
    order = sorted(jobs, key=lambda j: (j.size is None, j.submitted_s))
    due = [job for job in order if _due(job, _known(job, known), now, rules)]
    nodes = _theirs(cluster, due)
    programs = {program(job): job for job in due}
    rates = {name: speed_model(known.get(name, {}), batch_of(job)) for name, job in programs.items()}
    candidates = [_candidate(job, rates[program(job)], rules) for job in due]
    # 2. Floors, then probes, then gains.
    sizes, free = floors(candidates, total((there, 1) for there in nodes.values()))
    probing = {}
    for job, candidate in zip(due, candidates, strict=True):
        if job.key in sizes and (sides := probes(job, _known(job, known))):
            probing[job.key], free = _probed(candidate, sides, free)
    ready = [c for c in candidates if c.key not in probing]
    sizes = marginal(ready, sizes, total((node.allocatable, 1) for node in cluster), free) | probing
    # 3. As many as have a node.
    stand = chosen(candidates, sizes, nodes)
    granted = [job for job in due if _enough(job, *stand.get(job.key, ([], [])))]
    return [_want(job, *stand[job.key], rates[program(job)], probe=job.key in probing) for job in granted]


def _due(job: JobSeen, known: Points, now: float, rules: Rules) -> bool:
    """New; or not changed in this interval; or done with a probe that another follows; never before it was heard of."""
    if job.busy or job.size is None:
        return not job.busy
    if job.size not in measured(job):
        return False
    if probes(job, known):
        return now - job.since_s >= rules.probe_s
    return job.since_s < math.floor(now / rules.interval_s) * rules.interval_s


def _known(job: JobSeen, known: Mapping[str, Points]) -> Points:
    return known.get(program(job), {})


def _theirs(cluster: Sequence[Node], jobs: Sequence[JobSeen]) -> dict[str, Resources]:
    nodes = {node.name: node.free for node in cluster if node.open}
    for task in (task for job in jobs for task in job.tasks if task.node in nodes):
        nodes[task.node] = plus(nodes[task.node], task.resources)
    return nodes


def _candidate(job: JobSeen, rate: Rate, rules: Rules) -> Candidate:
    return Candidate(
        key=job.key,
        remaining=remaining(job, rules),
        rate=rate,
        ps=job.sizes.ps,
        worker=job.sizes.worker,
        chief=job.sizes.chief,
        least=job.least,
        most=job.most,
    )


def remaining(job: JobSeen, rules: Rules) -> float:
    """Examples to go: to the epochs asked for, or to convergence; 1 while nothing was reported."""
    if job.progress is None or not job.progress.total_samples:
        return 1.0
    done, asked = job.progress.samples, job.progress.total_samples
    if not rules.until_converged:
        return float(max(0, asked - done))
    epoch = asked / job.request.epochs
    learned = [point for point in job.curve if math.isfinite(point.loss)]
    end = converged_epoch([p.samples / epoch for p in learned], [p.loss for p in learned], done / epoch, rules.quiet)
    return max(0.0, end * epoch - done) if end is not None else rules.unknown_epochs * epoch


def _probed(job: Candidate, sides: Sequence[Size], free: Resources) -> tuple[Size, Resources]:
    """The first probe that fits into what is free, else the floor; and what is left."""
    for size in sides:
        more = plus(times(job.ps, size.ps - job.least.ps), times(job.worker, size.workers - job.least.workers))
        if fits(more, free):
            return size, less(free, more)
    return job.least, free


def _enough(job: JobSeen, ps: Sequence[str], workers: Sequence[str]) -> bool:
    return len(ps) >= job.least.ps and len(workers) >= job.least.workers


def _want(job: JobSeen, ps: Sequence[str], workers: Sequence[str], rate: Rate, probe: bool) -> Want:
    """A probe is made whatever it gains."""
    reason = "a probe of the speed" if probe else "no other task saves more time for its dominant resource"
    size = Size(len(ps), len(workers))
    faster = math.inf if probe else rate(size) / rate(job.size) if job.size and rate(job.size) > 0 else None
    return Want(
        job=job.key, ps=size.ps, workers=size.workers, batch=batch_of(job), reason=reason, faster=faster or None
    )
