"""The cores of a cluster, divided among jobs by their limits.

Jobs that change ("movers") give up all cores above the floors of their tasks. Waiting jobs take
their first share of these cores; the rest is filled in proportion to the limits
(`progressive_filling`). The cores of a job are divided among its tasks in the ratio of the request,
above the floors.

Progressive filling gives the weighted max-min shares of jobs that use several nodes each. All jobs
grow together, each in proportion to its weight. A job stops when a node that it uses is full; the
others continue. No node is overcommitted, and no job can get more unless one with less for its
weight loses cores (Bertsekas & Gallager, Data Networks, section 6.5.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from services.allocator.placement.amounts import smallest_enough
from services.allocator.placement.placers import ROLES, has_room, place_most
from services.allocator.placement.room import Room
from services.allocator.policies.contract import JobSnapshot, Node, Size
from shared.messages import Resources, Role, RoleResources

STEP_CPU = 0.01  # cores: task sizes are multiples of it
WORTH = 0.05  # of a task's cores; sizes change only if one task changes by more
PARTS = 64  # a first share is cut in so many parts
UNKNOWN = -1  # node of a task that is not among the cluster's
ROLE_NUMBER = {role: n for n, role in enumerate(ROLES)}


class Tasks:
    """The tasks of running jobs as arrays.

    [tasks]: `job`, `node` and `role`, numbers; `has`, cores; and `asked`, the requested cores of a
    task of its role. [jobs, roles]: `role_asked`. [jobs]: `held`, cores of all tasks; `total`,
    cores requested for them; `known`, True if all its nodes are known and any cores were requested.
    """

    def __init__(self, cluster: Sequence[Node], jobs: Sequence[JobSnapshot]) -> None:
        self.jobs = jobs
        node_number = {}
        for n, node in enumerate(cluster):
            node_number[node.name] = n
        job_of = []
        node_of = []
        role_of = []
        has = []
        for n, job in enumerate(jobs):
            for task in job.tasks:
                job_of.append(n)
                node_of.append(node_number.get(task.node, UNKNOWN))
                role_of.append(ROLE_NUMBER[task.role])
                has.append(task.resources.cpu)
        self.job: Ints = np.array(job_of, dtype=np.int64)
        self.node: Ints = np.array(node_of, dtype=np.int64)
        self.role: Ints = np.array(role_of, dtype=np.int64)
        self.has: Floats = np.array(has, dtype=np.float64)

        self.role_asked = _role_asked(jobs)
        self.asked: Floats = self.role_asked[self.job, self.role]
        self.held = self._sums_by_job(self.has)
        self.total = self._sums_by_job(self.asked)
        of_unknown = self.job[self.node == UNKNOWN]
        unknown = np.bincount(of_unknown, minlength=len(jobs))
        self.known = (self.total > 0) & (unknown == 0)

    def _sums_by_job(self, amounts: Floats) -> Floats:
        """Return the sum of an amount over each job's tasks [jobs]."""
        sums = np.bincount(self.job, weights=amounts, minlength=len(self.jobs))
        return sums.astype(float)


def _role_asked(jobs: Sequence[JobSnapshot]) -> Floats:
    """Return the cores that one task of each role was requested with [jobs, roles]."""
    asked = np.empty((len(jobs), len(ROLES)))
    for n, job in enumerate(jobs):
        sizes = job.sizes
        asked[n] = sizes.chief.cpu, sizes.ps.cpu, sizes.worker.cpu
    return asked


