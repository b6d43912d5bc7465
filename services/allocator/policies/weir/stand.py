"""One job, its staircase, and what it has.

What depends on one job alone is kept until that job, its program's model or the cluster changes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from operator import attrgetter

import numpy as np
from msgspec import Struct

from services.allocator.kept import Kept, KeptEach, KeptTogether, by_ids
from services.allocator.models.evidence import SPEEDS
from services.allocator.models.speed import Array, Fit
from services.allocator.placing.amounts import amounts, fits, plus, plus_times, together
from services.allocator.placing.gathering import spread
from services.allocator.policies.contract import JobSeen, Size
from services.allocator.policies.weir.hull import Config
from services.allocator.policies.weir.pauses import pauses
from services.allocator.policies.weir.programs import KEPT, modelled
from services.allocator.policies.weir.staircase import CLUSTERS_KEPT, Staircase, beside, held_by, staircases
from shared.messages import Resources

SPARE = 1 / 32
"""Who grows leaves so much of the cluster, in whole workers, for who comes next: a short job that comes need not make a
large one pause, nor let it pause again when it has gone. Nothing, when nobody comes any more."""
KEEP = 0.15
"""A job that would gain less than this keeps what it has."""


class Stand(Struct, frozen=True, gc=False):
    """A job, its staircase, and what it has.

    `best`: examples a second for the whole cluster's cost, at the best use; `left_s`: remaining seconds at that (None:
    nobody knows); `scarce`: the resource (of cores, GiB, devices) of which its least takes the largest share;
    `spare`: what it leaves when it grows (cores, GiB, devices); `pause_s`: what a change costs it, as far as is known.
    `fitted`: how fast it would be; `there`: the cluster; `node`: its largest one, empty.
    `unrepaid`: the fastest of the larger steps that are left out, because a pause for them would not pay.
    """

    job: JobSeen
    steps: Staircase
    best: float
    speed: float
    cost: float
    left_s: float | None
    scarce: int
    spare: tuple[float, ...]
    pause_s: float
    fitted: Fit
    there: Resources
    node: Resources
    unrepaid: Config | None = None

    @property
    def together(self) -> int:
        """Workers that one node holds."""
        return held_by(self.node, self.job.sizes.worker)


def vector(of: Resources) -> Array:
    return np.array(amounts(of))


held: Kept[JobSeen, Resources] = Kept(lambda job: together([task.resources for task in job.tasks]))
"""By all its tasks."""


all_held: KeptTogether[tuple[()], JobSeen, Resources] = KeptTogether(
    lambda jobs: together(held.each([job for job in jobs if job.tasks]))
)


@lru_cache(CLUSTERS_KEPT)
def stands_in(there: Resources, node: Resources) -> KeptTogether[tuple[()], JobSeen, list[Stand]]:
    """`node`: the largest one, empty."""
    new = KeptEach(partial(_new_stands, there=there, node=node), lambda case: (*by_ids(case), *case[2:]), KEPT)

    def of_all(jobs: Sequence[JobSeen]) -> list[Stand]:
        epochs = epochs_known(jobs)
        each = zip(modelled(jobs), pauses(jobs), strict=True)
        return new([(job, fitted, epochs.get(job.request.program.digest), pause_s) for (job, fitted), pause_s in each])

    return KeptTogether(of_all)


def _new_stands(
    jobs: Sequence[tuple[JobSeen, Fit, float | None, float]], there: Resources, node: Resources
) -> Iterator[Stand]:
    steps = staircases([(job, fitted) for job, fitted, *_ in jobs], there, node)
    return (stand(*case, there, node, stairs) for case, stairs in zip(jobs, steps, strict=True))


def stand(
    job: JobSeen,
    fitted: Fit,
    epoch: float | None,
    pause_s: float,
    there: Resources,
    node: Resources,
    steps: Staircase,
) -> Stand:
    """`epoch`: how many examples its program's epochs have, where somebody told."""
    now = _now(job, fitted, there)
    steps = beside(steps, now) if now else steps
    best = _best(steps)
    left = samples_left(job, epoch)
    left_s = left / best if left and best else None
    scarce, spare = steps[0].scarce if steps else 0, _spare(job.sizes.worker, there)
    if now is None:
        return Stand(job, steps, best, 0.0, 0.0, left_s, scarce, spare, pause_s, fitted, there, node)
    least, most = pays_from(pause_s, now.speed, left), now.cost * (1 + 1e-9)
    holds, pays = bisect_right(steps, most, key=_cost), bisect_left(steps, least, key=_speeds)
    left_out = steps[max(1, holds) : pays]
    steps = (*steps[: max(1, holds)], *steps[pays:]) if left_out else steps
    unrepaid = left_out[-1] if left_out else None
    return Stand(job, steps, best, now.speed, now.cost, left_s, scarce, spare, pause_s, fitted, there, node, unrepaid)


