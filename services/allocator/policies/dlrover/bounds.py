"""Upper limits on the plans of a running job, beside its own bounds and the size of a node.

Live pods do not move: a task can only grow by what is free on its node. All jobs of a namespace
share its quota: a job can have what the others leave of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from services.allocator.policies.contract import JobSeen, Node


class Bounds(NamedTuple):
    """Cores that each ps, and each worker, can have on its node; cores and GiB of all ps and
    workers of the job together.
    """

    ps_cpu: float = math.inf
    worker_cpu: float = math.inf
    cpu: float = math.inf
    gib: float = math.inf


BOUNDLESS = Bounds()
Held = tuple[float, float]
"""Cores and GiB."""
NOTHING: Held = (0.0, 0.0)


def bounds(
    cluster: Sequence[Node], jobs: Sequence[JobSeen], bidding: Sequence[JobSeen], move: bool
) -> dict[str, Bounds]:
    """Return the bounds of those that bid, by job; `jobs` are all. With `move`, a task that cannot
    grow on its node goes to another one.
    """
    free_cpu: dict[str, float] = {}
    if not move:
        free_cpu = _free_cpu(cluster)
    held = _held_by_namespace(jobs)
    found = {}
    for job in bidding:
        held_by_all = held.get(job.request.namespace, NOTHING)
        found[job.key] = _job_bounds(job, free_cpu, held_by_all)
    return found


def _free_cpu(cluster: Sequence[Node]) -> dict[str, float]:
    """Return the cores that are free for tasks, by node."""
    free_cpu = {}
    for node in cluster:
        free_cpu[node.name] = node.free.cpu if node.open else 0.0
    return free_cpu


def _held_by_namespace(jobs: Sequence[JobSeen]) -> dict[str, Held]:
    """Return what the jobs of each namespace with a quota hold together."""
    held: dict[str, Held] = {}
    for job in jobs:
        if job.quota:
            namespace = job.request.namespace
            cpu, gib = held.get(namespace, NOTHING)
            job_cpu, job_gib = _held_by_job(job, with_chief=True)
            held[namespace] = (cpu + job_cpu, gib + job_gib)
    return held


def _job_bounds(job: JobSeen, free_cpu: Mapping[str, float], held: Held) -> Bounds:
    """Return the bounds of one job. `held`: by all jobs in its namespace, its own included."""
    ps_cpu, worker_cpu = _room_to_grow(job, free_cpu)
    if job.quota is None:
        return Bounds(ps_cpu, worker_cpu)
    most = job.quota.most()
    held_cpu, held_gib = held
    cpu, gib = _held_by_job(job, with_chief=False)
    return Bounds(
        ps_cpu=ps_cpu,
        worker_cpu=worker_cpu,
        cpu=most.cpu - held_cpu + cpu,
        gib=most.memory_gib - held_gib + gib,
    )


def _held_by_job(job: JobSeen, with_chief: bool) -> Held:
    """Return cores and GiB of the job's tasks."""
    cpu = gib = 0.0
    for task in job.tasks:
        if with_chief or task.role != "chief":
            cpu += task.resources.cpu
            gib += task.resources.memory_gib
    return cpu, gib


def _room_to_grow(job: JobSeen, free_cpu: Mapping[str, float]) -> tuple[float, float]:
    """Return the cores that every ps, and every worker, could have on its node; the job's tasks on
    a node share what is free there.
    """
    ps_cpu = worker_cpu = math.inf
    if not free_cpu:
        return ps_cpu, worker_cpu

    tasks_on = Counter([task.node for task in job.tasks])
    for task in job.tasks:
        free = free_cpu.get(task.node, 0.0)
        most = task.resources.cpu + free / tasks_on[task.node]
        if task.role == "ps":
            ps_cpu = min(ps_cpu, most)
        elif task.role == "worker":
            worker_cpu = min(worker_cpu, most)
    return ps_cpu, worker_cpu
