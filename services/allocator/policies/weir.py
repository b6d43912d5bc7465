"""Weir's own policy, the default: the smallest mean completion time that restarts leave worth having.

    1. Each job's staircase: its speeds by size and batch, by the model fitted to all jobs of its program, on their
       concave hull over cost (`market/staircase.py`).
    2. Each job's price: what a second less of its work saves all jobs together (`market/pricing.py`, heSRPT).
    3. The room, step by step, to whoever gains most price x speed for its cost (`market/auction.py`); first steps are
       gang floors: of those that run, then of those that may not be overtaken any more (`market/patience.py`), then of
       those for which all would wait in the end, then of the others by their price. What a job has counts more, so
       that nobody is robbed for a trifle; who has just paused may shrink, but not grow.

From the seeds: free room is always used (Config Manager), by a fitted model that a growth path refines (Dike), what
remains to be learned counts (FlowCon's and Optimus' loss-awareness enter by the remaining work), gain per cost decides
(DLRover), size and batch are chosen together for all jobs (IBM). The prices are what none of them has.

The combination is ours. A job of which nothing is known yet is taken to be like the median of those that are. What
depends on one job alone is kept until that job changes, so that little is done where little has happened. A
namespace's quota is a second room from which its jobs' steps are taken, so that what it may not use goes to others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from statistics import median

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from services.allocator.kept import Kept, KeptEach, KeptTogether, by_ids
from services.allocator.market.auction import NONE, Stairs, granted
from services.allocator.market.hull import Config
from services.allocator.market.patience import Stays, everybody, to_come_s, urgent
from services.allocator.market.pricing import prices
from services.allocator.market.staircase import CLUSTERS_KEPT, Staircase, beside, staircases, whole
from services.allocator.models.learning import worth
from services.allocator.models.programs import KEPT, modelled
from services.allocator.models.speed import Array, Fit
from services.allocator.placing.placement import Node, Size
from services.allocator.placing.quota import Quota
from services.allocator.policies.contract import JobSeen, Want
from shared.messages import Alternative, Resources

PAUSED, PAUSED_TO_GROW = 0.1, 0.5
"""A job has just paused while that was more than this share of its time since; to grow, than this of what it gains."""
KEEP = 0.15
"""A job that would gain less than this keeps what it has."""
PAUSE_S = 5.0
"""What one is taken to cost until the job's own was measured."""
HELD, FRESH = 1.3, 3.0
"""A step that a job holds is worth so many times what it would be to somebody else; so many, if it has just paused."""
CRITICAL = 4.0
"""What a job is worth for which all would wait in the end, times its price."""
NEARLY, TRIFLE = 0.9, 0.1
"""It takes at least so much of the time that all work together takes, and others have at least so much of its own."""


class Stand(Struct, frozen=True):
    """A job, its staircase, and what it has.

    `best`: examples a second for the whole cluster's cost, at the best use; `left_s`: remaining seconds at that (None:
    nobody knows); `scarce`: the resource (of cores, GiB, devices) of which its least takes the largest share;
    `shortest_s`: at the top of its staircase; `alone_s`: at its least.
    """

    job: JobSeen
    steps: Staircase
    best: float
    speed: float
    cost: float
    left_s: float | None
    scarce: int

    @property
    def shortest_s(self) -> float:
        return (self.left_s or 0.0) * self.best / self.steps[-1].speed

    @property
    def alone_s(self) -> float:
        return (self.left_s or 0.0) * self.best / self.steps[0].speed


def weir(cluster: Sequence[Node], jobs: Sequence[JobSeen], now: float) -> list[Want]:
    there = everything(cluster, jobs)
    stands = _stands(rounded(there), largest(cluster))((), jobs)
    free = [s for s in stands if s.steps and not s.job.busy]
    none = [_nowhere(s) for s in stands if not s.steps and s.job.size is None]
    if not free:
        return none
    room = _vector(there) - sum((_vector(held(s.job)) for s in stands if s.job.busy or not s.steps), np.zeros(3))
    field = _field((), free)
    last, rooms = field.last(now), np.concatenate([room, *_purses(stands)])
    given = granted(field.stairs, field.offers(last, now), rooms, field.first(last, now))
    return [*none, *map(_wanted, free, given.tolist())]


