"""The outcome of a request for a job: the same fold and the same decision, on a copy.

The decision is taken twice, with the job and without it. The differences are the effects of the
job. Timers are left out: in the live service a job may wait for some seconds before it gets its new
size.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from services.allocator.admission import requests
from services.allocator.decide import Decisions, decide
from services.allocator.placement.free_capacity import free_nodes
from services.allocator.policies.contract import Node, Size
from services.allocator.policy_calls import unknown_policies
from services.allocator.settings import Rules
from services.allocator.state.policy_view import size_of
from services.allocator.state.state import State, apply
from shared.bus.subjects import ORDERS
from shared.messages import (
    AllocationDecided,
    Alternative,
    JobRejected,
    JobRequested,
    RoleResources,
    TaskPlan,
)


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """The size of another job beside the new job and without it, and the reason that the allocator
    would give.
    """

    job: str
    without: Size | None
    beside: Size | None
    why: str


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a request: rejected for `reasons`; otherwise the job's first tasks and its
    effects.

    A job without `tasks` would wait. `why` is the reason in both cases. `free` are the nodes that
    take tasks, as they are without the job; `sizes` are the resources of its tasks. `policy` is
    that of the request, or else the default one; `named` is True if the request names it. `unsure`
    names the policies that are unknown here; empty: there are none.
    """

    reasons: tuple[str, ...] = ()
    tasks: tuple[TaskPlan, ...] = ()
    batch: int = 0
    why: str = ""
    alternatives: tuple[Alternative, ...] = ()
    effects: tuple[Effect, ...] = ()
    free: tuple[Node, ...] = ()
    sizes: RoleResources = RoleResources()
    policy: str = ""
    named: bool = False
    unsure: str = ""


def outlook(state: State, request: JobRequested, now: float, rules: Rules) -> Outlook:
    """Return the outcome of a request if it were submitted now."""
    at_once = replace(rules, window_s=0.0, max_delay_s=0.0, cooldown_s=0.0)
    with_job = _state_with_job(state, request, now, at_once)
    if isinstance(with_job, JobRejected):
        return Outlook(reasons=with_job.reasons)

    beside = decide(with_job, now, at_once)
    without = decide(state, now, at_once)
    free = [node for node in free_nodes(state) if node.takes]
    unsure = f"{rules.policy} was used in its place and may decide differently"
    waits = Outlook(
        batch=request.batch.start,
        why=beside.why.get(request.key(), ""),
        effects=tuple(_effects(state, beside, without)),
        free=tuple(free),
        sizes=request.resources or RoleResources(),
        policy=request.policy or rules.policy,
        named=request.policy is not None,
        unsure=unknown_policies(state, unsure),
    )

    first = _newest_decisions(beside).get(request.key())
    if first is None:
        return waits
    return replace(waits, tasks=first.tasks, batch=first.batch, alternatives=first.alternatives)


def _state_with_job(
    state: State, request: JobRequested, now: float, rules: Rules
) -> State | JobRejected:
    """Return the state after the request is accepted, or its rejection."""
    sequence = state.sequences.get(ORDERS, 0) + 1
    asked = apply(state, request, ORDERS, sequence, now)
    answer = requests.answer_request(asked, sequence, 0, now, rules)
    if isinstance(answer, JobRejected):
        return answer
    return apply(asked, answer, ORDERS, sequence + 1, now)


def _effects(state: State, beside: Decisions, without: Decisions) -> Iterator[Effect]:
    """Yield the jobs that would have another size with the new job than without it."""
    decided_beside = _newest_decisions(beside)
    decided_without = _newest_decisions(without)
    for key, job in state.jobs.items():
        size_beside = _size(decided_beside.get(key, job.newest_decision))
        size_without = _size(decided_without.get(key, job.newest_decision))
        if size_beside == size_without:
            continue
        yield Effect(
            job=key,
            without=size_without,
            beside=size_beside,
            why=beside.why.get(key, ""),
        )


def _size(decided: AllocationDecided | None) -> Size | None:
    return size_of(decided) if decided else None


def _newest_decisions(decisions: Decisions) -> dict[str, AllocationDecided]:
    """Return the newest decision about each job that has one."""
    decided = {}
    for action in decisions.actions:
        if isinstance(action, AllocationDecided):
            decided[action.key()] = action
    return decided
