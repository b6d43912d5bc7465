"""The time or the event that gives the job more without any action by a person.

    1  time alone: stabilisation, cooldown, the policy's own delays
    2  the generation in flight takes over: the job's own, then those of all jobs
    3  a report of the present speed, alone or after 2
    4  the wanted changes of all jobs, one decision after the other: others shrink first

The answer is the first of these after which the decision gives the job more, with the further time
that this takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from services.allocator.decide import decide
from services.allocator.placement.amounts import smallest_enough
from services.allocator.settings import Rules
from services.allocator.state.job import Job
from services.allocator.state.job_folds import JOB_FOLDS
from services.allocator.state.policy_view import size_of
from services.allocator.state.state import State, without_tables
from services.allocator.steps.resize_conditions import PendingChange
from services.whatif.explain.counterfactual import (
    AnyChange,
    Reports,
    Settles,
    Trains,
    Waits,
    find_outcome,
    fold_actions,
    landed_state,
    larger_decision,
    with_generations_landed,
    without_timers,
)
from services.whatif.explain.explanation import Means, expected_speed, tasks_held
from shared.messages import AllocationDecided, ProgressReported

WAKES = 32
"""The most times that the clock is set forward to the allocator's next wake time."""
LONGEST_S = 1800
"""A policy's own times are searched for this time. Later, a policy may change even a job that never
reports.
"""
PLENTY = 10**9
"""The number of examples to apply for a job that has never reported it."""

Rung = tuple[tuple[AnyChange, ...], State]


def by_waiting(
    state: State, key: str, now: float, rules: Rules, wishes: Mapping[str, PendingChange]
) -> Means | None:
    """Return the first of the steps above with which the job gets more, and its time."""
    for changes, there in _waiting_steps(state, key, now, rules):
        found = _in_time(there, key, now, rules, wishes)
        if found is None:
            continue
        until_s, given = found
        if not changes or until_s > now:
            changes = (*changes, Waits(until_s=until_s))
        return Means(changes=changes, gives=tasks_held(given))
    return _by_settling(state, key, now, rules)


def _by_settling(state: State, key: str, now: float, rules: Rules) -> Means | None:
    """Return step 4 of the list above: the wanted changes of all jobs are carried out.

    A report of the job comes first if the job gets no more without it.
    """
    there = with_generations_landed(state, now)
    report = _missing_report(there, key, rules)
    choices: list[tuple[Reports, ...]] = [()]
    if report is not None:
        choices.append((report,))
    for reports in choices:
        heard_there = with_report(there, key, now, *reports)
        found = find_outcome(heard_there, key, now, rules)
        if found.given is None:
            continue
        settles = Settles(jobs=_others_decided(key, state, found.state))
        return Means(
            changes=(*_own_pending_generation(state, key), settles, *reports),
            gives=tasks_held(found.given),
        )
    return None


def _others_decided(key: str, before: State, after: State) -> tuple[str, ...]:
    """Return the other jobs about which something was decided in between."""
    others = []
    for name, job in after.jobs.items():
        if name == key:
            continue
        if name not in before.jobs or before.jobs[name].revision != job.revision:
            others.append(name)
    return tuple(others)


def settled_states(state: State, key: str, now: float, rules: Rules) -> Iterator[Rung]:
    """Yield the states after all of this has happened, in which remedies are tried.

    Each state comes with the job's own changes that lead to it. For a job that has never reported,
    the state without its report is yielded as well.
    """
    job = state.jobs[key]
    there = landed_state(state, now)
    own = _own_pending_generation(state, key)
    report = _missing_report(there, key, rules)
    if report is None or job.progress is None:
        yield own, there
    if report is not None:
        yield (*own, report), with_report(there, key, now, report)


# ---------------------------------------------------------------- one thing after the other


def _waiting_steps(state: State, key: str, now: float, rules: Rules) -> Iterator[Rung]:
    """Yield the steps 1 to 3 of the list above: the changes, and the state after them."""
    rungs = _steps_without_report(state, key, now)
    yield from rungs
    for changes, there in rungs:
        report = _missing_report(there, key, rules)
        if report is not None:
            yield (*changes, report), with_report(there, key, now, report)


def _steps_without_report(state: State, key: str, now: float) -> list[Rung]:
    """Return steps 1 and 2: no change, the job's own generation in flight, those of all jobs."""
    own = _own_pending_generation(state, key)
    everybody: list[Trains] = []
    for each in state.jobs:
        everybody += _own_pending_generation(state, each)
    rungs: list[Rung] = [((), state)]
    if own:
        own_lands = with_generations_landed(state, now, {key})
        rungs.append((own, own_lands))
    if len(everybody) > len(own):
        all_land = with_generations_landed(state, now)
        rungs.append((tuple(everybody), all_land))
    return rungs


