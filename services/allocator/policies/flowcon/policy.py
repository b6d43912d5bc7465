"""Move CPU to the jobs whose loss still falls: FlowCon (Zheng, Tynes, Gorelick, Mao, Cheng, Hou,
ICPP 2019).

    1 the growth efficiency of each job at the last boundary   `growth_efficiencies`, `growth.py`
    2 each job's list and limit                                `run_pass`, Algorithm 1
    3 the cores that the movers share, by their limits         `division.py`

The policy is our reconstruction. The list of a job depends on its last two passes: no low reading
is NL, one is WL, two are CL. So a function of the readings needs no other memory: it looks at the
last boundary of the interval (counted from the newest job's start) and at the two before it. A
limit in Docker is soft, because limits may sum to more than the machine. The request of a pod is
reserved for it, so limits become weights, and the nodes' cores are divided in proportion to them.
Tasks may use idle cores of others if the job's request allows it (`cpu_limits: soft`). Watching
jobs keep their cores. All jobs share one pool of cores. A container is a whole job: its cores are
spread over its chief, ps and workers in the ratio of the request, each on top of a floor of 0.05
core, below which remote calls starve; the numbers of tasks do not change.

Before a job has reported on two whole intervals, its growth is unknown. The authors' code takes
that for a low reading, after a start without a limit. Here a new job is assumed to learn as fast as
possible, its whole loss in one interval by the whole machine: G = 1 / interval. So a waiting job
starts with the share that this gives it, or with the requested cores, if they are less, and with no
more than there is room for above the others' floors; room is made for it first. If all changes are
small, none is made. There is no back-off: facts wake the allocator, and between two boundaries the
answer does not change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec.structs import replace

from services.allocator.policies.contract import JobSnapshot, Node, Target, start_target
from services.allocator.policies.flowcon.division import Division, Tasks
from services.allocator.policies.flowcon.growth import (
    Container,
    Floats,
    Rules,
    Samples,
    growth_efficiencies,
    run_pass,
)
from shared.messages import RoleResources

LIVE = Rules(alpha=0.001, interval_s=10.0)
"""A job keeps 64 readings, one a second: six intervals of 10 s are in sight. Alpha is ours, too: it
is below the published ones, and was chosen on the first noise seeds of `make bench-flowcon`'s
schedule of three jobs; the benchmark reports the figures of other seeds.
"""
READINGS = 2  # the least number in an interval: if jobs report less often, it is longer
IN_SIGHT = 5  # intervals: three passes look back on two each; the rest is a margin
JUDGED = 1.5  # intervals after a job's start: two have readings, the first one for half of it


def flowcon(
    cluster: Sequence[Node], jobs: Sequence[JobSnapshot], now: float, rules: Rules = LIVE
) -> list[Target]:
    """Return targets that move cores to the running jobs that learn fastest, and to waiting
    ones.
    """
    waiting = []
    running = []
    for job in jobs:
        if job.size is None:
            waiting.append(job)
        if job.tasks and not job.busy:
            running.append(job)

    # 1. The growth of each job at the last boundary.
    cores = math.fsum(node.allocatable.cpu for node in cluster) or 1.0
    rules = replace(rules, interval_s=interval_s(running, rules.interval_s))
    passes = recent_passes(running, now, rules.interval_s)
    reported_passes = _passes_with_reports(running, passes, rules)
    tasks = Tasks(cluster, running)
    growths = _growth_at_passes(running, reported_passes, passes, cores, tasks.held, rules)
    containers = _containers_before(running, growths, cores, rules)

    # 2. The lists and limits after this pass.
    new_containers = [_container(job.key, (), 0.0, cores, rules) for job in waiting]
    everybody = run_pass([*containers, *new_containers], cores, rules)
    judged = everybody[: len(containers)]
    started = everybody[len(containers) :]
    has_new_job = bool(waiting) or not all(reported_passes)
    free = _jobs_to_change(containers, judged, has_new_job)

    # 3. Divide the cores, less those of waiting jobs, in proportion to the limits.
    division = Division(cluster, tasks, free, rules.floor_cpu)
    firsts = division.first_sizes(waiting, [c.limit for c in started])
    sizes = division.new_sizes()

    targets = []
    for job in waiting:
        first = start_target(job, "new: its growth is not known yet")
        targets.append(replace(first, sizes=firsts[job.key]))
    for job, container, times in zip(running, judged, reported_passes, strict=True):
        new_sizes = sizes.get(job.key)
        targets.append(_flowcon_target(job, container, new_sizes, cores, new=not times))
    return targets


def _jobs_to_change(
    stood: Sequence[Container], judged: Sequence[Container], somebody_new: bool
) -> list[tuple[int, float]]:
    """Return the numbers of the jobs that may change, and their limits.

    Watched jobs keep their cores. All jobs do if none grew and no limit is lifted; all change if a
    job is new. `stood`: before this pass, `judged`: after it.
    """
    released = all(c.completing for c in stood)
    somebody_grew = any(c.growth > 0 for c in stood)
    free = []
    for n, container in enumerate(judged):
        changes = (released or somebody_grew) and not container.watching
        if somebody_new or changes:
            free.append((n, container.limit))
    return free


# ---------------------------------------------------------------- the times of passes


def interval_s(running: Sequence[JobSnapshot], least_s: float) -> float:
    """Return a multiple of `least_s` that is long enough for two reports of every job."""
    longest = 0.0
    for job in running:
        last = job.recent[-READINGS - 1 :]
        for early, late in pairwise(last):
            gap = late.at_s - early.at_s
            if math.isfinite(gap):
                longest = max(longest, gap)
    times = math.ceil(READINGS * longest / least_s - 0.5)
    return least_s * max(1, times)


def pass_boundary(running: Sequence[JobSnapshot], now: float, interval_s: float) -> float:
    """Return the time (s) of the last pass: whole intervals after the newest job's start."""
    start = max([job.since_s for job in running], default=now)
    intervals = math.floor((now - start) / interval_s)
    return start + intervals * interval_s


