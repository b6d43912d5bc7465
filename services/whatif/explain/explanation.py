"""The answer: the tasks of a job, the reason, the obstacle to more, and the remedies."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from services.allocator.placing.placement import ROLES
from services.allocator.proposal import Effect
from services.allocator.seen import size_of
from services.allocator.view import Phase
from services.whatif.explain.change import AnyChange, Widens
from services.whatif.simulator.log_file import Told
from shared.messages import AllocationDecided, Alternative, TaskPlan


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks that a decision gives a job: how many in all, and the roles on each node."""

    generation: int
    ps: int
    workers: int
    batch: int
    cpu: float
    memory_gib: float
    gpu: int
    nodes: dict[str, tuple[str, ...]]


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """The decision that made it so, as it was told.

    `cause` is the id of the event that led to it, and `event` is that event, if it is known.
    """

    decided_s: float
    generation: int
    revision: int
    reason: str
    gain_s: float
    cost_s: float
    cause: str
    event: Told | None = None
    alternatives: tuple[Alternative, ...] = ()


class Means(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that together make the allocator give the job more.

    `gives` are the tasks that it would have; `others` are the jobs that would have less.
    """

    changes: tuple[AnyChange, ...]
    gives: Holding
    others: tuple[Effect, ...] = ()


class Prospect(msgspec.Struct, frozen=True, kw_only=True):
    """Speeds of a job, in examples a second, as the policy `weir` compares them.

    `samples_per_second` is measured at the job's size (a mean of its reports, the newest most).
    `larger_samples_per_second` is that of the fastest of the next larger sizes, by the fitted
    model. `expected` is the model's at the job's size; it takes the place of a measured one where
    the job has not reported at its size (`measured` is false). `beyond`: the larger size is above
    the bounds of the request.
    """

    samples_per_second: float
    ps: int
    workers: int
    larger_samples_per_second: float
    sizes_seen: int
    faster: bool
    expected: float = 0.0
    measured: bool = True
    beyond: bool = False


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The explanation of one job at one moment.

    `bounds` are those of the request. `runs` trains, since `since_s`; `comes` is decided beyond
    that, in flight. `reported_s` is the time of the last report.

    `why` is the allocator's word of that moment, and `until_s` the time to which it waits, if it is
    only time. `means` are alternatives, each by itself enough; without any `nothing` says why.
    `unasked`: why the policies could not be asked; then none of these four is known.
    """

    job: str
    namespace: str
    uid: int
    at_s: float
    phase: Phase
    since_s: float
    policy: str
    priority: int
    bounds: Widens
    samples: int = 0
    total_samples: int = 0
    samples_per_second: float = 0.0
    reported_s: float | None = None
    runs: Holding | None = None
    comes: Holding | None = None
    ground: Ground | None = None
    why: str = ""
    until_s: float | None = None
    means: tuple[Means, ...] = ()
    nothing: str = ""
    unasked: str = ""
    prospect: Prospect | None = None
    notes: tuple[str, ...] = ()


def holding(decision: AllocationDecided) -> Holding:
    """Return the holding of a job under a decision."""
    size = size_of(decision)
    amounts = [task.resources for task in decision.tasks]
    cpu = sum(amount.cpu for amount in amounts)
    memory_gib = sum(amount.memory_gib for amount in amounts)
    return Holding(
        generation=decision.generation,
        ps=size.ps,
        workers=size.workers,
        batch=decision.batch,
        cpu=round(cpu, 6),
        memory_gib=round(memory_gib, 6),
        gpu=sum(amount.gpu for amount in amounts),
        nodes=_roles_by_node(decision.tasks),
    )


def _roles_by_node(tasks: Iterable[TaskPlan]) -> dict[str, tuple[str, ...]]:
    """Return the roles of the tasks on each node, in the order of the roles."""
    by_node: dict[str, list[str]] = {}
    for task in sorted(tasks, key=_role_and_index):
        by_node.setdefault(task.node, []).append(task.role)
    return {node: tuple(roles) for node, roles in by_node.items()}


def _role_and_index(task: TaskPlan) -> tuple[int, int]:
    return ROLES.index(task.role), task.index
