"""What should run: the allocator's main loop, one pass.

Law: facts in, actions out. `decide` looks at the state and at the time it is given, and answers with what to say, when
to look again, and why each job is as it is; it says nothing itself. A job gets one decision at a time: none while a
generation is in flight, except to replace a task that was lost.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from services.allocator import change, repair
from services.allocator.capacity import free_nodes
from services.allocator.ending import ending
from services.allocator.job import Job
from services.allocator.placement import Node, Room
from services.allocator.policies import POLICIES, JobSeen, Want
from services.allocator.rules import Rules
from services.allocator.seen import seen
from services.allocator.state import State
from services.allocator.timing import Wish
from services.allocator.verdict import Verdict
from shared.messages import AllocationDecided, JobFinished


class Decisions(msgspec.Struct, frozen=True):
    """What to say, when to look again (None: only when something is heard), why, and what is wished for."""

    actions: tuple[AllocationDecided | JobFinished, ...] = ()
    wake_s: float | None = None
    why: dict[str, str] = {}
    wishes: dict[str, Wish] = {}


def decide(state: State, now: float, rules: Rules, wishes: Mapping[str, Wish] | None = None) -> Decisions:
    wishes = wishes or {}
    verdicts: dict[str, Verdict] = {}
    jobs = sorted(state.jobs.values(), key=lambda j: (-j.request.priority, j.uid))
    # 1. What is over, is over.
    for job in jobs:
        verdicts |= _said(job, ending(job, now, rules))
    # 2. What was lost comes back first, in what is free.
    room = Room(free_nodes(state))
    for job in _open(jobs, verdicts):
        verdicts |= _said(job, repair.repaired(job, room, now, rules))
    # 3. What is in flight is waited for.
    for job in _open(jobs, verdicts):
        verdicts |= _said(job, change.in_flight(job))
    # 4. Each policy says what its jobs should have.
    wants = _wanted(jobs, room, now, rules)
    # 5. Jobs that wait start, then those that run change, as far as there is room, gain and time.
    for job in sorted(_open(jobs, verdicts), key=lambda j: j.running is not None):
        want, wish = wants.get(job.key), wishes.get(job.key)
        verdicts |= _said(job, change.changed(job, want, wish, room, now, rules, state.cause))
    # 6. Say it.
    return _together(verdicts)


def _said(job: Job, verdict: Verdict | None) -> dict[str, Verdict]:
    return {job.key: verdict} if verdict else {}


def _open(jobs: list[Job], verdicts: Mapping[str, Verdict]) -> list[Job]:
    """Those of which nothing has been said in this pass."""
    return [job for job in jobs if job.key not in verdicts]


def _wanted(jobs: list[Job], room: Room, now: float, rules: Rules) -> dict[str, Want]:
    """Every job's want, by its own policy or the cluster's."""
    by_policy: dict[str, list[JobSeen]] = {}
    for job in jobs:
        name = job.request.policy or rules.policy
        by_policy.setdefault(name if name in POLICIES else rules.policy, []).append(seen(job, rules))
    cluster: list[Node] = list(room.nodes.values())
    return {w.job: w for name, mine in by_policy.items() for w in POLICIES[name](cluster, mine, now)}


def _together(verdicts: Mapping[str, Verdict]) -> Decisions:
    return Decisions(
        actions=tuple(v.action for v in verdicts.values() if v.action),
        wake_s=min((v.wake_s for v in verdicts.values() if v.wake_s is not None), default=None),
        why={key: v.why for key, v in verdicts.items()},
        wishes={key: v.wish for key, v in verdicts.items() if v.wish},
    )
