"""Move CPU to the jobs whose loss still falls: FlowCon (Zheng, Tynes, Gorelick, Mao, Cheng, Hou, ICPP 2019).

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

As a policy (our reconstruction). A list is a memory of two passes: no low reading is NL, one is WL, two are CL. So a
function of the readings needs no other memory: it looks at the last boundary of the interval (counted from the newest
job's start) and at the two before it. A limit in Docker is soft, because limits may sum to more than the machine; a
Kubernetes limit is the pod's reservation, so limits become weights, and the nodes' cores are filled in proportion to
them. Watching jobs keep what they have. All jobs share one pool of cores; the chief keeps its own; no count changes.
Whoever waits to start is given room first. The back-off has no place here: the allocator is woken by facts, and between
two boundaries the answer does not change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from services.allocator.placement import Node, Room, place_most
from services.allocator.policies.contract import JobSeen, Want, at_start
from services.allocator.sharing import filled
from shared.messages import Role, RoleResources, TaskPlan


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    alpha: float = 0.03
    """Growth efficiency below which a container counts as flattened, 1/s."""
    interval_s: float = 30.0
    backoff_factor: float = 2.0
    listen_s: float = 10.0
    """How often the listeners look who runs."""
    floor_cpu: float = 0.05
    """Cores that nobody falls below."""


LIVE = Rules(interval_s=12.0)
"""A job keeps 64 readings, a second apart: five intervals of 12 s are in sight."""
STEP_CPU = 0.01  # cores: task sizes are multiples of it
COMPUTING: tuple[Role, ...] = ("ps", "worker")


class Sample(msgspec.Struct, frozen=True):
    """What was read of a container at one moment: a loss, a CPU share (0..1 of the machine), or both."""

    at_s: float
    loss: float | None = None
    cpu_share: float | None = None


class Container(msgspec.Struct, frozen=True, kw_only=True):
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
    scale = max([abs(largest), *(abs(loss) for loss in _losses(past))])
    cpu = _mean([s.cpu_share for s in here if s.cpu_share is not None and math.isfinite(s.cpu_share)])
    new, old = _mean(_losses(here)), _mean(_losses(before))
    if new is None or old is None or not cpu or cpu < 0 or not scale:
        return 0.0
    return abs(new / scale - old / scale) / interval_s / cpu


def _losses(samples: Iterable[Sample]) -> list[float]:
    return [s.loss for s in samples if s.loss is not None and math.isfinite(s.loss)]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


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


# ---------------------------------------------------------------- the policy


def flowcon(cluster: Sequence[Node], jobs: Sequence[JobSeen], now: float, rules: Rules = LIVE) -> list[Want]:
    waiting, running = [j for j in jobs if j.size is None], [j for j in jobs if j.tasks and not j.busy]
    # 1. Who learns how fast, at the last boundary.
    cores = math.fsum(node.allocatable.cpu for node in cluster) or 1.0
    at = boundary(running, now, rules.interval_s)
    stood = [_container(j, at, cores, rules) for j in running]
    judged = pass_(stood, cores, rules)
    # 2. Who changes: not the watched, nor anybody where nobody grew and nothing is released.
    stirred = all(c.completing for c in stood) or any(c.growth > 0 for c in stood)
    free = [j for j, c in zip(running, judged, strict=True) if stirred and not c.watching]
    movers = {j.key: j for j in free if _known(j, cluster)}
    # 3. The cores that they share, less what the waiting need, filled in proportion to the limits.
    pots = _pots(cluster, list(movers.values()), waiting, rules.floor_cpu)
    demands = {key: _demand(job) for key, job in movers.items()}
    level = filled(pots, demands, {c.name: c.limit for c in judged})
    sizes = {key: _sizes(job, level[key], rules.floor_cpu) for key, job in movers.items()}
    return [at_start(j, "the first size") for j in waiting] + [
        _want(j, c, sizes.get(j.key), cores) for j, c in zip(running, judged, strict=True)
    ]


def boundary(running: Sequence[JobSeen], now: float, interval_s: float) -> float:
    """The last moment of a pass: whole intervals after the newest job's start."""
    start = max((j.since_s for j in running), default=now)
    return start + math.floor((now - start) / interval_s) * interval_s