def _purses(stands: Sequence[Stand]) -> list[Array]:
    """What each namespace that has a quota may spread among its jobs that may change, in the order of `limited`."""
    rest: dict[str, list[Array]] = {}
    for s in stands:
        if s.job.quota is not None and (s.job.busy or not s.steps):
            rest.setdefault(s.job.request.namespace, []).append(_vector(held(s.job)))
    quotas = limited([s.job for s in stands if s.steps and not s.job.busy])
    return [_vector(quota.most()) - sum(rest.get(space, []), np.zeros(3)) for space, quota in quotas.items()]


def limited(jobs: Sequence[JobSeen]) -> dict[str, Quota]:
    """The quota of each of these jobs' namespaces that has one."""
    return {job.request.namespace: job.quota for job in jobs if job.quota is not None}


def everything(cluster: Sequence[Node], jobs: Sequence[JobSeen]) -> Resources:
    """What is free, and what these jobs hold."""
    closed = {node.name for node in cluster if not node.open}
    free = [node.free for node in cluster if node.open]
    if not closed:
        return whole([*free, _all_held((), jobs)])
    return whole([*free, *(task.resources for job in jobs for task in job.tasks if task.node not in closed)])


def largest(cluster: Sequence[Node]) -> Resources:
    """The node with most devices, then most cores, empty."""
    shapes = (node.allocatable for node in cluster if node.open)
    return max(shapes, key=lambda has: (has.gpu, has.cpu, has.memory_gib), default=Resources())


def rounded(there: Resources) -> Resources:
    """To two digits: a share need not be exact, and what is kept by it stays, while the cluster changes little."""
    return Resources(cpu=_two(there.cpu), memory_gib=_two(there.memory_gib), gpu=int(_two(there.gpu)))


def _two(amount: float) -> float:
    return float(f"{amount:.1e}")


def _vector(of: Resources) -> Array:
    return np.array(_amounts(of))


def _amounts(of: Resources) -> tuple[float, float, float]:
    return of.cpu, of.memory_gib, float(of.gpu)


# ---------------------------------------------------------------- one job


held: Kept[JobSeen, Resources] = Kept(lambda job: whole([task.resources for task in job.tasks]))
"""By all its tasks."""


_all_held: KeptTogether[tuple[()], JobSeen, Resources] = KeptTogether(
    lambda jobs: whole([held(job) for job in jobs if job.tasks])
)


@lru_cache(CLUSTERS_KEPT)
def _stands(there: Resources, node: Resources) -> KeptTogether[tuple[()], JobSeen, list[Stand]]:
    """`node`: the largest one, empty."""
    new = KeptEach(partial(_new_stands, there=there, node=node), lambda case: (*by_ids(case), case[2]), KEPT)

    def of_all(jobs: Sequence[JobSeen]) -> list[Stand]:
        epochs = epochs_known(jobs)
        return new([(job, fitted, epochs.get(job.request.program.digest)) for job, fitted in modelled(jobs)])

    return KeptTogether(of_all)


def _new_stands(
    jobs: Sequence[tuple[JobSeen, Fit, float | None]], there: Resources, node: Resources
) -> Iterator[Stand]:
    steps = staircases([(job, fitted) for job, fitted, _ in jobs], there, node)
    return (stand(*case, there, stairs) for case, stairs in zip(jobs, steps, strict=True))


def stand(job: JobSeen, fitted: Fit, epoch: float | None, there: Resources, steps: Staircase) -> Stand:
    """`epoch`: how many examples its program's epochs have, where somebody told."""
    now = _now(job, fitted, there)
    steps = beside(steps, now) if now else steps
    best = _best(steps)
    left = samples_left(job, epoch)
    left_s = left / best if left and best else None
    scarce = _scarce(steps[0].takes, there) if steps else 0
    if now is None:
        return Stand(job, steps, best, 0.0, 0.0, left_s, scarce)
    steps = tuple(
        s for n, s in enumerate(steps) if n == 0 or s.cost <= now.cost * (1 + 1e-9) or _gains(job, now, s, left)
    )
    return Stand(job, steps, best, now.speed, now.cost, left_s, scarce)


def _scarce(takes: Resources, there: Resources) -> int:
    return int(np.argmax(_vector(takes) / np.maximum(_vector(there), 1e-9)))


_best: Kept[Staircase, float] = Kept(lambda steps: max((step.speed / step.cost for step in steps), default=0.0))


def _gains(job: JobSeen, now: Config, then: Config, left: float | None) -> bool:
    """Would it gain enough by a pause to be given more? Else room would wait for it in vain."""
    if then.speed < (1.0 + KEEP) * now.speed:
        return False
    return left is None or left / now.speed - left / then.speed > (job.pause_s or PAUSE_S)