class Division:
    """One division of the cores. `free`: numbers of the jobs that may change, and their limits;
    `floor`: the least cores of a task that was requested with any.
    """

    def __init__(
        self,
        cluster: Sequence[Node],
        tasks: Tasks,
        free: Sequence[tuple[int, float]],
        floor: float,
    ) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._floor = floor
        self._limits = np.zeros(len(tasks.jobs))
        self._free = np.zeros(len(tasks.jobs), dtype=bool)
        for n, limit in free:
            self._limits[n] = limit
            self._free[n] = True
        self._moves = self._free & tasks.known  # [jobs]
        self._pots = self._above_floors()  # [nodes]

    def _above_floors(self) -> Floats:
        """Return the cores that would be free if the movers had no more than their floors
        [nodes].
        """
        pots = np.zeros(len(self._cluster))
        for n, node in enumerate(self._cluster):
            if node.open:
                pots[n] = node.free.cpu + node.returning.cpu
        tasks = self._tasks
        mine = self._moves[tasks.job]
        above = tasks.has - self._floors(tasks.asked)
        np.add.at(pots, tasks.node[mine], above[mine])
        return np.maximum(pots, 0.0)

    def _floors(self, asked: Floats) -> Floats:
        """Return the least cores of tasks that were requested with so many."""
        return np.where(asked > 0, self._floor, 0.0)

    def first_sizes(
        self, waiting: Sequence[JobSnapshot], limits: Sequence[float]
    ) -> dict[str, RoleResources]:
        """Return the sizes that the tasks of waiting jobs start with, and take them from the rest.

        They are as much of a job's share as there is room for; all of it, if there is no room at
        all. Shares are in proportion to the jobs' `limits` (all the same).
        """
        if not waiting:
            return {}
        share = self._first_share(limits)
        room = self._room_above_floors()
        refused: set[tuple[Size, Size, RoleResources]] = set()
        sizes = {}
        for job in waiting:
            cut = partial(_cut_share, job, share, self._floor)
            alike = (job.start, job.least, job.sizes)
            parts = None
            if alike not in refused:
                parts = smallest_enough(PARTS, partial(_fits_node, job, room, cut))
            if parts is None:
                # There is no room, nor later for an equal job: the room only shrinks.
                refused.add(alike)
                sizes[job.key] = cut(0)
                continue
            first = cut(parts)
            sizes[job.key] = first
            place_most(room, job.key, (), job.start, job.least, first, serial=0)
        for n, node in enumerate(room.nodes.values()):
            self._pots[n] = node.free.cpu
        return sizes

    def _first_share(self, limits: Sequence[float]) -> float:
        """Return the cores of each job that waits. `limits`: of all of them."""
        cores = math.fsum(self._tasks.held[self._free])
        for node in self._cluster:
            if node.open:
                cores += node.free.cpu + node.returning.cpu
        limits_now = self._limits[self._free]
        all_limits = math.fsum(limits) + math.fsum(limits_now)
        return cores * limits[0] / all_limits

    def _room_above_floors(self) -> Room:
        """Return the cluster as if the movers had no more than their floors."""
        nodes = []
        for node, cpu in zip(self._cluster, self._pots.tolist(), strict=True):
            free = replace(node.free, cpu=cpu)
            nodes.append(replace(node, free=free))
        return Room(nodes)

    def new_sizes(self) -> dict[str, RoleResources]:
        """Return new sizes of the movers' tasks; none if no task's cores change by enough."""
        if not self._moves.any():
            return {}
        cores = self._cores_by_role()
        if not self._are_worth_it(cores):
            return {}
        sizes = {}
        for n in np.flatnonzero(self._moves).tolist():
            job = self._tasks.jobs[n]
            of_role = cores[n].tolist()
            by_role = dict(zip(ROLES, of_role, strict=True))
            sizes[job.key] = _with_cores(job, by_role)
        return sizes

    def _cores_by_role(self) -> Floats:
        """Return the cores of one task of each role [jobs, roles], rounded down: its floor, and its
        part of the job's cores above the floors. These are weighted max-min fair among the jobs
        that move (`progressive_filling`).
        """
        tasks = self._tasks
        mine = self._moves[tasks.job]
        job = tasks.job[mine]
        share = tasks.asked[mine] / tasks.total[job]
        demands = Demands(job, tasks.node[mine], share)
        weights = np.where(self._moves, self._limits, 0.0)
        level = progressive_filling(self._pots, demands, weights)

        asked = tasks.role_asked
        total = np.where(tasks.total > 0, tasks.total, 1.0)
        above = level[:, None] * asked / total[:, None]
        return _round_down_to_step(self._floors(asked) + above)

    def _are_worth_it(self, cores: Floats) -> bool:
        """Return True if a mover's task that computes changes by enough. `cores` [jobs, roles]."""
        tasks = self._tasks
        computes = self._moves[tasks.job] & (tasks.asked > 0)
        job = tasks.job[computes]
        role = tasks.role[computes]
        has = tasks.has[computes]
        changes = np.abs(cores[job, role] - has)
        return bool((changes > WORTH * has).any())