def _container(job: JobSeen, at: float, cores: float, rules: Rules) -> Container:
    """The job as it stood before this pass, and its growth now."""
    largest = max((abs(point.loss) for point in job.curve if math.isfinite(point.loss)), default=0.0)
    samples, passes = _samples(job, cores), [at - back * rules.interval_s for back in range(3)]
    grew = [growth(samples, t, rules.interval_s, largest) for t in passes if t >= job.since_s] or [0.0]
    lows = next((i for i, g in enumerate(grew[1:]) if g >= rules.alpha), len(grew) - 1)
    return Container(name=job.key, limit=_held(job), growth=grew[0], watching=lows == 1, completing=lows >= 2)


def _samples(job: JobSeen, cores: float) -> list[Sample]:
    """The job's readings; where no use was measured, what it may use stands in."""
    held = _held(job)
    used = [(r.ps_cpu or 0.0) + (r.worker_cpu or 0.0) or held for r in job.recent]
    return [Sample(r.at_s, r.loss, cpu / cores) for r, cpu in zip(job.recent, used, strict=True)]


def _computing(job: JobSeen) -> list[TaskPlan]:
    return [task for task in job.tasks if task.role != "chief"]


def _held(job: JobSeen) -> float:
    return math.fsum(task.resources.cpu for task in _computing(job))


def _asked(job: JobSeen, role: Role) -> float:
    """Cores that one task was requested with."""
    return {"chief": job.sizes.chief, "ps": job.sizes.ps, "worker": job.sizes.worker}[role].cpu


def _total(job: JobSeen) -> float:
    return math.fsum(_asked(job, task.role) for task in _computing(job))


def _known(job: JobSeen, cluster: Sequence[Node]) -> bool:
    """Is every node of the job's known, and any core asked for?"""
    return _total(job) > 0 and {t.node for t in _computing(job)} <= {node.name for node in cluster}


def _demand(job: JobSeen) -> dict[str, float]:
    """The share of the job's requested cores that lies on each node; sums to 1."""
    demand: dict[str, float] = {}
    for task in _computing(job):
        demand[task.node] = demand.get(task.node, 0.0) + _asked(job, task.role) / _total(job)
    return demand


def _pots(
    cluster: Sequence[Node], movers: Sequence[JobSeen], waiting: Sequence[JobSeen], floor: float
) -> dict[str, float]:
    """Cores on each node that the movers share, above everybody's floor."""
    pots = {node.name: node.free.cpu for node in cluster}
    for task in (task for job in movers for task in _computing(job)):
        pots[task.node] += task.resources.cpu - floor
    room = Room(replace(n, free=replace(n.free, cpu=max(0.0, pots[n.name]))) for n in cluster)
    for job in waiting:
        place_most(room, job.key, (), job.start, job.least, job.sizes, serial=0)
    return {name: node.free.cpu for name, node in room.nodes.items()}


def _sizes(job: JobSeen, cores: float, floor: float) -> RoleResources:
    """The job's cores divided over its tasks as requested, on top of each one's floor."""
    ps, worker = (_stepped(floor + cores * _asked(job, role) / _total(job)) for role in COMPUTING)
    return replace(job.sizes, ps=replace(job.sizes.ps, cpu=ps), worker=replace(job.sizes.worker, cpu=worker))


def _stepped(cpu: float) -> float:
    return round(math.floor(cpu / STEP_CPU + 1e-6) * STEP_CPU, 6)


def _want(job: JobSeen, judged: Container, sizes: RoleResources | None, cores: float) -> Want:
    size = job.size or job.start
    list_ = "watched" if judged.watching else "completing" if judged.completing else "growing"
    reason = f"{list_}: growth {judged.growth:.4f}/s, limit {judged.limit / cores:.0%} of the cores"
    return Want(job=job.key, ps=size.ps, workers=size.workers, batch=job.batch, reason=reason, sizes=sizes)
