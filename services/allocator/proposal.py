"""What would happen now if a job were asked for: the same fold and the same decision, on a copy.

The decision is taken twice, with the job and without it; where they differ, the job is why. Timers are left out: what
is told is what is wanted now, not whether somebody has to hold still for some seconds first.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from services.allocator.capacity import free_nodes
from services.allocator.decide import Decisions, decide
from services.allocator.policies.contract import Node, Size
from services.allocator.requests import admission
from services.allocator.rules import Rules
from services.allocator.seen import size_of
from services.allocator.state import State, apply
from services.allocator.unknown import unknown_policies
from shared.messages import AllocationDecided, Alternative, JobRejected, JobRequested, RoleResources, TaskPlan
from shared.subjects import ORDERS


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """What another job would have, with the new one there and without it; and why, as it would be told."""

    job: str
    without: Size | None
    beside: Size | None
    why: str


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """Refused for `reasons`; else the tasks with which it would start (none: it would wait), why, and whom it moves.
    `free`: nodes that take tasks, as they were without it; `sizes`: of its tasks. `policy`: who was asked for it;
    `named`: by the request. `unsure`: whose policies could not be asked.
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
    at_once = replace(rules, window_s=0.0, max_delay_s=0.0, cooldown_s=0.0)
    sequence = state.sequences.get(ORDERS, 0) + 1
    asked = apply(state, request, ORDERS, sequence, now)
    answer = admission.answer(asked, sequence, 0, now, at_once)
    if isinstance(answer, JobRejected):
        return Outlook(reasons=answer.reasons)
    there = apply(asked, answer, ORDERS, sequence + 1, now)
    beside, without = decide(there, now, at_once), decide(state, now, at_once)
    first = _decided(beside).get(request.key())
    return Outlook(
        tasks=first.tasks if first else (),
        batch=first.batch if first else request.batch.start,
        why=beside.why.get(request.key(), ""),
        alternatives=first.alternatives if first else (),
        effects=tuple(_effects(state, beside, without)),
        free=tuple(node for node in free_nodes(state) if node.takes),
        sizes=request.resources or RoleResources(),
        policy=request.policy or rules.policy,
        named=request.policy is not None,
        unsure=unknown_policies(state, f"{rules.policy} is asked in its place and may answer otherwise"),
    )


def _effects(state: State, beside: Decisions, without: Decisions) -> Iterator[Effect]:
    for key, job in state.jobs.items():
        now = job.wanted
        with_it, alone = (_decided(decisions).get(key, now) for decisions in (beside, without))
        sizes = [size_of(decided) if decided else None for decided in (alone, with_it)]
        if sizes[0] != sizes[1]:
            yield Effect(job=key, without=sizes[0], beside=sizes[1], why=beside.why.get(key, ""))


def _decided(decisions: Decisions) -> dict[str, AllocationDecided]:
    return {action.key(): action for action in decisions.actions if isinstance(action, AllocationDecided)}
