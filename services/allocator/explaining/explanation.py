"""The answer: what a job has, why, what stands in the way of more, and what it would take."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from services.allocator.explaining.change import AnyChange, Widens
from services.allocator.placing.placement import ROLES
from services.allocator.proposal import Effect
from services.allocator.seen import size_of
from services.allocator.simulator.log_file import Told
from services.allocator.view import Phase
from shared.messages import AllocationDecided, Alternative


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision gives a job: tasks in all, and the roles on each node."""

    generation: int
    ps: int
    workers: int
    batch: int
    cpu: float
    memory_gib: float
    gpu: int
    nodes: dict[str, tuple[str, ...]]


class Ground(msgspec.Struct, frozen=True, kw_only=True):
    """The decision that made it so, as it was told; the id of the event that led to it, and the event where known."""

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
    """Changes that together make the allocator give the job more; what it would have, and who would have less."""

    changes: tuple[AnyChange, ...]
    gives: Holding
    others: tuple[Effect, ...] = ()


class Prospect(msgspec.Struct, frozen=True, kw_only=True):
    """Examples a second at the size it has, as measured (a mean of its reports, the newest most), and by the fitted
    model at the fastest of the next larger ones: as the policy `weir` holds them against each other.

    `expected`: by the model at the size it has, which is all there is where it has not reported at that (`measured`).
    `beyond`: the larger size is more than was asked for, at most.
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
    """`bounds`: as asked for; `runs`: what trains, since `since_s`; `comes`: what is decided beyond that, in flight.
    `reported_s`: when it last said how far it is.

    `why` is the allocator's word of that moment, and `until_s` the time to which it waits, if it is only time. `means`
    are alternatives, each by itself enough; without any `nothing` says why. `unasked`: why the policies
    could not be asked; then none of these four is known.
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
    size, nodes = size_of(decision), dict[str, list[str]]()
    for task in sorted(decision.tasks, key=lambda t: (ROLES.index(t.role), t.index)):
        nodes.setdefault(task.node, []).append(task.role)
    return Holding(
        generation=decision.generation,
        ps=size.ps,
        workers=size.workers,
        batch=decision.batch,
        cpu=round(sum(t.resources.cpu for t in decision.tasks), 6),
        memory_gib=round(sum(t.resources.memory_gib for t in decision.tasks), 6),
        gpu=sum(t.resources.gpu for t in decision.tasks),
        nodes=_tuples(nodes),
    )


def _tuples(lists: Mapping[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(each) for name, each in lists.items()}
