"""Move CPU to the jobs whose loss still falls: FlowCon (Zheng, Tynes, Gorelick, Mao, Cheng, Hou, ICPP 2019).

    1 how fast each learns, by its CPU, at the last boundary of the interval     `growth` in `growth.py`
    2 who is on which list, and each one's limit                                 `pass_` there, Algorithm 1
    3 the cores that the movers share, filled in proportion to the limits        `filled` in `sharing.py`

As a policy (our reconstruction). A list is a memory of two passes: no low reading is NL, one is WL, two are CL. So a
function of the readings needs no other memory: it looks at the last boundary of the interval (counted from the newest
job's start) and at the two before it. A limit in Docker is soft, because limits may sum to more than the machine; what
a pod requests is reserved for it, so limits become weights, and the nodes' cores are filled in proportion to them. Who
may use what another leaves idle is the request's to say (`cpu_limits: soft`). Watching jobs keep what they have. All
jobs share one pool of cores. A container is a whole job: what it has is spread over its chief, ps and workers in the
ratio that was asked for, each on top of a floor of 0.05 core, below which remote calls starve; no count changes.
Before a job has told of two whole intervals nobody can say how fast it learns. The authors' code takes that for a low
reading, after a start without a limit; here a new job is taken to learn as fast as can be, its whole loss in one
interval by the whole machine: G = 1 / interval. So whoever waits starts with the share that this gives it, or with what
was asked for it, if that is less, and with no more than there is room for above the others' floors; room is made for it
first. Changes that are all small are left out. The back-off has no place here: the allocator is woken by facts, and
between two boundaries the answer does not change.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence, Set
from itertools import pairwise
from typing import Any, NamedTuple

from msgspec.structs import replace

from services.allocator.bisection import least
from services.allocator.kept import Kept, KeptEach, KeptTogether
from services.allocator.placing.placement import ROLES, Room, has_room, place_most
from services.allocator.policies.contract import JobSeen, Node, Reading, Want, at_start
from services.allocator.policies.flowcon.growth import Container, Rules, Sample, growth, pass_
from services.allocator.policies.flowcon.sharing import filled
from shared.messages import Resources, Role, RoleResources, TaskPlan

LIVE = Rules(alpha=0.001, interval_s=10.0)
"""A job keeps 64 readings, a second apart: six intervals of 10 s are in sight. Alpha is ours, too: below the published
ones, and chosen on the first noise seeds of `make bench-flowcon`'s schedule of three jobs, which tells of others."""
READINGS = 2  # at least so many an interval: where jobs report less often, intervals are longer
IN_SIGHT = 5  # intervals: three passes look back on two each, the rest makes sure
STEP_CPU = 0.01  # cores: task sizes are multiples of it
WORTH = 0.05  # of what a task has; if nobody's changes by more, nobody's does
PARTS = 64  # of a first share, that it is cut by
DIVISIONS_KEPT = 8
JUDGED = 1.5  # intervals after its start: readings of two intervals are there, of the first one half at least


def flowcon(cluster: Sequence[Node], jobs: Sequence[JobSeen], now: float, rules: Rules = LIVE) -> list[Want]:
    waiting, running = [j for j in jobs if j.size is None], [j for j in jobs if j.tasks and not j.busy]
    # 1. Who learns how fast, at the last boundary.
    cores = math.fsum(node.allocatable.cpu for node in cluster) or 1.0
    rules = replace(rules, interval_s=interval_s(running, rules.interval_s))
    passes = passed(running, now, rules.interval_s)
    stood = _stood(running, passes, cores, rules)
    # 2. Who changes: not the watched, nor anybody where nobody grew and nothing is released; all, if somebody is new.
    coming = tuple(_container(j.key, (), 0.0, cores, rules) for j in waiting)
    everybody = pass_([*stood, *coming], cores, rules)
    judged, coming = everybody[: len(stood)], everybody[len(stood) :]
    stirred = all(c.completing for c in stood) or any(c.growth > 0 for c in stood)
    anew = waiting or any(_is_new(j, passes, rules) for j in running)
    free = [(j, c.limit) for j, c in zip(running, judged, strict=True) if anew or (stirred and not c.watching)]
    # 3. The cores that they share, less what the waiting need, filled in proportion to the limits.
    share = _share(cluster, free, [c.limit for c in coming])
    (firsts, sizes), *_ = _divided([Shares(cluster, waiting, share, free, rules.floor_cpu)])
    return [replace(at_start(j, "new: may learn fast"), sizes=firsts[j.key]) for j in waiting] + [
        _want(j, c, sizes.get(j.key), cores, _is_new(j, passes, rules)) for j, c in zip(running, judged, strict=True)
    ]


