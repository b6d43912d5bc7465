"""Would the job get more if everybody just waited? For how long, and for what?

    1  time alone: stabilisation, cooldown, what a policy itself waits for
    2  the generation in flight: the job's own, then everybody's
    3  a report of the speed that it has now, alone or after 2
    4  all that is wanted of all jobs now, one after the other: others give way first

The first of these that makes the decision give it more is the answer, with the time that it takes from then on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from services.allocator.bisection import least
from services.allocator.decide import decide
from services.allocator.explaining.aftermath import given_more, outcome, rested, said, trained, without_timers
from services.allocator.explaining.change import AnyChange, Reports, Settles, Trains, Waits
from services.allocator.explaining.explanation import Means, holding
from services.allocator.explaining.prospect import expected_speed
from services.allocator.job import OF_JOB, Job
from services.allocator.rules import Rules
from services.allocator.seen import size_of
from services.allocator.state import State
from services.allocator.timing import Wish
from shared.messages import AllocationDecided, ProgressReported

WAKES = 32
"""So often the clock is set forward to when the allocator would look again."""
LONGEST_S = 1800
"""A policy's own times are looked for up to here: before a job that never reports may be changed again all the same."""
PLENTY = 10**9
"""Examples left of a job that has never said how many."""

Rung = tuple[tuple[AnyChange, ...], State]


def by_waiting(state: State, key: str, now: float, rules: Rules, wishes: Mapping[str, Wish]) -> Means | None:
    for changes, there in _rungs(state, key, now, rules):
        found = _in_time(there, key, now, rules, wishes)
        if found is not None:
            until_s, given = found
            late = () if changes and until_s <= now else (Waits(until_s=until_s),)
            return Means(changes=(*changes, *late), gives=holding(given))
    return _by_settling(state, key, now, rules)


def _by_settling(state: State, key: str, now: float, rules: Rules) -> Means | None:
    """All at once, round after round; with a report only where it does not go without."""
    report = _report(trained(state, now), key, rules)
    for reports in ((), (report,)) if report else ((),):
        found = outcome(heard(trained(state, now), key, now, *reports), key, now, rules)
        if found.given:
            others = tuple(name for name in found.state.jobs if _moved(state, found.state, name) and name != key)
            return Means(changes=(*_own(state, key), Settles(jobs=others), *reports), gives=holding(found.given))
    return None


def _moved(before: State, after: State, key: str) -> bool:
    return key not in before.jobs or before.jobs[key].revision != after.jobs[key].revision


def grounds(state: State, key: str, now: float, rules: Rules) -> Iterator[Rung]:
    """Where all of this has happened: the ground on which other changes are tried. What the job needs for it comes
    first; a job that has never said anything may not need to.
    """
    job = state.jobs[key]
    there = rested(trained(state, now), now)
    own, report = _own(state, key), _report(there, key, rules)
    if report is None or job.progress is None:
        yield own, there
    if report is not None:
        yield (*own, report), heard(there, key, now, report)


# ---------------------------------------------------------------- one thing after the other


def _rungs(state: State, key: str, now: float, rules: Rules) -> Iterator[Rung]:
    own, all_ = _own(state, key), tuple(flight for each in state.jobs for flight in _own(state, each))
    rungs: list[Rung] = [((), state)]
    rungs += [(own, trained(state, now, {key}))] if own else []
    rungs += [(all_, trained(state, now))] if len(all_) > len(own) else []
    yield from rungs
    for changes, there in rungs:
        report = _report(there, key, rules)
        if report is not None:
            yield (*changes, report), heard(there, key, now, report)


def _own(state: State, key: str) -> tuple[Trains, ...]:
    """What is in flight of a job."""
    coming = state.jobs[key].coming
    return () if coming is None else (Trains(job=key, generation=coming),)


def _in_time(
    state: State, key: str, now: float, rules: Rules, wishes: Mapping[str, Wish]
) -> tuple[float, AllocationDecided] | None:
    """By the allocator's timers; or once the policy itself, whose own times have none, wants more."""
    found = _awake(state, key, now, rules, wishes)
    if found is not None:
        return found
    look_s = _wants_more_s(state, key, now, rules)
    return None if look_s is None else _awake(state, key, now, rules, wishes, look_s)


def _awake(
    state: State, key: str, now: float, rules: Rules, wishes: Mapping[str, Wish], look_s: float = 0.0
) -> tuple[float, AllocationDecided] | None:
    """As the allocator wakes, each time that it asked for, and at `look_s`, until it gives the job more. What others
    are given meanwhile, they have; but it does not come true.
    """
    job = state.jobs[key]
    for _ in range(WAKES):
        found = decide(state, now, rules, wishes)
        given, wishes = given_more(found, job), found.wishes
        if given is not None:
            return now, given
        later = [at_s for at_s in (found.wake_s, look_s) if at_s is not None and at_s > now]
        if found.actions:
            state = said(state, found.actions, now)
        elif later:
            now = min(later)
        else:
            return None
        if key not in state.jobs:
            return None
    return None


def _wants_more_s(state: State, key: str, now: float, rules: Rules) -> float | None:
    """To the second, when no timer of the allocator's counts. Whether it is given it then is another matter."""
    job, at_once = state.jobs[key], without_timers(rules)

    def wants_more(seconds: int) -> bool:
        return given_more(decide(state, now + seconds, at_once), job) is not None

    seconds = least(LONGEST_S, wants_more)
    return None if seconds is None else now + seconds


# ---------------------------------------------------------------- a report that has not come


def _report(state: State, key: str, rules: Rules) -> Reports | None:
    """None where its speed at this size is known, or nothing of it runs."""
    job = state.jobs.get(key)
    if job is None or job.runs is None or job.coming is not None or _known(job):
        return None
    return Reports(generation=job.runs.generation, samples_per_second=expected_speed(state, job, rules))


def _known(job: Job) -> bool:
    runs = job.runs
    if runs is None or job.progress is None or job.progress.generation != job.running:
        return False
    size = size_of(runs)
    return any((o.ps, o.workers, o.batch) == (size.ps, size.workers, runs.batch) for o in job.observed)


def heard(state: State, key: str, now: float, *reports: Reports) -> State:
    """With such a report of how far the job was when it last said so."""
    for report in reports:
        job = state.jobs[key]
        told: Job = OF_JOB[ProgressReported](job, _progress(job, report), now)
        state = replace(state, jobs=state.jobs | {key: told})
    return state


def _progress(job: Job, report: Reports) -> ProgressReported:
    last = job.progress
    return ProgressReported(
        job=job.request.job,
        namespace=job.request.namespace,
        uid=job.uid,
        generation=report.generation,
        step=last.step + 1 if last else 1,
        epoch=last.epoch if last else 0,
        samples=last.samples if last else 0,
        total_samples=last.total_samples if last else PLENTY,
        samples_per_second=report.samples_per_second,
        profile=last.profile if last else None,
    )
