"""Find the tasks that do not get the CPU that they were promised: a hot ps, a straggling worker.

    promised = min(limit * busy, used + waited)      [cores]  the CPU of its own that it could use
    got      = used / promised                                1: all of it
    starved  <=>  got <= 1/2 of the median of the job's tasks on other nodes

`waited` are threads that stood ready without a core, `busy` the share of the time in which the
busiest of them ran or stood ready (`services/trainer/usage.py`). So a task that has little to do
does not starve. Nor does one that uses up its quota in bursts and waits for the next: its threads
wait, too, but it has its limit for as long as it wants it. Nor does one that asked for too little:
its node keeps the promise, and size is the policies' business. Where all starve alike the machines
are full, and moving helps nobody. Our reconstruction: DLRover-RM compares use with the limit alone,
which does not show a node that gives less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from shared.messages import TaskPlan, TaskUsage

STARVED = 0.5
LEAST = 0.02
"""Cores; a task that could not use as many has nothing to wait for."""


def got(use: TaskUsage, limit: float) -> float | None:
    """Return the share of the promised CPU that a task had; None: not measured. `limit`: its
    cores.
    """
    if use.waited is None or use.busy is None or not limit:
        return None
    promised = min(limit * use.busy, use.cpu + use.waited)
    if promised <= LEAST:
        return 1.0
    return min(use.cpu / promised, 1.0)


def starved(usage: Sequence[TaskUsage], tasks: Sequence[TaskPlan]) -> list[str]:
    """Return the names of the tasks that starve."""
    shares = _measured_shares(usage, tasks)
    names = []
    for task, share in shares.items():
        if share > STARVED:  # no median is above 1
            continue
        elsewhere = [other for one, other in shares.items() if one.node != task.node]
        if elsewhere and share <= STARVED * median(elsewhere):
            names.append(task.name())
    return names


def _measured_shares(
    usage: Sequence[TaskUsage], tasks: Sequence[TaskPlan]
) -> dict[TaskPlan, float]:
    """Return the share of its CPU that each task had, of those that were measured."""
    uses = {use.task: use for use in usage if use.waited is not None}
    shares: dict[TaskPlan, float] = {}
    for task in tasks:
        use = uses.get(task.name())
        if use is None:
            continue
        share = got(use, task.resources.cpu)
        if share is not None:
            shares[task] = share
    return shares


def since(
    before: Mapping[str, float], usage: Sequence[TaskUsage], tasks: Sequence[TaskPlan], now: float
) -> dict[str, float]:
    """Return the time (s) since which each starving task has starved without a break, by name."""
    return {name: before.get(name, now) for name in starved(usage, tasks)}