class Shares(NamedTuple):
    """What the cores are divided by. `share`: what each of the `waiting` may start with; `free`: who may change, and
    each one's limit.
    """

    cluster: Sequence[Node]
    waiting: Sequence[JobSeen]
    share: float
    free: Sequence[tuple[JobSeen, float]]
    floor: float


Sizes = dict[str, RoleResources]


def _divide(shares: Shares) -> tuple[Sizes, Sizes]:
    """What tasks have: of those that wait, and of those that change."""
    there = {node.name for node in shares.cluster}
    movers = {j.key: j for j, _ in shares.free if _known(j, there)}
    room = _above_floors(shares.cluster, list(movers.values()), shares.floor)
    firsts = {j.key: _first(j, shares.share, shares.floor, room) for j in shares.waiting}
    pots = {name: node.free.cpu for name, node in room.nodes.items()}
    demands = {key: _demand(job) for key, job in movers.items()}
    level = filled(pots, demands, {j.key: limit for j, limit in shares.free})
    return firsts, _worth(movers, {key: _sizes(job, level[key], shares.floor) for key, job in movers.items()})


def floors(job: JobSeen, floor: float) -> dict[Role, float]:
    """Cores below which no task of a role falls; a role that costs nothing has none."""
    return {role: floor if _asked(job, role) > 0 else 0.0 for role in ROLES}


def _same(shares: Shares) -> Hashable:
    """Of those that run nothing counts but their tasks, and what was asked for these: not what they report."""
    there, waiting = tuple(map(id, shares.cluster)), tuple(map(id, shares.waiting))
    return there, waiting, shares.share, tuple([(id(j.tasks), id(j.sizes), limit) for j, limit in shares.free])


_divided: KeptEach[Shares, tuple[Sizes, Sizes]] = KeptEach(lambda asked: map(_divide, asked), _same, DIVISIONS_KEPT)


# ---------------------------------------------------------------- when


def interval_s(running: Sequence[JobSeen], least_s: float) -> float:
    """A multiple of `least_s` in which every job reports twice."""
    gaps = [late.at_s - early.at_s for j in running for early, late in pairwise(j.recent[-READINGS - 1 :])]
    longest = max((gap for gap in gaps if math.isfinite(gap)), default=0.0)
    return least_s * max(1, math.ceil(READINGS * longest / least_s - 0.5))


def boundary(running: Sequence[JobSeen], now: float, interval_s: float) -> float:
    """The last moment of a pass: whole intervals after the newest job's start."""
    start = max((j.since_s for j in running), default=now)
    return start + math.floor((now - start) / interval_s) * interval_s


def passed(running: Sequence[JobSeen], now: float, interval_s: float) -> list[float]:
    """The last passes, the newest first, and the moment from which on readings are in sight."""
    at = boundary(running, now, interval_s)
    return [at - back * interval_s for back in (0, 1, 2, IN_SIGHT)]


# ---------------------------------------------------------------- who learns how fast


def _stood(running: Sequence[JobSeen], passes: Sequence[float], cores: float, rules: Rules) -> list[Container]:
    """The jobs as they stood before this pass, and their growth now."""
    *_, sight_s = passes
    grew = [_grew(job, _heard(job, passes, rules), sight_s, cores, rules) for job in running]
    before = math.fsum(_before(each, rules) for each in grew)
    return [_container(job.key, each, before, cores, rules) for job, each in zip(running, grew, strict=True)]