def recent_passes(running: Sequence[JobSnapshot], now: float, interval_s: float) -> list[float]:
    """Return the times (s) of the last passes, the newest first, and then the time from which on
    readings are in sight.
    """
    at = pass_boundary(running, now, interval_s)
    return [at - back * interval_s for back in (0, 1, 2, IN_SIGHT)]


def _passes_with_reports(
    running: Sequence[JobSnapshot], passes: Sequence[float], rules: Rules
) -> list[list[float]]:
    """Return the passes of each job with reports of two intervals; none: the job is new."""
    heard = []
    for job in running:
        from_s = job.since_s + JUDGED * rules.interval_s
        mine = [at_s for at_s in passes[:-1] if at_s >= from_s]
        heard.append(mine)
    return heard


# ---------------------------------------------------------------- the growth of each job


def _growth_at_passes(
    running: Sequence[JobSnapshot],
    heard: Sequence[Sequence[float]],
    passes: Sequence[float],
    cores: float,
    held: Floats,
    rules: Rules,
) -> list[list[float]]:
    """Return each job's growth at the passes with its reports, the newest first.

    It is 0 for a job that never reported a loss. `held` [jobs]: cores.
    """
    *times, sight_s = passes
    samples, largest = _loss_samples(running, sight_s, cores, held)
    at_passes = []
    for at_s in times:
        growth = growth_efficiencies(samples, at_s, rules.interval_s, largest)
        at_passes.append(growth.tolist())
    grew = []
    for n, job in enumerate(running):
        mine = []
        for growth_at_pass in at_passes[: len(heard[n])]:
            mine.append(growth_at_pass[n] if job.curve else 0.0)
        grew.append(mine)
    return grew


def _loss_samples(
    running: Sequence[JobSnapshot], sight_s: float, cores: float, held: Floats
) -> tuple[Samples, Floats]:
    """Return the readings that are in sight, and the largest loss before them [jobs].

    If no use of CPU was measured, the cores that the job may use are taken instead.
    """
    number = []
    at_s = []
    losses = []
    used = []
    largest = np.zeros(len(running))
    for n, job in enumerate(running):
        before = [point.loss for point in job.curve]
        for reading in job.recent:
            loss = math.nan if reading.loss is None else reading.loss
            if reading.at_s <= sight_s:
                before.append(loss)
                continue
            number.append(n)
            at_s.append(reading.at_s)
            losses.append(loss)
            used.append((reading.ps_cpu or 0.0) + (reading.worker_cpu or 0.0))
        largest[n] = _largest_loss(before)

    container = np.array(number, dtype=np.int64)
    cpu = np.array(used, dtype=np.float64)
    cpu = np.where(cpu == 0.0, held[container], cpu)
    samples = Samples(
        container=container,
        at_s=np.array(at_s, dtype=np.float64),
        loss=np.array(losses, dtype=np.float64),
        cpu_share=cpu / cores,
    )
    return samples, largest


def _largest_loss(losses: Sequence[float]) -> float:
    """Return the largest magnitude of the losses that are finite."""
    largest = 0.0
    for loss in losses:
        if math.isfinite(loss):
            largest = max(largest, abs(loss))
    return largest


def _containers_before(
    running: Sequence[JobSnapshot], grew: Sequence[Sequence[float]], cores: float, rules: Rules
) -> list[Container]:
    """Return the jobs as they were before this pass, with their growth now."""
    before = math.fsum([_growth_before(mine, rules) for mine in grew])
    stood = []
    for job, mine in zip(running, grew, strict=True):
        stood.append(_container(job.key, mine, before, cores, rules))
    return stood


def _container(
    name: str, grew: Sequence[float], before: float, cores: float, rules: Rules
) -> Container:
    """Return a job's list and limit as the pass before left them; all cores if no job grew then.

    `grew`: at this pass, the one before, and so on; `before`: of all jobs at the one before.
    """
    if not grew:
        return Container(name=name, limit=cores, growth=1 / rules.interval_s)
    low_passes = 0
    for growth in grew[1:]:
        if growth >= rules.alpha:
            break
        low_passes += 1
    limit = cores
    if before > 0:
        share = _growth_before(grew, rules) / before
        limit = max(rules.floor_cpu, share * cores)
    return Container(
        name=name,
        limit=limit,
        growth=grew[0],
        watching=low_passes == 1,
        completing=low_passes >= 2,
    )


def _growth_before(grew: Sequence[float], rules: Rules) -> float:
    """Return the growth at the pass before this one; without a measurement, that of a new job."""
    return grew[1] if len(grew) > 1 else 1 / rules.interval_s


# ---------------------------------------------------------------- the answer


def _flowcon_target(
    job: JobSnapshot, judged: Container, sizes: RoleResources | None, cores: float, new: bool
) -> Target:
    """Return the target for new `sizes` of a running job's tasks; None: they stay as they are."""
    size = job.size or job.start
    list_ = "new" if new else _list_name(judged)
    limit = judged.limit / cores
    return Target(
        job=job.key,
        ps=size.ps,
        workers=size.workers,
        batch=job.batch,
        reason=f"{list_}: growth {judged.growth:.4f}/s, limit {limit:.0%} of the cores",
        sizes=sizes,
    )


def _list_name(judged: Container) -> str:
    if judged.watching:
        return "watched"
    if judged.completing:
        return "completing"
    return "growing"