def _now(job: JobSeen, fitted: Fit, there: Resources) -> Config | None:
    """What it has, if it has workers."""
    if job.size is None or job.size.workers < 1:
        return None
    shares = [has / all_ for has, all_ in zip(_amounts(held(job)), _amounts(there), strict=True) if all_ > 0]
    speed = _speed(job, job.size, fitted)
    return Config(job.size.ps, job.size.workers, job.batch, *_amounts(held(job)), max(shares, default=0.0), speed)


def _speed(job: JobSeen, size: Size, fitted: Fit) -> float:
    """As it was observed, before that by the model; each sample with what it teaches."""
    has = (size.ps, size.workers, job.batch)
    nodes = len({task.node for task in job.tasks if task.role == "worker"})
    alike = [o for o in job.observed if (o.ps, o.workers, o.batch) == has and o.nodes in (None, nodes)]
    seen = alike[-1].samples_per_second if alike else 0.0
    noise = job.progress.gradient_noise if job.progress else None
    taught = worth(job.batch, job.request.batch.start, noise)
    return taught * (seen if 0.0 < seen < math.inf else fitted.speed(*has))


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


def _ended(stands: Sequence[Stand]) -> list[tuple[float, float]]:
    """Of jobs that are over: when they were asked for, and their work in seconds of the whole cluster."""
    kins = {s.job.request.program.digest: (s.job.kin, s.best) for s in stands if s.job.kin}
    return [(asked_s, samples / best) for kin, best in kins.values() if kin for asked_s, samples in kin.ended]


# ---------------------------------------------------------------- all jobs


class Queue:
    """The jobs that are short of the same resource, and so in each other's way. `members`: places in the field."""

    def __init__(self, members: Sequence[int], stands: Sequence[Stand]) -> None:
        self.members, mine = np.array(members), [stands[n] for n in members]
        known = [s.left_s for s in mine if s.left_s is not None]
        middle = median(known) if known else 1.0
        left = np.array([middle if s.left_s is None else s.left_s for s in mine])
        done = np.array([s.job.progress.samples / s.best if s.job.progress else 0.0 for s in mine])
        waits = np.array([s.job.size is None for s in mine])
        alone = np.array([s.alone_s for s in mine])
        self.stays = Stays(np.array([s.job.submitted_s for s in mine]), left, done, alone, waits)
        self.shortest_s, self.ended = np.array([s.shortest_s for s in mine]), _ended(mine)
        self.prices = prices(left.tolist(), elasticity(mine), [2.0**s.job.request.priority for s in mine])

    def urgent(self, now: float) -> list[int]:
        """Those that must not be overtaken any more."""
        return [int(self.members[n]) for n in urgent(self.stays, self.ended, now)]

    def last(self, now: float) -> list[int]:
        """Those for which all would wait in the end."""
        to_come = to_come_s(*everybody(self.stays, self.ended), now)
        return [int(self.members[n]) for n in critical(self.stays.left_s, self.shortest_s, to_come)]


class Field:
    """All jobs that may change, side by side."""

    def __init__(self, stands: Sequence[Stand]) -> None:
        jobs, worth = [s.job for s in stands], np.ones(len(stands))
        self.queues = [Queue(members, stands) for members in _by_scarcity(stands)]
        for queue in self.queues:
            worth[queue.members] = queue.prices
        self.runs = [n for n, job in enumerate(jobs) if job.size is not None]
        spaces = list(limited(jobs))
        purses = [spaces.index(job.request.namespace) if job.quota else -1 for job in jobs]
        self.stairs = Stairs([s.steps for s in stands], purses)
        self.holds = self.stairs.costs <= np.array([s.cost for s in stands])[:, None] * (1 + 1e-9)
        self.values = self.stairs.slopes * (worth / np.array([s.best for s in stands]))[:, None]
        self.fresh_s = np.array([_after_pause_s(job, PAUSED) for job in jobs])
        self.settles_s = np.array([_after_pause_s(s.job, PAUSED_TO_GROW * _gain(s)) for s in stands])

    def offers(self, last: Sequence[int], now: float) -> Array:
        """What each step is worth; who has just paused makes none beyond what it has."""
        settling, fresh = (now < self.settles_s)[:, None], (now < self.fresh_s)[:, None]
        worth = self.values * np.where(self.holds, np.where(fresh, FRESH, HELD), 1.0)
        worth[[*last]] *= CRITICAL
        worth[:, 1:][(settling & ~self.holds)[:, 1:]] = -np.inf
        return np.asarray(worth)

    def last(self, now: float) -> list[int]:
        return [n for queue in self.queues for n in queue.last(now)]

    def first(self, last: Sequence[int], now: float) -> list[int]:
        """Whose gang floors come before any other step, in their order."""
        late = [n for queue in self.queues for n in queue.urgent(now)]
        return [*dict.fromkeys([*self.runs, *late, *last])]