def _own_pending_generation(state: State, key: str) -> tuple[Trains, ...]:
    """Return the generation in flight of a job; empty if there is none."""
    coming = state.jobs[key].pending_generation
    if coming is None:
        return ()
    return (Trains(job=key, generation=coming),)


def _in_time(
    state: State, key: str, now: float, rules: Rules, wishes: Mapping[str, PendingChange]
) -> tuple[float, AllocationDecided] | None:
    """Return the time at which the job gets more if nothing else happens, and the decision.

    First try the times at which the allocator decides because of its timers. If none helps, also
    try the time at which the policy itself wants more.
    """
    found = _first_larger_decision(state, key, now, rules, wishes)
    if found is not None:
        return found
    look_s = _wants_more_at_s(state, key, now, rules)
    if look_s is None:
        return None
    return _first_larger_decision(state, key, now, rules, wishes, look_s)


def _first_larger_decision(
    state: State,
    key: str,
    now: float,
    rules: Rules,
    wishes: Mapping[str, PendingChange],
    look_s: float = 0.0,
) -> tuple[float, AllocationDecided] | None:
    """Decide at each wake time, and at `look_s`, until the job is given more.

    Decisions about other jobs are folded meanwhile, but their generations do not take over.
    """
    job = state.jobs[key]
    for _ in range(WAKES):
        found = decide(state, now, rules, wishes)
        wishes = found.pending_changes
        given = larger_decision(found, job)
        if given is not None:
            return now, given
        if found.actions:
            state = fold_actions(state, found.actions, now)
            if key not in state.jobs:
                return None
            continue
        next_s = _next_look_s(found.wake_s, look_s, now)
        if next_s is None:
            return None
        now = next_s
    return None


def _next_look_s(wake_s: float | None, look_s: float, now: float) -> float | None:
    """Return the earlier of the two times; times in the past do not count."""
    times = [at_s for at_s in (wake_s, look_s) if at_s is not None and at_s > now]
    return min(times, default=None)


def _wants_more_at_s(state: State, key: str, now: float, rules: Rules) -> float | None:
    """Return the time, to the second, at which a decision without timers gives the job more.

    The allocator's timers may delay the real decision.
    """
    job = state.jobs[key]
    at_once = without_timers(rules)

    def wants_more(seconds: int) -> bool:
        found = decide(state, now + seconds, at_once)
        return larger_decision(found, job) is not None

    seconds = smallest_enough(LONGEST_S, wants_more)
    return None if seconds is None else now + seconds


# ---------------------------------------------------------------- a report that is missing


def _missing_report(state: State, key: str, rules: Rules) -> Reports | None:
    """Return the report that the job would make; None if its speed is known, or nothing trains."""
    job = state.jobs.get(key)
    if job is None or job.active_decision is None or job.pending_generation is not None:
        return None
    if _is_known(job, job.active_decision):
        return None
    speed = expected_speed(state, job, rules)
    return Reports(generation=job.active_decision.generation, samples_per_second=speed)


def _is_known(job: Job, runs: AllocationDecided) -> bool:
    """Return True if the job has reported its speed at its size."""
    if job.progress is None or job.progress.generation != job.running:
        return False
    size = size_of(runs)
    sizes_seen = {(known.ps, known.workers, known.batch) for known in job.observed}
    return (size.ps, size.workers, runs.batch) in sizes_seen


def with_report(state: State, key: str, now: float, *reports: Reports) -> State:
    """Fold these reports. Each one has the progress of the job's last real report."""
    for report in reports:
        job = state.jobs[key]
        fact = _progress_report(job, report)
        told: Job = JOB_FOLDS[ProgressReported](job, fact, now)
        jobs = state.jobs | {key: told}
        state = replace(without_tables(state), jobs=jobs)
    return state


def _progress_report(job: Job, report: Reports) -> ProgressReported:
    """Return the next progress report of a job, with an assumed speed and without further progress.
    A job without an earlier report gets a total (`PLENTY` samples) that it does not reach.
    """
    first = ProgressReported(
        job=job.request.job,
        namespace=job.request.namespace,
        uid=job.uid,
        generation=report.generation,
        step=1,
        epoch=0,
        samples=0,
        total_samples=PLENTY,
        samples_per_second=report.samples_per_second,
    )
    last = job.progress
    if last is None:
        return first
    return replace(
        first,
        step=last.step + 1,
        epoch=last.epoch,
        samples=last.samples,
        total_samples=last.total_samples,
        profile=last.profile,
    )
