"""Which tasks do not get the CPU that they were promised: a hot ps, a straggling worker.

    promised = min(limit * busy, used + waited)      [cores]  what it could use of what is its own
    got      = used / promised                                1: all of it
    starved  <=>  got <= 1/2 of the median of the job's tasks on other nodes

`waited` are threads that stood ready without a core, `busy` the share of the time in which the busiest of them ran or
stood ready (`services/trainer/usage.py`). So a task that has little to do is none that starves; nor is one that uses up
its quota in bursts and waits for the next: its threads wait, too, but it has its limit for as long as it wants it. Nor
is one that has too little by what was asked for it: its node keeps the promise, and size is the policies' business.
Where all starve alike the machines are full, and moving helps nobody. Our reconstruction: DLRover-RM compares use with
the limit alone, which does not show a node that gives less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from shared.messages import TaskPlan, TaskUsage

STARVED = 0.5
LEAST = 0.02
"""Cores; who could not use as many has nothing to wait for."""


def got(use: TaskUsage, limit: float) -> float | None:
    """The share of the promised CPU that a task had; None where it was not measured."""
    if use.waited is None or use.busy is None or not limit:
        return None
    promised = min(limit * use.busy, use.cpu + use.waited)
    return min(use.cpu / promised, 1.0) if promised > LEAST else 1.0


def starved(usage: Sequence[TaskUsage], tasks: Sequence[TaskPlan]) -> list[str]:
    """The names of those that starve."""
    uses = {use.task: use for use in usage if use.waited is not None}
    had = {task: got(uses[task.name()], task.resources.cpu) for task in tasks if task.name() in uses}
    shares = {task: share for task, share in had.items() if share is not None}
    return [task.name() for task, share in shares.items() if _far_below(share, task, shares)]


def _far_below(share: float, task: TaskPlan, shares: Mapping[TaskPlan, float]) -> bool:
    others = [other for one, other in shares.items() if one.node != task.node]
    return bool(others) and share <= STARVED * median(others)


def since(
    before: Mapping[str, float], usage: Sequence[TaskUsage], tasks: Sequence[TaskPlan], now: float
) -> dict[str, float]:
    """Since when each of them has starved, without a break."""
    return {name: before.get(name, now) for name in starved(usage, tasks)}