def _by_scarcity(stands: Sequence[Stand]) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for n, s in enumerate(stands):
        found.setdefault(s.scarce, []).append(n)
    return list(found.values())


_field: KeptTogether[tuple[()], Stand, Field] = KeptTogether(Field)


def _after_pause_s(job: JobSeen, share: float) -> float:
    """When its last pause will have been no more than a share of its time since; the first one is free."""
    if job.size is None or job.pause_s is None:
        return -math.inf
    return job.since_s + job.pause_s / max(share, 1e-6)


def _gain(s: Stand) -> float:
    """Of its time, what it would save at the top of its staircase."""
    return 1.0 - min(1.0, s.speed / s.steps[-1].speed)


def critical(left_s: Array, shortest_s: Array, to_come_s: float) -> list[int]:
    """Those for which everybody would wait in the end: they take as long as all work together, however large."""
    end_s = max(float(left_s.sum()) + to_come_s, float(shortest_s.max()))
    others_s = left_s.sum() - left_s
    found = (shortest_s >= NEARLY * end_s) & (others_s >= TRIFLE * shortest_s)
    return [int(n) for n in np.flatnonzero(found)]


def elasticity(stands: Sequence[Stand]) -> float:
    """p of a speed-up k^p, from the first to the last step of each staircase; the median over jobs."""
    found = [
        math.log(s.steps[-1].speed / s.steps[0].speed) / math.log(s.steps[-1].cost / s.steps[0].cost)
        for s in stands
        if len(s.steps) > 1
    ]
    return median(found) if found else 0.5


# ---------------------------------------------------------------- what is said


def _wanted(s: Stand, at: int) -> Want:
    """What is wanted where this step is granted; the very same, as long as the job's stand is."""
    known = _known(s)
    if at not in known:
        known[at] = _waits(s) if at == NONE else _want(s, at)
    return known[at]


_known: Kept[Stand, dict[int, Want]] = Kept(lambda s: {})


def _want(s: Stand, at: int) -> Want:
    config, above = s.steps[at], s.steps[at + 1 : at + 2]
    others = tuple(_other(step, "others gain more by the same room, times what their time is worth") for step in above)
    if s.job.size and config.cost >= s.cost * (1 - 1e-9) and config.speed < (1 + KEEP) * s.speed:
        reason = f"{_told(config.size)} would be faster by less than {KEEP:.0%}"
        return _said(s, s.job.size, s.job.batch, reason, others)
    speed = f"{config.speed:,.0f} examples/s" if s.left_s is not None else "as far as can be told before it runs,"
    reason = f"{speed} for {config.cost:.1%} of the cluster: worth more than others' use of it"
    want = _said(s, config.size, config.batch, reason, others)
    if not s.speed:
        return want
    apart = config.apart / s.speed if config.apart is not None else None
    return replace(want, faster=config.speed / s.speed, apart=apart)


def _waits(s: Stand) -> Want:
    """Nothing is left at its price: one that runs goes down to its least, one that waits goes on waiting."""
    if s.job.size is None:
        return _said(s, Size(0, 0), s.job.request.batch.start, "waits: all the room there is, is worth more to others")
    return _said(s, s.steps[0].size, s.steps[0].batch, "all but its least is worth more to others")


def _nowhere(s: Stand) -> Want:
    """It waits for a larger cluster, and the allocator says for what."""
    return _said(s, s.job.least, s.job.request.batch.start, "as soon as its least fits")


def _said(s: Stand, size: Size, batch: int, reason: str, others: tuple[Alternative, ...] = ()) -> Want:
    return Want(job=s.job.key, ps=size.ps, workers=size.workers, batch=batch, reason=reason, alternatives=others)


def _told(size: Size) -> str:
    return f"{size.ps} ps and {size.workers} workers"


def _other(config: Config, why: str) -> Alternative:
    return Alternative(ps=config.size.ps, workers=config.size.workers, batch=config.batch, why=why)
