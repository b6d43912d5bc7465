"""Simulate a cluster of equal devices under IBM's autoscaler; return completion times.

Every `interval_s`, if a job arrived or finished, `arm` divides the devices; in between, each job
runs at its true speed. A running job whose devices or batch change pauses for `restart_s`. Jobs
that get no device are dropped, or wait in the order of their arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np

from services.allocator.policies.elastic_batch.policy import Pick, autoscale
from services.allocator.policies.elastic_batch.scalability import Limits, Rate, Table, scale_table

ASKED = 4
"""Devices that a user would request without elasticity."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """`true`: its speed; `believed`: the speed according to the analyser. Batches are totals."""

    name: str
    true: Rate
    believed: Rate
    batches: tuple[int, ...]


class Job(NamedTuple):
    """`batch`: the one that its user would fix."""

    at_s: float
    model: Model
    samples: float
    batch: int


class World(msgspec.Struct, frozen=True, kw_only=True):
    devices: int
    devices_max: int
    device_batch_max: int
    interval_s: float
    restart_s: float
    drop: bool


class Running(msgspec.Struct):
    """`ready_s`: when it trains again."""

    job: Job
    left: float
    pick: Pick
    ready_s: float


class Played(NamedTuple):
    """Times in s from arrival to end of completed jobs; numbers of dropped jobs and of restarts."""

    completion_s: list[float]
    dropped: int
    restarts: int


Arm = Callable[[World, Sequence[Job], Sequence[Running]], "list[Pick | None]"]
"""Return the devices and batch of each running job, then of each waiting one."""


def play(world: World, jobs: Sequence[Job], arm: Arm) -> Played:
    coming, waiting, running = list(reversed(jobs)), list[Job](), list[Running]()
    completion_s: list[float] = []
    dropped = restarts = 0
    now = 0.0
    while coming or waiting or running:
        # 1. Run all jobs until the end of the interval.
        before, until = len(running), now + world.interval_s
        running = [r for r in running if not _done(r, now, until, completion_s)]
        now = until
        # 2. Add arrivals.
        arrived = [coming.pop() for _ in range(sum(job.at_s <= now for job in coming))]
        waiting += arrived
        if not arrived and len(running) == before:
            continue
        # 3. Divide the devices again.
        asking = waiting[: world.devices]
        picks = arm(world, asking, running)
        restarts += sum(
            _changed(world, r, pick, now) for r, pick in zip(running, picks, strict=False)
        )
        asked = list(zip(asking, picks[len(running) :], strict=True))
        running += [Running(job, job.samples, pick, now) for job, pick in asked if pick]
        waiting = [job for job, pick in asked if not pick] + waiting[world.devices :]
        if world.drop:
            dropped, waiting = dropped + len(waiting), []
    return Played(completion_s, dropped, restarts)


def _done(one: Running, begin_s: float, end_s: float, completion_s: list[float]) -> bool:
    """Train a job until the end of the interval; return whether it finished."""
    begin_s = max(begin_s, one.ready_s)
    speed = true_rate(one.job.model, one.pick)
    if end_s <= begin_s:
        return False
    finish_s = begin_s + one.left / speed
    one.left -= speed * (end_s - begin_s)
    if finish_s > end_s:
        return False
    completion_s.append(finish_s - one.job.at_s)
    return True


def _changed(world: World, one: Running, pick: Pick | None, now: float) -> bool:
    if pick is None or pick == one.pick:
        return False
    one.pick, one.ready_s = pick, now + world.restart_s
    return True


@lru_cache(maxsize=100_000)
def true_rate(model: Model, pick: Pick) -> float:
    return float(model.true(np.asarray(pick.batch // pick.devices), np.asarray(pick.devices)))


@lru_cache(maxsize=100_000)
def table_of(model: Model, least: int, most: int, device_batch_max: int, devices_max: int) -> Table:
    limits = Limits(
        batch_min=least, batch_max=most, device_batch_max=device_batch_max, devices_max=devices_max
    )
    return scale_table(model.believed, limits)


# ---------------------------------------------------------------- arms


def elastic(batches: Callable[[Job], tuple[int, int]]) -> Arm:
    """Return an arm with the dynamic program, and the batch of each job between two bounds."""

    def arm(world: World, waiting: Sequence[Job], running: Sequence[Running]) -> list[Pick | None]:
        jobs = [*(r.job for r in running), *waiting]
        tables = [
            table_of(j.model, *batches(j), world.device_batch_max, world.devices_max) for j in jobs
        ]
        return autoscale(
            tables, world.devices, [*(r.pick.devices for r in running), *(0 for _ in waiting)]
        )

    return arm


def fifo(world: World, waiting: Sequence[Job], running: Sequence[Running]) -> list[Pick | None]:
    """Without elasticity: give each job its request in the order of arrival, while it fits."""
    left = world.devices - sum(r.pick.devices for r in running)
    picks: list[Pick | None] = [r.pick for r in running]
    for job in waiting:
        need = asked_devices(world, job)
        left = left - need if need <= left else -1
        picks.append(Pick(need, job.batch) if left >= 0 else None)
    return picks


def asked_devices(world: World, job: Job) -> int:
    """Return the fewest devices that hold the batch and divide it.

    At least `ASKED`, if the batch can be divided in this way.
    """
    able = [
        k
        for k in range(1, world.devices_max + 1)
        if job.batch % k == 0 and job.batch // k <= world.device_batch_max
    ]
    return next((k for k in able if k >= ASKED), able[-1])


ARMS: dict[str, Arm] = {
    "variable": elastic(lambda job: (job.model.batches[0], job.model.batches[-1])),
    "fixed-min": elastic(lambda job: (job.model.batches[0], job.model.batches[0])),
    "fixed-max": elastic(lambda job: (job.model.batches[-1], job.model.batches[-1])),
    "fixed-random": elastic(lambda job: (job.batch, job.batch)),
    "fifo": fifo,
}
FIXED = ("fixed-min", "fixed-max", "fixed-random")