_cost, _speeds = attrgetter("cost"), attrgetter("speed")
"""Both rise along a staircase."""


@lru_cache(KEPT)
def _spare(worker: Resources, there: Resources) -> tuple[float, ...]:
    workers = math.floor(SPARE * held_by(there, worker))
    return tuple(amount * workers for amount in amounts(worker))


_best: Kept[Staircase, float] = Kept(lambda steps: max([step.speed / step.cost for step in steps], default=0.0))


def pays_from(pause_s: float, now: float, left: float | None) -> float:
    """The speed from which on a job gains enough by a pause to be given more. Else room would wait for it in vain."""
    enough = (1.0 + KEEP) * now
    if left is None or not now:
        return enough
    trained_s = left / now - pause_s
    return max(enough, left / trained_s) if trained_s > 0 else math.inf


def _now(job: JobSeen, fitted: Fit, there: Resources) -> Config | None:
    """What it has, if it has workers."""
    if job.size is None or job.size.workers < 1:
        return None
    return _config(job.size, job.batch, held(job), there, _speed(job, job.size, fitted))


def config_of(s: Stand, size: Size, batch: int, speed: float | None = None) -> Config:
    """A size that need not be on its staircase. `speed`: absent, by its model."""
    sizes = s.job.sizes
    takes = plus_times(plus_times(sizes.chief, sizes.ps, size.ps), sizes.worker, size.workers)
    speed = s.job.worth(batch) * s.fitted.speed(size.ps, size.workers, batch) if speed is None else speed
    return _config(size, batch, takes, s.there, speed)


def fills(s: Stand) -> bool:
    """Whether the cluster has no room for another task that the job may have, even if nobody else had any of it."""
    request, size = s.job.request, s.job.size or s.job.least
    more = [(s.job.sizes.ps, request.ps.max - size.ps), (s.job.sizes.worker, request.workers.max - size.workers)]
    may = [task for task, count in more if count > 0]
    return bool(may) and not any(fits(plus(held(s.job), task), s.there) for task in may)


def _config(size: Size, batch: int, takes: Resources, there: Resources, speed: float) -> Config:
    has = amounts(takes)
    shares = [mine / all_ if all_ > 0 else 0.0 for mine, all_ in zip(has, amounts(there), strict=True)]
    cost = max(shares)
    return Config(size.ps, size.workers, batch, *has, cost, speed, scarce=shares.index(cost))


def _speed(job: JobSeen, size: Size, fitted: Fit) -> float:
    """As it was observed, before that by the model; each sample with what it teaches."""
    return job.worth(job.batch) * (measured(job, size) or fitted.speed(size.ps, size.workers, job.batch))


def measured(job: JobSeen, size: Size) -> float | None:
    """Examples a second that were observed at a size, placed as the job is; None where there are none to believe."""
    has = (size.ps, size.workers, job.batch)
    there = [o for o in job.observed if (o.ps, o.workers, o.batch) == has]
    alike = [o for o in there if o.nodes is None or o.nodes == spread(job.tasks)]
    seen = alike[-1].samples_per_second if alike else 0.0
    return seen if SPEEDS[0] <= seen <= SPEEDS[1] else None


def samples_left(job: JobSeen, epoch: float | None) -> float | None:
    """As reported; before that, as many epochs as were asked for."""
    if job.progress is not None and job.progress.total_samples > 0:
        return float(max(1, job.progress.total_samples - job.progress.samples))
    return job.request.epochs * epoch if epoch else None


def epochs_known(jobs: Sequence[JobSeen]) -> dict[str, float]:
    """By the program's digest, of jobs that are over, and rather of those that run."""
    over = {job.request.program.digest: job.kin.epoch_samples for job in jobs if job.kin and job.kin.epoch_samples}
    told = ((job.request, job.progress.total_samples) for job in jobs if job.progress)
    return over | {asked.program.digest: total / asked.epochs for asked, total in told if total > 0}


def ended(stands: Sequence[Stand]) -> list[tuple[float, float]]:
    """Of jobs that are over: when they were asked for, and their work in seconds of the whole cluster."""
    kins = {s.job.request.program.digest: (s.job.kin, s) for s in stands if s.job.kin}
    return [
        (at, samples / s.best + s.pause_s * s.steps[0].cost)
        for kin, s in kins.values()
        if kin
        for at, samples in kin.ended
    ]