def _container(name: str, grew: Sequence[float], before: float, cores: float, rules: Rules) -> Container:
    """`grew`: at this pass, the one before, and so on; `before`: of all jobs at the one before.

    Its limit is the one that the pass before gave it; all cores if nobody grew then.
    """
    if not grew:
        return Container(name=name, limit=cores, growth=1 / rules.interval_s)
    lows = next((i for i, g in enumerate(grew[1:]) if g >= rules.alpha), len(grew) - 1)
    limit = max(rules.floor_cpu, _before(grew, rules) / before * cores) if before > 0 else cores
    return Container(name=name, limit=limit, growth=grew[0], watching=lows == 1, completing=lows >= 2)


def _before(grew: Sequence[float], rules: Rules) -> float:
    """Growth at the pass before this one; it was new then, if none was measured."""
    return grew[1] if len(grew) > 1 else 1 / rules.interval_s


def _heard(job: JobSeen, passes: Sequence[float], rules: Rules) -> list[float]:
    """The passes at which it had told of two intervals."""
    *times, _ = passes
    return [t for t in times if t >= job.since_s + JUDGED * rules.interval_s]


def _is_new(job: JobSeen, passes: Sequence[float], rules: Rules) -> bool:
    return not _heard(job, passes, rules)


def _grew(job: JobSeen, passes: Sequence[float], sight_s: float, cores: float, rules: Rules) -> list[float]:
    """Growth at each pass; 0 of a job that never told a loss, which would stand in its curve."""
    if not job.curve:
        return [0.0] * len(passes)
    before = (r.loss for r in job.recent if r.loss is not None and r.at_s <= sight_s)
    seen = [*(point.loss for point in job.curve), *before]
    largest = max((abs(loss) for loss in seen if math.isfinite(loss)), default=0.0)
    samples = _samples(job, [r for r in job.recent if r.at_s > sight_s], cores)
    return [growth(samples, t, rules.interval_s, largest) for t in passes]


def _samples(job: JobSeen, recent: Sequence[Reading], cores: float) -> list[Sample]:
    """The job's readings; where no use was measured, what it may use stands in."""
    held = _held(job)
    used = [(r.ps_cpu or 0.0) + (r.worker_cpu or 0.0) or held for r in recent]
    return [Sample(r.at_s, r.loss, cpu / cores) for r, cpu in zip(recent, used, strict=True)]


def _computing(job: JobSeen) -> list[TaskPlan]:
    """Its tasks, less those of roles that cost nothing (a chief may, in a simulation)."""
    return [task for task in job.tasks if _asked(job, task.role) > 0]


def _held(job: JobSeen) -> float:
    return _cores(job.tasks)


_cores: Kept[Sequence[TaskPlan], float] = Kept(lambda tasks: math.fsum(task.resources.cpu for task in tasks))


def _asked(job: JobSeen, role: Role) -> float:
    """Cores that one task was requested with."""
    return float(getattr(job.sizes, role).cpu)


def _shared_out(things: Sequence[Any]) -> tuple[float, dict[str, float]]:
    """How many cores were asked for the tasks, and which share of them lies on each node; sums to 1."""
    tasks, sizes = things
    asked = [(task.node, getattr(sizes, task.role).cpu) for task in tasks]
    total, shares = math.fsum(cpu for _, cpu in asked), dict[str, float]()
    for node, cpu in asked if total > 0 else ():
        shares[node] = shares.get(node, 0.0) + cpu / total
    return total, shares


_shares: KeptTogether[str, Any, tuple[float, dict[str, float]]] = KeptTogether(_shared_out)


def _total(job: JobSeen) -> float:
    return _shares(job.key, (job.tasks, job.sizes))[0]


def _demand(job: JobSeen) -> dict[str, float]:
    return _shares(job.key, (job.tasks, job.sizes))[1]


def _known(job: JobSeen, there: Set[str]) -> bool:
    """Is every node of the job's known, and any core asked for?"""
    return _total(job) > 0 and _demand(job).keys() <= there


