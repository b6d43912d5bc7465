"""Size a job by its model, then by probing: Dike (Xu & Li, Electronics 8(3):327, 2019).

The paper's: an automatic resource manager for distributed TensorFlow that decides number and place of workers and ps by
the model's characteristics (number and type of parameters and layers), the nodes (CPU/GPU ratio) and the input data, so
that nobody writes a configuration by hand; at least 95 % of the optimal throughput. Its formulas and components were
not at hand, so everything below is our reconstruction.

    profile -> kind:  compute-bound, communication-bound or balanced                            (`models/estimate.py`)
    compute-bound:        as many workers as the offer holds, and the fewest ps that keep it so
    communication-bound:  a ps for each worker, and as many workers as leave transfer <= compute
    balanced, or nothing known of the model: the best by the performance model                  (`models/speed.py`)
    then probe, refit, refine: the size with the largest expected improvement                   (`models/search.py`)

The size that the user asked for is the first probe, the size by the rule the second; there are `PROBES` in all, and one
is made only where the seconds that it should save on the remaining work exceed going there and perhaps back. Then the
best size that was tried is kept. Another follows only where it is better beyond doubt: when an offer grows, and a size
is sure to be faster; or when a size that was tried is so by more than the noise of two speeds.

Jobs are served in turn, those that wait before those that run: the paper sizes one job at a time. Of where tasks go a
policy says nothing; ps beside workers, and on nodes without devices first, is the placement's rule. Batch and task
sizes stay as requested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache, partial

from services.allocator.kept import Kept, KeptEach
from services.allocator.models.estimate import Kind, fitted_kind, prior_of, told
from services.allocator.models.evidence import believable
from services.allocator.models.fitting import Prior, closest
from services.allocator.models.search import Probe, best_of, certain, next_probe
from services.allocator.models.speed import NOISE, Fit, Form
from services.allocator.placing.placement import Room, place, place_most
from services.allocator.policies.contract import JobSeen, Node, Observed, Size, Want, at_start
from services.allocator.policies.dike.offers import offered
from shared.messages import Alternative
from shared.words import counted

JOBS_KEPT = 1024
"""Models of so many are remembered."""
PROBES = 8
"""Sizes that a job tries; its first counts."""
THERE_AND_BACK = 2.0
"""Pauses that a probe costs."""
LOST = "slower, by what is known"
HOLD = 0.02
"""From a size that has just been tried a job goes back where it is faster by so much: less is not worth a pause."""
NEW = 3
"""Reports at a size until the job counts as staying there: some may come before the allocator looks."""
SETTLED = 3.0 * math.sqrt(2.0) * NOISE
"""From a size that it stays at, by so much: less may be the noise of two speeds, and both change with each report."""


def dike(cluster: Sequence[Node], jobs: Sequence[JobSeen], now: float) -> list[Want]:
    room, wants = Room(cluster), []
    for job in jobs:
        if job.size is None:
            place_most(room, job.key, (), job.start, job.least, job.sizes, serial=0)
            wants.append(at_start(job, "the first probe is the size that was asked for"))
    running = [job for job in jobs if job.size is not None and not job.busy]
    fitted([job for job in running if job.size in _tried(job)])  # side by side: `sized` finds it known
    nodes = tuple(room.nodes.values())
    for job in running:
        want = _sized(job)(*_offers([(job, nodes)]))
        if want.size != job.size:
            place(room, job.key, job.tasks, want.size, job.sizes, serial=0)
            nodes = tuple(room.nodes.values())
        wants.append(want)
    return wants


def sized(job: JobSeen, size: Size, offer: Sequence[Size]) -> Want:
    """What a running job should have, of the sizes that there is room for."""
    tried = _tried(job)
    if size not in tried:
        return _want(job, size, "waits for its speed at this size")
    sizes = list(dict.fromkeys([size, *offer]))
    if sizes == [size]:
        return _kept(job, size, tried)
    fit = fitted([job])[0]
    probe = _probe(job, fit, sizes, tried)
    best = best_of(fit, [s for s in tried if s in sizes], job.batch)
    if probe is not None and _saved_s(job, fit, best, probe.gain) > THERE_AND_BACK * job.pauses_s:
        return _want(
            job, probe.size, f"probe {len(tried) + 1}: expected to be {probe.gain:.0%} faster", 1.0 + probe.gain, best
        )
    gain = 0.0 if best == size else _speed(job, fit, best) / _speed(job, fit, size) - 1.0
    if gain > (HOLD if _just_tried(job, size) else SETTLED) and _saved_s(job, fit, size, gain) > job.pauses_s:
        return _want(job, best, f"the best of {counted(len(tried), 'size')} tried, {gain:.0%} faster", 1.0 + gain, size)
    return _kept(job, size, tried)


def _kept(job: JobSeen, size: Size, tried: Sequence[Size]) -> Want:
    return _want(job, size, f"the best of {counted(len(tried), 'size')} tried; no other is worth a probe")


def _by_offer(job: JobSeen) -> Callable[[tuple[Size, ...]], Want]:
    return cache(partial(sized, job, job.size or job.start))


_sized: Kept[JobSeen, Callable[[tuple[Size, ...]], Want]] = Kept(_by_offer, JOBS_KEPT)

Asked = tuple[JobSeen, tuple[Node, ...]]


def _same(asked: Asked) -> Hashable:
    """An offer is the same whatever the job reports."""
    job, nodes = asked
    return id(job.request), id(job.tasks), id(job.sizes), *map(id, nodes)


def _offered(asked: Sequence[Asked]) -> Iterator[tuple[Size, ...]]:
    return (tuple(offered(nodes, job)) for job, nodes in asked)


_offers: KeptEach[Asked, tuple[Size, ...]] = KeptEach(_offered, _same, JOBS_KEPT)
"""Of a job and the nodes."""


def by_kind(kind: Kind, fitted: Fit, sizes: Sequence[Size], batch: int) -> Size | None:
    """The size that the rule names, of those on offer."""
    if kind == "compute-bound":
        most = max(s.workers for s in sizes)
        widest = sorted((s for s in sizes if s.workers == most), key=lambda s: s.ps)
        return next((s for s in widest if fitted_kind(fitted, s, batch) == kind), widest[-1])
    if kind == "communication-bound":
        pairs = [s for s in sizes if s.ps == s.workers and fitted_kind(fitted, s, batch) != kind]
        return max(pairs, key=lambda s: s.workers, default=None) or min(sizes, key=lambda s: (s.workers, -s.ps))
    return None


def _probe(job: JobSeen, fit: Fit, sizes: Sequence[Size], tried: Sequence[Size]) -> Probe | None:
    """The second by the model's kind, where its profile is known; others by expected gain; then only certain ones."""
    if len(tried) >= PROBES:
        return certain(fit, sizes, tried, job.batch)
    if len(tried) == 1 and job.progress and job.progress.profile:
        named = by_kind(fitted_kind(fit, tried[0], job.batch), fit, sizes, job.batch)
        if named is not None and named not in tried:
            return next_probe(fit, [named], tried, job.batch)
    return next_probe(fit, sizes, tried, job.batch)


