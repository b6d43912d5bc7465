"""Why a job has what it has at a moment, and what it would take to get more.

1  what it has, and what is in flight                                     from the state
2  why: the last decision, and the event that led to it                   from the log
3  what stands in the way                                                 `decide`, at that moment, with its wishes
4  what it would take: time and facts that come by themselves, else       `waiting.py`, `remedies.py`
   what somebody could do; and whether more would be faster at all        `prospect.py`
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from services.allocator.decide import Decisions, decide
from services.allocator.explaining.change import bounds_of
from services.allocator.explaining.explanation import Explanation, Ground, Means, holding
from services.allocator.explaining.history import Decided, Moment
from services.allocator.explaining.prospect import prospect
from services.allocator.explaining.remedies import hindrance, remedies
from services.allocator.explaining.waiting import by_waiting, grounds
from services.allocator.job import Job
from services.allocator.rules import Rules
from services.allocator.state import Closed
from services.allocator.timing import due_s, retry_s
from services.allocator.unknown import unknown_policies
from services.allocator.view import closed_view, phase_of, speed_of
from shared.messages import AllocationDecided, JobFinished

OVER = "it is over"
LEFT_OUT = "what stands in the way of more is left out"


def explained(moment: Moment, key: str, rules: Rules) -> Explanation | None:
    """Of `<namespace>.<job>`; None where there is no such job at the moment."""
    if key in moment.state.jobs:
        return _of_open(moment, moment.state.jobs[key], rules)
    if key in moment.state.closed:
        return _of_closed(moment, moment.state.closed[key], rules)
    return None


def _of_closed(moment: Moment, closed: Closed, rules: Rules) -> Explanation:
    view = closed_view(closed)
    return replace(
        _as_it_is(moment, closed.job, rules),
        phase=view.phase,
        since_s=view.finished_s,
        samples=view.samples,
        total_samples=view.total_samples,
        samples_per_second=0.0,
        comes=None,
        why=view.why,
        nothing=OVER,
    )


def _of_open(moment: Moment, job: Job, rules: Rules) -> Explanation:
    if unasked := unknown_policies(moment.state, LEFT_OUT):
        return replace(_as_it_is(moment, job, rules), unasked=unasked, prospect=prospect(moment.state, job.key, rules))
    found = decide(moment.state, moment.at_s, rules, moment.wishes)
    why, ends = found.why.get(job.key, ""), _ends(found, job.key)
    means, nothing = ((), why) if ends else _means(moment, job.key, rules)
    return replace(
        _as_it_is(moment, job, rules),
        why=why,
        until_s=None if ends else _until_s(found, job, moment.at_s, rules),
        means=means,
        nothing=nothing,
        prospect=prospect(moment.state, job.key, rules),
    )


def _means(moment: Moment, key: str, rules: Rules) -> tuple[tuple[Means, ...], str]:
    """What helps; where nothing does, why not."""
    soon = by_waiting(moment.state, key, moment.at_s, rules, moment.wishes)
    if soon is not None:
        return (soon,), ""
    nothing = ""
    for changes, there in grounds(moment.state, key, moment.at_s, rules):
        found = remedies(there, key, moment.at_s, rules)
        if found:
            return tuple(replace(means, changes=(*changes, *means.changes)) for means in found), ""
        nothing = hindrance(there, key, moment.at_s, rules)
    return (), nothing


def _ends(found: Decisions, key: str) -> bool:
    return any(isinstance(action, JobFinished) and action.key() == key for action in found.actions)


def _until_s(found: Decisions, job: Job, now: float, rules: Rules) -> float | None:
    """To when it waits for a timer of the allocator's; None where it does not."""
    wish = found.wishes.get(job.key)
    until_s = max(retry_s(job, rules), due_s(wish, job.resumed_s, rules) if wish else 0.0)
    return until_s if until_s > now else None


# ---------------------------------------------------------------- what it has, and by which decision


def _as_it_is(moment: Moment, job: Job, rules: Rules) -> Explanation:
    progress = job.progress
    return Explanation(
        job=job.request.job,
        namespace=job.request.namespace,
        uid=job.uid,
        at_s=moment.at_s,
        phase=phase_of(job),
        since_s=job.resumed_s if job.running is not None else job.asked_s,
        policy=job.request.policy or rules.policy,
        priority=job.request.priority,
        bounds=bounds_of(job.request),
        samples=progress.samples if progress else 0,
        total_samples=progress.total_samples if progress else 0,
        samples_per_second=speed_of(job),
        reported_s=job.recent[-1].at_s if job.recent else None,
        runs=holding(job.runs) if job.runs else None,
        comes=holding(job.flies) if job.flies else None,
        ground=_ground(moment.decided, job.wanted),
    )


def _ground(decided: Mapping[int, Decided], last: AllocationDecided | None) -> Ground | None:
    """Of what it has, or is about to have. Where the log's beginning is gone, the state alone knows it."""
    if last is None:
        return None
    known = decided.get(last.revision)
    return Ground(
        decided_s=last.decided_s,
        generation=last.generation,
        revision=last.revision,
        reason=last.reason,
        gain_s=last.gain_s,
        cost_s=last.cost_s,
        cause=last.cause,
        event=known.event if known else None,
        alternatives=last.alternatives,
    )