def _share(cluster: Sequence[Node], free: Sequence[tuple[JobSeen, float]], firsts: Sequence[float]) -> float:
    """Cores of each that waits, by its limit among all; these are alike."""
    there = math.fsum(node.free.cpu + node.returning.cpu for node in cluster if node.open)
    there += math.fsum(_held(job) for job, _ in free)
    return there * firsts[0] / (math.fsum(firsts) + math.fsum(limit for _, limit in free)) if firsts else 0.0


def _above_floors(cluster: Sequence[Node], movers: Sequence[JobSeen], floor: float) -> Room:
    """What would be free if the movers had no more than their floors."""
    pots = {node.name: node.free.cpu + node.returning.cpu if node.open else 0.0 for node in cluster}
    for job in movers:
        least_cpu = floors(job, floor)
        for task in job.tasks:
            pots[task.node] += task.resources.cpu - least_cpu[task.role]
    return Room(replace(n, free=replace(n.free, cpu=max(0.0, pots[n.name]))) for n in cluster)


def _first(job: JobSeen, share: float, floor: float, room: Room) -> RoleResources:
    """What it starts with, taken from the room: of its share as much as there is room for; all, if there is none."""

    def cut(parts: int) -> RoleResources:
        return _part(job, share * (1 - parts / PARTS), floor)

    def fits(parts: int) -> bool:
        return any(has_room(room, job.key, (), size, cut(parts)) for size in (job.start, job.least))

    sizes = cut(least(PARTS, fits) or 0)
    place_most(room, job.key, (), job.start, job.least, sizes, serial=0)
    return sizes


def _part(job: JobSeen, share: float, floor: float) -> RoleResources:
    """Of the cores asked for, as many as the share allows."""
    counts = {"chief": 1, "ps": job.start.ps, "worker": job.start.workers}
    whole = math.fsum(counts[role] * _asked(job, role) for role in ROLES)
    part = share / whole if whole else 1.0
    asked = {role: _asked(job, role) for role in ROLES}
    return _with_cores(
        job, {role: a if part >= 1 else min(a, max(floor, _stepped(part * a))) for role, a in asked.items()}
    )


def _sizes(job: JobSeen, cores: float, floor: float) -> RoleResources:
    """The job's cores divided over its tasks as requested, on top of each one's floor."""
    total = _total(job)
    return _with_cores(
        job, {role: _stepped(f + cores * _asked(job, role) / total) for role, f in floors(job, floor).items()}
    )


def _with_cores(job: JobSeen, cores: Mapping[Role, float]) -> RoleResources:
    """Their memory stays what the tasks have: it may have been raised since it was asked for."""
    return RoleResources(**{role: replace(_size_of(job, role), cpu=cpu) for role, cpu in cores.items()})


def _size_of(job: JobSeen, role: Role) -> Resources:
    tasks = [task.resources for task in job.tasks if task.role == role]
    return max(tasks, key=lambda has: has.memory_gib, default=getattr(job.sizes, role))


def _worth(movers: Mapping[str, JobSeen], sizes: dict[str, RoleResources]) -> dict[str, RoleResources]:
    """All of them, if any task's cores change by enough."""
    changes = (
        abs(getattr(sizes[key], task.role).cpu - task.resources.cpu) > WORTH * task.resources.cpu
        for key, job in movers.items()
        for task in _computing(job)
    )
    return sizes if any(changes) else {}


def _stepped(cpu: float) -> float:
    return round(math.floor(cpu / STEP_CPU + 1e-6) * STEP_CPU, 6)


def _want(job: JobSeen, judged: Container, sizes: RoleResources | None, cores: float, new: bool) -> Want:
    size = job.size or job.start
    list_ = "new" if new else "watched" if judged.watching else "completing" if judged.completing else "growing"
    reason = f"{list_}: growth {judged.growth:.4f}/s, limit {judged.limit / cores:.0%} of the cores"
    return Want(job=job.key, ps=size.ps, workers=size.workers, batch=job.batch, reason=reason, sizes=sizes)