def _tried(job: JobSeen) -> list[Size]:
    return [Size(o.ps, o.workers) for o in _believed(job)]


def _believed(job: JobSeen) -> list[Observed]:
    return [o for o in job.observed if o.batch == job.batch and believable(o)]


def _priors(job: JobSeen) -> list[Prior]:
    """Whose a batch is, each worker's or everybody's, speeds tell; until they do each worker's, as Weir trains."""
    profile = job.progress.profile if job.progress else None
    known = told(profile) if profile else None
    forms: tuple[Form, ...] = ("asynchronous", "synchronous") if job.most.ps else ("synchronous",)
    return [prior_of(known, job.batch, form) for form in forms]


fitted: KeptEach[JobSeen, Fit] = KeptEach(
    lambda jobs: closest([(_believed(job), _priors(job)) for job in jobs]), id, JOBS_KEPT
)
"""Each one's model."""


def _speed(job: JobSeen, fit: Fit, size: Size) -> float:
    return fit.speed(size.ps, size.workers, job.batch)


def _just_tried(job: JobSeen, size: Size) -> bool:
    return sum((seen.ps, seen.workers) == (size.ps, size.workers) for seen in job.recent) <= NEW


def _saved_s(job: JobSeen, fit: Fit, size: Size, gain: float) -> float:
    """Of the seconds until the job's end at a size, by a gain in speed; no end, where nobody knows of one."""
    if job.progress is None or job.progress.total_samples <= 0:
        return math.inf if gain > 0 else 0.0
    left = max(0, job.progress.total_samples - job.progress.samples)
    return left / _speed(job, fit, size) * gain / (1 + gain)


def _want(job: JobSeen, size: Size, reason: str, faster: float | None = None, kept: Size | None = None) -> Want:
    """`kept`: what it would have otherwise."""
    others = () if kept in (None, size) else (Alternative(ps=kept.ps, workers=kept.workers, batch=job.batch, why=LOST),)
    return Want(
        job=job.key,
        ps=size.ps,
        workers=size.workers,
        batch=job.batch,
        reason=reason,
        alternatives=others,
        faster=faster,
    )