# ---------------------------------------------------------------- the first size of a job


def _fits_node(
    job: JobSnapshot, room: Room, cut: Callable[[int], RoleResources], parts: int
) -> bool:
    """Return True if the job fits at its first or its least size, with its share cut by so many
    parts.
    """
    sizes = cut(parts)
    if has_room(room, job.key, (), job.start, sizes):
        return True
    return has_room(room, job.key, (), job.least, sizes)


def _cut_share(job: JobSnapshot, share: float, floor: float, parts: int) -> RoleResources:
    """Return task sizes with as many of the requested cores as the share, cut by so many parts,
    allows.
    """
    share = share * (1 - parts / PARTS)
    whole = _cores_at_start(job)
    part = share / whole if whole else 1.0
    cores = {}
    for role in ROLES:
        asked = _cores_asked(job, role)
        cores[role] = asked
        if part < 1:
            steps = math.floor(part * asked / STEP_CPU + 1e-6)
            stepped = round(steps * STEP_CPU, 6)
            cores[role] = min(asked, max(floor, stepped))
    return _with_cores(job, cores)


def _cores_at_start(job: JobSnapshot) -> float:
    """Return the cores of all tasks that the job was requested with."""
    start = job.start
    sizes = job.sizes
    ps_cpu = start.ps * sizes.ps.cpu
    worker_cpu = start.workers * sizes.worker.cpu
    return math.fsum((sizes.chief.cpu, ps_cpu, worker_cpu))


# ---------------------------------------------------------------- sizes of tasks


def _cores_asked(job: JobSnapshot, role: Role) -> float:
    """Return the cores that one task was requested with."""
    asked: Resources = getattr(job.sizes, role)
    return float(asked.cpu)


def _with_cores(job: JobSnapshot, cores: Mapping[Role, float]) -> RoleResources:
    """Return task sizes with these cores and the memory that tasks have: it may have been raised
    since the request.
    """
    sizes = {}
    for role, cpu in cores.items():
        sizes[role] = replace(_largest_tasks(job, role), cpu=cpu)
    return RoleResources(chief=sizes["chief"], ps=sizes["ps"], worker=sizes["worker"])


def _largest_tasks(job: JobSnapshot, role: Role) -> Resources:
    """Return the resources of the role's task with the most memory; as requested without one."""
    found: Resources | None = None
    for task in job.tasks:
        if task.role != role:
            continue
        has = task.resources
        if found is None or has.memory_gib > found.memory_gib:
            found = has
    if found is not None:
        return found
    requested: Resources = getattr(job.sizes, role)
    return requested


def _round_down_to_step(cores: Floats) -> Floats:
    """Return the cores rounded down to steps [jobs, roles]."""
    steps = np.floor(cores / STEP_CPU + 1e-6) * STEP_CPU
    rounded = [round(cpu, 6) for cpu in steps.ravel().tolist()]
    return np.array(rounded).reshape(cores.shape)


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Demands(NamedTuple):
    """The shares of jobs' cores on nodes, each array [demands]; those of one job sum to 1."""

    job: Ints
    node: Ints
    share: Floats


def progressive_filling(pots: Floats, demands: Demands, weights: Floats) -> Floats:
    """Return cores for each job [jobs]. `pots`: cores of each node [nodes]; `weights` [jobs]."""
    level = np.zeros(len(weights))
    growing = np.ones(len(weights), dtype=bool)
    left = pots.copy()
    wanted = demands.share > 0
    job = demands.job[wanted]
    node = demands.node[wanted]
    pulls = weights[job] * demands.share[wanted]
    while True:
        # The node that is full first, if all jobs go on growing.
        pull = np.bincount(node, weights=pulls, minlength=len(pots))
        pulled = np.flatnonzero(pull > 0)
        if not len(pulled):
            return level
        steps = left[pulled] / pull[pulled]
        first = steps.argmin()
        step = steps[first]
        level[growing] += step * weights[growing]
        left = np.maximum(0.0, left - step * pull)

        # Its jobs stop growing, on all nodes.
        growing[job[node == pulled[first]]] = False
        goes_on = growing[job]
        job = job[goes_on]
        node = node[goes_on]
        pulls = pulls[goes_on]
