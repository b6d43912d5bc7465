"""What should run: the allocator's main loop, one pass.

Law: facts in, actions out. `decide` looks at the state and at the time it is given, and answers with what to say, when
to look again, and why each job is as it is; it says nothing itself. A job gets one decision at a time: none while a
generation is in flight, except to replace a task that was lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from services.allocator import change, failures, leaving, outgrowing, relief, repair, unanswered
from services.allocator.capacity import free_nodes, purses
from services.allocator.claims import Reach
from services.allocator.cluster_quotas import slots, task_limits, with_cluster_quotas
from services.allocator.ending import ending
from services.allocator.failures import Failure, FaultSearch, isolate, untried_reason
from services.allocator.job import Job
from services.allocator.kept import Kept
from services.allocator.models.kin import by_program
from services.allocator.placing.placement import Room, shunning
from services.allocator.policies.contract import JobSeen, Kin, Node, Want
from services.allocator.policies.registry import POLICIES
from services.allocator.policy_calls import desired_sizes
from services.allocator.preemption import give_way
from services.allocator.releases import coming_capacity
from services.allocator.reservations import Reserve
from services.allocator.rules import Rules
from services.allocator.seen import all_seen
from services.allocator.state import State
from services.allocator.timing import Wish
from services.allocator.user_changes import fit_into_bounds, not_suspended, suspend
from services.allocator.verdict import Verdict
from shared.messages import AllocationDecided, JobFinished

STATES = 8
"""So many of the last ones are remembered."""
Jobs = Mapping[str, Job]


class Decisions(msgspec.Struct, frozen=True):
    """What to say, when to look again (None: only when something is heard), why, and what is wished for."""

    actions: tuple[AllocationDecided | JobFinished, ...] = ()
    wake_s: float | None = None
    why: dict[str, str] = {}
    wishes: dict[str, Wish] = {}
    failures: tuple[Failure, ...] = ()
    """Of the jobs that were set aside, because a policy or a step raised with them (`failures.py`)."""
    untried: tuple[str, ...] = ()
    """The jobs that were set aside, because the search for the faulty ones did not come to them."""


def decide(
    state: State,
    now: float,
    rules: Rules,
    wishes: Mapping[str, Wish] | None = None,
    suspects: Sequence[Failure] = (),
    untried: Collection[str] = (),
) -> Decisions:
    """Return the decisions of one pass, whatever a policy or a step raises.

    `wishes`, `suspects` and `untried`: the wishes, the failures and the untried jobs of the last pass.
    """
    search = FaultSearch([each for each in suspects if each.job in state.jobs], untried)
    rules = with_cluster_quotas(state, rules)
    try:
        return _decided(state, now, rules, wishes or {}, search, frozenset())
    except Exception as error:
        if failures.RAISE_ALL or rules.strict:
            raise
        return _without_faulty(state, now, rules, wishes or {}, search, error)


def _without_faulty(
    state: State, now: float, rules: Rules, wishes: Mapping[str, Wish], search: FaultSearch, error: Exception
) -> Decisions:
    """Decide on all jobs but those with which a step raises; of these, end those that are cancelled."""
    every = state.jobs.keys()

    def compute(keys: Sequence[str]) -> Decisions:
        return _decided(state, now, rules, wishes, search, every - frozenset(keys))

    found = isolate(compute, [*every], error, search)
    decisions = found.result or Decisions()
    aside = {key: untried_reason("") for key in found.untried}
    aside |= {key: each.reason for key, each in search.faulty.items() if key not in decisions.why}
    cancelled = [job for key in aside if (job := state.jobs.get(key)) and job.cancelled]
    ends = [verdict.action for job in cancelled if (verdict := ending(job, now, rules)) and verdict.action]
    untried = {*decisions.untried, *found.untried} - search.faulty.keys()
    return replace(
        decisions,
        actions=(*decisions.actions, *ends),
        wake_s=_earliest(decisions.wake_s, search.wake_s(untried, now)),
        why=decisions.why | aside,
        wishes=decisions.wishes | {key: wishes[key] for key in found.untried if key in wishes},
        failures=tuple(search.faulty.values()),
        untried=tuple(sorted(untried)),
    )


def _decided(
    state: State,
    now: float,
    rules: Rules,
    wishes: Mapping[str, Wish],
    search: FaultSearch,
    aside: Collection[str],
) -> Decisions:
    """One pass; `aside`: jobs that are left out, but for what they hold."""
    verdicts: dict[str, Verdict] = {}
    jobs = _without(_in_order(state.jobs), aside)
    stirred, others = _parted(jobs)
    # 1. What is over, is over; what its user suspends has nothing.
    for key, job in stirred.items():
        _say(verdicts, key, ending(job, now, rules) or suspend(job, now, rules, state.cause))
    # 2. What was lost comes back first, in what is free.
    shunned = leaving.shunned(stirred.values()) | relief.shunned(stirred.values(), now, rules)
    nodes, limits = shunning(free_nodes(state), shunned), task_limits(rules.quotas)
    room = Room(nodes, purses(state, rules.quotas), slots(state, rules.quotas), limits)
    reach = Reach(state, rules)
    for key, job in _open(stirred, verdicts):
        with reach.of(job, room):
            said = repair.repaired(job, room, now, rules, state.opened_s)
        _say(verdicts, key, _noting(said, reach.note(job)) if said else None)
    # 3. What will be lost moves while it still works; what is in flight is waited for, else new bounds hold.
    for key, job in _open(stirred, verdicts):
        with reach.of(job, room):
            _say(verdicts, key, leaving.moved(job, room, now, rules))
    for key, job in _open(stirred, verdicts):
        with reach.of(job, room):
            _say(verdicts, key, change.in_flight(job) or fit_into_bounds(job, room, now, rules, state.cause))
    # 4. Capacity is held back for jobs that have waited too long or have a higher priority; others give way to them.
    #    Who has too little where it stands gets more, or goes elsewhere, in what is left.
    reserve = Reserve(state, jobs, verdicts, room, now, rules)
    for victim in reserve.victims:
        _say(verdicts, victim.job.key, give_way(victim, now, rules, state.cause))
    for key, job in _open(stirred, verdicts):
        reserve.hold_for(job)
        with reach.of(job, room):
            _say(verdicts, key, outgrowing.enlarged(job, room, now, rules) or relief.relieved(job, room, now, rules))
    reserve.hold_all()
    # 5. Each policy says what its jobs should have, and many have it.
    coming = coming_capacity(state.releases, state.nodes, now, rules)
    cluster: list[Node] = coming.added_to(room.nodes.values())
    by_policy = _by_policy(rules)(by_program(state.closed))(not_suspended(jobs))
    raise_all = failures.RAISE_ALL or rules.strict
    wants, untried = desired_sizes(by_policy, cluster, now, search, raise_all)
    set_aside = _set_aside(jobs, search, untried, wishes)
    verdicts = {key: verdict for key, verdict in set_aside.items() if key not in reserve.reservations} | verdicts
    calm = _calm(others, wants, verdicts.keys() | reserve.reservations.keys(), rules)
    for (key, _), verdict in zip(calm, change.settled([(job, wants[key]) for key, job in calm]), strict=True):
        _say(verdicts, key, verdict)
    # 6. Jobs that wait start, then those that run change, as far as there is room, gain and time. A job for which
    #    capacity is held back starts even where its policy fails with it: else others would have given way in vain.
    for key, job in sorted(_open(jobs, verdicts), key=lambda item: item[1].running is not None):
        reserve.hold_for(job)
        with reach.of(job, room):
            want, wish = reserve.start_want(job, wants.get(key)), wishes.get(key)
            said = change.changed(job, want, wish, room, now, rules, state.cause, coming)
        said = _noting(said, reach.note(job) if said.wish or job.wanted is None else "")
        _say(verdicts, key, _noting(said, set_aside[key].why if key in set_aside else ""))
    # 7. Say it.
    for key, job in stirred.items():
        verdicts[key] = _noting(verdicts[key], leaving.stays(job))
    verdicts |= unanswered.attend(_jobs_with_pending_decision(jobs), verdicts, state.nodes, now, rules)
    search.clear(jobs, "")
    wakes_s = (reserve.wake_s, coming.until_s, search.wake_s(untried, now))
    return _together(_with_reserved(verdicts, jobs, reserve), search, untried, *wakes_s)


def _without(jobs: Jobs, aside: Collection[str]) -> Jobs:
    """The very same jobs, where none is set aside."""
    return {key: job for key, job in jobs.items() if key not in aside} if aside else jobs


def _by_rank(jobs: Jobs) -> Jobs:
    return dict(sorted(jobs.items(), key=lambda item: (-item[1].request.priority, item[1].uid)))


_in_order: Kept[Jobs, Jobs] = Kept(_by_rank, STATES)


def _parts(jobs: Jobs) -> tuple[Jobs, Jobs]:
    """Those of which there is more to say than what their policy wants, and the others."""
    stirred = {key: job for key, job in jobs.items() if _has_stirred(job)}
    return stirred, {key: job for key, job in jobs.items() if key not in stirred}


_parted: Kept[Jobs, tuple[Jobs, Jobs]] = Kept(_parts, STATES)


def _find_pending_decisions(jobs: Jobs) -> list[Job]:
    return [job for job in jobs.values() if unanswered.pending_decision(job)]


_jobs_with_pending_decision: Kept[Jobs, list[Job]] = Kept(_find_pending_decisions, STATES)


def _has_stirred(job: Job) -> bool:
    failed = job.failed_generations or job.killed_generations
    return bool(
        job.cancelled
        or job.changed
        or job.exits
        or job.leaving
        or job.starving
        or job.crowded
        or job.abandonments
        or failed
        or job.coming is not None
    )


def _say(verdicts: dict[str, Verdict], key: str, verdict: Verdict | None) -> None:
    if verdict is not None:
        verdicts[key] = verdict


def _noting(verdict: Verdict, note: str) -> Verdict:
    return replace(verdict, why=f"{verdict.why}; {note}") if note and verdict.action is None else verdict


def _open(jobs: Jobs, verdicts: Mapping[str, Verdict]) -> list[tuple[str, Job]]:
    """Those of which nothing has been said in this pass."""
    return [(key, job) for key, job in jobs.items() if key not in verdicts]


def _divided(jobs: Jobs, kin: Mapping[str, Kin], rules: Rules) -> dict[str, list[JobSeen]]:
    found: dict[str, list[JobSeen]] = {}
    for job in all_seen(jobs.values(), rules, kin):
        name = job.request.policy or rules.policy
        found.setdefault(name if name in POLICIES else rules.policy, []).append(job)
    return found


_by_policy: Kept[Rules, Kept[Mapping[str, Kin], Kept[Jobs, dict[str, list[JobSeen]]]]] = Kept(
    lambda rules: Kept(lambda kin: Kept(partial(_divided, kin=kin, rules=rules), STATES), STATES), STATES
)


def _calm(others: Jobs, wants: Mapping[str, Want], settled: Collection[str], rules: Rules) -> list[tuple[str, Job]]:
    """Jobs that may have what their policy wants, whatever is free; not those for which other rules hold."""
    listed = [(key, job) for key, job in others.items() if key in wants and key not in settled]
    return [(key, job) for key, job in listed if job.request.namespace not in rules.quotas]


def _with_reserved(verdicts: dict[str, Verdict], jobs: Jobs, reserve: Reserve) -> dict[str, Verdict]:
    """Say what is reserved for whom, of all who wait for capacity."""
    if not reserve.reservations:
        return verdicts
    notes = {
        key: reserve.note(jobs[key], wants_more=said.wish is not None) for key, said in verdicts.items() if key in jobs
    }
    return {key: _noting(said, notes.get(key, "")) for key, said in verdicts.items()}


def _set_aside(
    jobs: Jobs, search: FaultSearch, untried: Mapping[str, str], wishes: Mapping[str, Wish]
) -> dict[str, Verdict]:
    """Those for which a policy says nothing now. One that was not tried keeps its wish, for it may be sound."""
    unclear = {key: Verdict(why=untried_reason(policy), wish=wishes.get(key)) for key, policy in untried.items()}
    faulty = [each for each in search.faulty.values() if each.policy and each.job in jobs]
    return unclear | {each.job: Verdict(why=each.reason) for each in faulty}


def _together(
    verdicts: Mapping[str, Verdict], search: FaultSearch, untried: Iterable[str], *wakes_s: float | None
) -> Decisions:
    return Decisions(
        actions=tuple(v.action for v in verdicts.values() if v.action),
        wake_s=_earliest(*wakes_s, *(verdict.wake_s for verdict in verdicts.values())),
        why={key: v.why for key, v in verdicts.items()},
        wishes={key: v.wish for key, v in verdicts.items() if v.wish},
        failures=tuple(search.faulty.values()),
        untried=tuple(untried),
    )


def _earliest(*wakes_s: float | None) -> float | None:
    return min((wake_s for wake_s in wakes_s if wake_s is not None), default=None)
