"""What no plan of a running job may exceed, for two reasons beside its own bounds and a node's size.

Live pods do not move: tasks whose node has not so much free cannot have it. And what the other jobs of its namespace
leave of their quota is all that a job can have.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import NamedTuple

from services.allocator.policies.contract import JobSeen, Node
from shared.messages import Role


class Bounds(NamedTuple):
    """Cores that a ps, and a worker, can have where they stand; cores and GiB of all ps and workers of the job."""

    ps_cpu: float = math.inf
    worker_cpu: float = math.inf
    cpu: float = math.inf
    gib: float = math.inf


BOUNDLESS = Bounds()


def bounds(cluster: Sequence[Node], jobs: Sequence[JobSeen], move: bool) -> dict[str, Bounds]:
    """By job. `move`: who cannot grow where it stands, goes elsewhere."""
    free = {} if move else {node.name: node.free.cpu if node.open else 0.0 for node in cluster}
    held: dict[str, tuple[float, float]] = {}
    for job in (job for job in jobs if job.quota):
        cpu, gib = held.get(job.request.namespace, (0.0, 0.0))
        held[job.request.namespace] = (cpu + sum(_cpu(job)), gib + sum(_gib(job)))
    return {job.key: _bound(job, free, held.get(job.request.namespace, (0.0, 0.0))) for job in jobs}


def _bound(job: JobSeen, free: Mapping[str, float], held: tuple[float, float]) -> Bounds:
    """`held`: cores and GiB of all jobs in its namespace, its own among them."""
    at = Bounds(ps_cpu=_stretchable(job, "ps", free), worker_cpu=_stretchable(job, "worker", free))
    if job.quota is None:
        return at
    most, chief = job.quota.most(), {"chief"}
    cpu, gib = sum(_cpu(job, but=chief)), sum(_gib(job, but=chief))
    return at._replace(cpu=most.cpu - held[0] + cpu, gib=most.memory_gib - held[1] + gib)


def _cpu(job: JobSeen, but: Container[str] = ()) -> Iterator[float]:
    return (task.resources.cpu for task in job.tasks if task.role not in but)


def _gib(job: JobSeen, but: Container[str] = ()) -> Iterator[float]:
    return (task.resources.memory_gib for task in job.tasks if task.role not in but)


def _stretchable(job: JobSeen, role: Role, free: Mapping[str, float]) -> float:
    """Cores that every task of the role could have where it stands, beside the job's others there."""
    beside = Counter(task.node for task in job.tasks)
    tasks = [task for task in job.tasks if task.role == role and free]
    return min((t.resources.cpu + free.get(t.node, 0.0) / beside[t.node] for t in tasks), default=math.inf)
