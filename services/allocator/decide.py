"""The main loop of the allocator: one pass over all jobs.

Law: facts in, actions out. `decide` reads the state and the time, and returns the actions to
publish, the time of the next pass, and the reason for every job. It publishes nothing itself. A job
gets one decision at a time. While a decision is pending, the job gets another one only to end it,
to replace lost tasks (step 2), to evacuate tasks (step 3), or to repeat a decision without effect
(step 7).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from services.allocator import failures
from services.allocator.failures import Failure, FaultSearch, isolate, untried_reason
from services.allocator.placement.claims import ReachableNodes
from services.allocator.placement.free_capacity import (
    free_nodes,
    remaining_pods,
    remaining_quotas,
    task_limits,
    with_cluster_quotas,
)
from services.allocator.placement.room import Room
from services.allocator.policies.contract import Target
from services.allocator.policy_calls import desired_sizes, jobs_by_policy
from services.allocator.settings import Rules
from services.allocator.state.job import Job
from services.allocator.state.releases import NOTHING_RELEASING, releasing_capacity
from services.allocator.state.state import State, tables_of
from services.allocator.state.table_updates import refresh_tables
from services.allocator.steps import (
    evacuation,
    memory_growth,
    repair,
    repetition,
    resize,
    slow_task_migration,
)
from services.allocator.steps.finish import finish, suspend
from services.allocator.steps.preemption import give_way
from services.allocator.steps.reservations import ReservationPlan
from services.allocator.steps.resize_conditions import PendingChange
from services.allocator.steps.verdict import Situation, Verdict
from shared.messages import AllocationDecided, JobFinished

Jobs = dict[str, Job]
"""The jobs by key, in the order of priority and submission."""
Step = Callable[[Situation], Verdict | None]
"""One step of a pass; None: it does not apply to this job."""
Note = Callable[[Job, Verdict], Verdict]
"""Add a note to a verdict."""


class Decisions(msgspec.Struct, frozen=True):
    """The actions to publish, the time of the next pass (None: after the next message), the reason
    for every job, and the changes that are wanted but not decided.
    """

    actions: tuple[AllocationDecided | JobFinished, ...] = ()
    wake_s: float | None = None
    why: dict[str, str] = {}
    pending_changes: dict[str, PendingChange] = {}
    failures: tuple[Failure, ...] = ()
    """The failures of the jobs that were set aside, because a policy or a step raised an error for
    them (`failures.py`).
    """
    untried: tuple[str, ...] = ()
    """The jobs that were set aside, because the search for the faulty ones did not reach them."""


def decide(
    state: State,
    now: float,
    rules: Rules,
    pending_changes: Mapping[str, PendingChange] | None = None,
    suspects: Sequence[Failure] = (),
    untried: Collection[str] = (),
) -> Decisions:
    """Return the decisions of one pass. If a policy or a step raises, the jobs that cause it are
    set aside.

    `pending_changes`, `suspects` and `untried`: results of the last pass.
    """
    search = FaultSearch([each for each in suspects if each.job in state.jobs], untried)
    rules = with_cluster_quotas(state, rules)
    state = refresh_tables(state, rules)
    try:
        return _decide_jobs(state, now, rules, pending_changes or {}, search)
    except Exception as error:
        if failures.RAISE_ALL or rules.strict:
            raise
        return _without_faulty(state, now, rules, pending_changes or {}, search, error)


def prepare_tables(state: State, rules: Rules) -> State:
    """Return the state with tables that are up to date, so that the next pass need not make
    them.
    """
    return refresh_tables(state, with_cluster_quotas(state, rules))


def _decide_jobs(
    state: State,
    now: float,
    rules: Rules,
    pending_changes: Mapping[str, PendingChange],
    search: FaultSearch,
    left_out: Collection[str] = (),
) -> Decisions:
    """Return the decisions of one pass. The jobs in `left_out` keep their capacity."""
    jobs = _by_priority(state, left_out)
    attention, quiescent = _split_by_attention(state, jobs)
    this_pass = _Pass(
        state, jobs, _open_room(state, attention, now, rules), now, rules, pending_changes
    )

    # 1. Finish jobs that are over, and suspend jobs for their users.
    this_pass.apply(_end_or_suspend, attention)
    # 2. Replace lost tasks, before another job may take the free capacity.
    this_pass.apply(repair.replace_lost_tasks, attention, this_pass.note_nodes)
    # 3. Evacuate tasks that have to leave their nodes. Then jobs with a pending decision wait, and
    #    the others are fitted into bounds that their users changed.
    this_pass.apply(evacuation.evacuate, attention)
    this_pass.apply(_wait_or_fit_bounds, attention)
    # 4. Reserve capacity for jobs that have waited too long or have a higher priority; others give
    #    way. Raise the memory of tasks that will need more, and move tasks that get too little CPU.
    this_pass.reserve_capacity()
    this_pass.apply(_raise_memory_or_migrate, attention)
    # 5. Ask each policy for the desired sizes of its jobs. Capacity that is being released counts
    #    as free.
    untried = this_pass.call_policies(search)
    # 6. Keep jobs that have their desired size. Start the waiting jobs, then resize the running
    #    ones, if room, gain and timing allow. A job with a reservation starts even if its policy
    #    fails with it, because others gave way to it.
    this_pass.keep_settled(quiescent)
    this_pass.apply(
        this_pass.start_or_resize, _waiting_first(this_pass.undecided()), this_pass.note_waiting
    )
    # 7. Add notes to the reasons, and repeat decisions that the launcher does not act on.
    this_pass.add_notes(attention)
    this_pass.repeat_ignored()
    search.clear(jobs, "")
    return this_pass.decisions(search, untried)


def _open_room(state: State, attention: Jobs, now: float, rules: Rules) -> Room:
    """Return the free capacity. A node takes no new tasks while tasks are sent away from it or
    starve there.
    """
    shunned = evacuation.nodes_losing_tasks(attention.values()) | slow_task_migration.slow_nodes(
        attention.values(), now, rules
    )
    quotas = rules.quotas
    return Room(
        free_nodes(state),
        remaining_quotas(state, quotas),
        remaining_pods(state, quotas),
        task_limits(quotas),
        shunned,
        tables_of(state).index,
    )


def _end_or_suspend(situation: Situation) -> Verdict | None:
    """Finish a job that is over, or suspend it for its user; None: neither applies."""
    return finish(situation.job, situation.now, situation.settings) or suspend(situation)


def _wait_or_fit_bounds(situation: Situation) -> Verdict | None:
    return resize.await_pending_decision(situation.job) or resize.fit_into_bounds(situation)


def _raise_memory_or_migrate(situation: Situation) -> Verdict | None:
    return memory_growth.raise_memory(situation) or slow_task_migration.migrate_slow_tasks(
        situation
    )


# ---------------------------------------------------------------- one pass


@dataclass(eq=False)
class _Pass:
    """The inputs that the steps of one pass share, and the verdicts. The first step that returns a
    verdict on a job decides it.
    """

    state: State
    jobs: Jobs
    room: Room
    now: float
    rules: Rules
    pending_changes: Mapping[str, PendingChange]

    def __post_init__(self) -> None:
        self.reach = ReachableNodes(self.state, self.rules)
        self.reserve = ReservationPlan(self.state, self.room, self.now, self.rules)
        self.releasing = NOTHING_RELEASING
        self.targets: Mapping[str, Target] = {}
        self.verdicts: dict[str, Verdict] = {}
        self.seen_jobs = tables_of(self.state).jobs
        self.set_aside: dict[str, Verdict] = {}  # of the jobs that a policy fails with

    def situation(self, job: Job) -> Situation:
        """Return the input of a step for one job. It is made anew for each step, because a pass
        finds the targets and the capacity that is being released as it goes on.
        """
        key = job.key
        return Situation(
            job,
            self.seen_jobs[key],
            self.room,
            self.now,
            self.rules,
            self.state.cause,
            self.state.opened_s,
            self.targets.get(key),
            self.pending_changes.get(key),
            self.releasing,
        )

    def undecided(self) -> Jobs:
        """Return the jobs without a verdict, in the order of priority and submission."""
        return {key: job for key, job in self.jobs.items() if key not in self.verdicts}

    def apply(self, step: Step, jobs: Jobs, note: Note | None = None) -> None:
        """Ask a step about each job without a verdict. New tasks go only to nodes that the job may
        use, and use nothing that is reserved from the job.
        """
        for key, job in jobs.items():
            if key in self.verdicts:
                continue
            self.reserve.hold_for(job)
            with self.reach.of(job, self.room):
                verdict = step(self.situation(job))
            if verdict is not None:
                self.verdicts[key] = note(job, verdict) if note else verdict

    def reserve_capacity(self) -> None:
        """Reserve capacity for waiting jobs, and make others give way."""
        self.reserve.plan(self.jobs, self.verdicts)
        for victim in self.reserve.victims:
            self.verdicts[victim.job.key] = give_way(self.situation(victim.job), victim)

    def call_policies(self, search: FaultSearch) -> Mapping[str, str]:
        """Get the desired sizes from each policy. Return the jobs that were not tried, with their
        policies.

        A policy is asked about all its jobs, as they were before this pass, because it shares the
        capacity among all of them. Its target for a job with a verdict is not used. Jobs that may
        use different nodes are asked about in groups (`ReachableNodes.groups`).
        """
        self.reserve.hold_all()
        self.releasing = releasing_capacity(
            self.state.releases, self.state.nodes, self.now, self.rules
        )
        cluster = self.releasing.added_to_nodes(self.room.nodes.values())
        raise_all = failures.RAISE_ALL or self.rules.strict
        untried: dict[str, str] = {}
        targets: dict[str, Target] = {}
        for group in self.reach.groups(self.jobs):
            jobs = self.jobs
            if len(group.jobs) < len(jobs):
                jobs = {key: job for key, job in jobs.items() if key in group.jobs}
            by_policy = jobs_by_policy(self.state, jobs)
            found, missed = desired_sizes(
                by_policy, group.nodes(cluster), self.now, search, raise_all
            )
            targets |= {key: target for key, target in found.items() if key in group.own}
            untried |= {key: policy for key, policy in missed.items() if key in group.own}
        self.targets = targets
        self._set_aside(search, untried)
        return untried

    def _set_aside(self, search: FaultSearch, untried: Mapping[str, str]) -> None:
        """Set aside the jobs that a policy fails with, except those with a reservation. A job that
        was not tried keeps its pending change, because the policy may work with it.
        """
        for key, policy in untried.items():
            self.set_aside[key] = Verdict(
                why=untried_reason(policy), pending_change=self.pending_changes.get(key)
            )
        for each in search.faulty.values():
            if each.policy and each.job in self.jobs:
                self.set_aside[each.job] = Verdict(why=each.reason)

        # A job with a reservation is decided all the same, because others gave way to it.
        verdicts = {}
        for key, verdict in self.set_aside.items():
            if key not in self.reserve.reservations:
                verdicts[key] = verdict
        self.verdicts = verdicts | self.verdicts

    def keep_settled(self, quiescent: Jobs) -> None:
        """Leave jobs alone that have their desired size, unless a quota or a reservation concerns
        them.
        """
        seen_jobs = self.seen_jobs
        quotas = self.rules.quotas
        reserved = self.reserve.reservations
        targets = self.targets
        verdicts = self.verdicts
        for key, job in quiescent.items():
            target = targets.get(key)
            if target is None or key in verdicts or key in reserved:
                continue
            if quotas and job.request.namespace in quotas:
                continue
            if resize.is_settled(seen_jobs[key], target):
                verdicts[key] = Verdict(why=target.reason)

    def start_or_resize(self, situation: Situation) -> Verdict:
        """Start or resize a job; one with a reservation starts even against its policy."""
        if self.reserve.reservations:
            target = self.reserve.start_target(situation)
            situation = replace(situation, target=target)
        return resize.start_or_resize(situation)

    # ------------------------------------------------------------ notes and repetitions

    def note_nodes(self, job: Job, verdict: Verdict) -> Verdict:
        """Add a note on what keeps the job from some of the nodes."""
        return _with_note(verdict, self.reach.note(job)) if verdict.action is None else verdict

    def note_waiting(self, job: Job, verdict: Verdict) -> Verdict:
        """Add the same note if the job waits, and a note if its policy fails with it."""
        if verdict.pending_change or job.newest_decision is None:
            verdict = self.note_nodes(job, verdict)
        if job.key in self.set_aside:
            verdict = _with_note(verdict, self.set_aside[job.key].why)
        return verdict

    def add_notes(self, attention: Jobs) -> None:
        """Add a note about tasks that wait to leave their nodes, and about reservations to all jobs
        that wait for capacity.
        """
        for key, job in attention.items():
            if job.leaving:
                self.verdicts[key] = _with_note(
                    self.verdicts[key], evacuation.describe_staying(job)
                )
        if not self.reserve.reservations:
            return
        for key, verdict in self.verdicts.items():
            if key in self.jobs:
                note = self.reserve.note(
                    self.jobs[key], wants_more=verdict.pending_change is not None
                )
                self.verdicts[key] = _with_note(verdict, note)

    def repeat_ignored(self) -> None:
        """Repeat decisions that the launcher does not act on."""
        pending = []
        for job in self.jobs.values():
            may_be = job.pending_generation is not None or job.running is None or job.resized_from
            if may_be and repetition.repeatable_decision(job):
                pending.append(job)
        if pending:
            nodes, verdicts = self.state.nodes, self.verdicts
            self.verdicts |= repetition.repeat_ignored_decisions(
                pending, verdicts, nodes, self.now, self.rules
            )

    def decisions(self, search: FaultSearch, untried: Mapping[str, str]) -> Decisions:
        """Combine the verdicts of this pass."""
        actions = []
        why = {}
        pending_changes = {}
        wakes_s = [self.reserve.wake_s, self.releasing.until_s, search.wake_s(untried, self.now)]
        for key, verdict in self.verdicts.items():
            why[key] = verdict.why
            wakes_s.append(verdict.wake_s)
            if verdict.action:
                actions.append(verdict.action)
            if verdict.pending_change:
                pending_changes[key] = verdict.pending_change

        return Decisions(
            actions=tuple(actions),
            wake_s=_earliest(*wakes_s),
            why=why,
            pending_changes=pending_changes,
            failures=tuple(search.faulty.values()),
            untried=tuple(untried),
        )


def _with_note(verdict: Verdict, note: str) -> Verdict:
    """Add a note to the reason of a verdict without an action."""
    if not note or verdict.action is not None:
        return verdict
    return replace(verdict, why=f"{verdict.why}; {note}")


def _earliest(*wakes_s: float | None) -> float | None:
    return min([wake_s for wake_s in wakes_s if wake_s is not None], default=None)


# ---------------------------------------------------------------- the jobs of one pass


def _by_priority(state: State, left_out: Collection[str]) -> Jobs:
    """Return the jobs that are not left out, in the order of priority and submission."""
    ranks = tables_of(state).ranks
    return {key: state.jobs[key] for key in ranks if key not in left_out}


def _split_by_attention(state: State, jobs: Jobs) -> tuple[Jobs, Jobs]:
    """Divide the jobs into those that may need something else than their policy's size, and all
    others.
    """
    marked = tables_of(state).needs_attention
    attention: Jobs = {}
    quiescent: Jobs = {}
    for key, job in jobs.items():
        if key in marked:
            attention[key] = job
        else:
            quiescent[key] = job
    return attention, quiescent


def _waiting_first(jobs: Jobs) -> Jobs:
    """Return the waiting jobs first, then the running ones."""
    waiting: Jobs = {}
    running: Jobs = {}
    for key, job in jobs.items():
        if job.running is None:
            waiting[key] = job
        else:
            running[key] = job
    return waiting | running


# ---------------------------------------------------------------- without the faulty ones


def _without_faulty(
    state: State,
    now: float,
    rules: Rules,
    pending_changes: Mapping[str, PendingChange],
    search: FaultSearch,
    error: Exception,
) -> Decisions:
    """Decide on the jobs that no step fails with; end the others if they are cancelled."""
    every = state.jobs.keys()

    def compute(keys: Sequence[str]) -> Decisions:
        return _decide_jobs(state, now, rules, pending_changes, search, every - frozenset(keys))

    found = isolate(compute, [*every], error, search)
    decisions = found.result or Decisions()
    left_out = {key: untried_reason("") for key in found.untried}
    for key, each in search.faulty.items():
        if key not in decisions.why:
            left_out[key] = each.reason
    ends = []
    for key in left_out:
        job = state.jobs.get(key)
        verdict = finish(job, now, rules) if job and job.cancelled else None
        if verdict and verdict.action:
            ends.append(verdict.action)
    untried = {*decisions.untried, *found.untried} - search.faulty.keys()
    kept_changes = {key: pending_changes[key] for key in found.untried if key in pending_changes}
    return replace(
        decisions,
        actions=(*decisions.actions, *ends),
        wake_s=_earliest(decisions.wake_s, search.wake_s(untried, now)),
        why=decisions.why | left_out,
        pending_changes=decisions.pending_changes | kept_changes,
        failures=tuple(search.faulty.values()),
        untried=tuple(sorted(untried)),
    )
