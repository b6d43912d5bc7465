"""An explanation of a job's size at a moment, and of the changes that would give it a larger one.

1  its tasks, and the decision in flight                     from the state
2  the last decision, and the event that led to it           from the log
3  the obstacle to a larger size                             `decide` on that state
4  the remedies: time and facts that need no person,         `waiting.py`
   otherwise changes by a person;                            `remedies.py`
   and the speed of a larger size                            `explanation.py`
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from services.allocator.decide import Decisions, decide
from services.allocator.job_views import closed_view, phase_of, speed_of
from services.allocator.policy_calls import unknown_policies
from services.allocator.settings import Rules
from services.allocator.state.job import Job
from services.allocator.state.state import ClosedJob
from services.allocator.steps.resize_conditions import change_due_s, retry_s
from services.whatif.event_log import LoggedDecision, Moment
from services.whatif.explain.counterfactual import AnyChange, bounds_of
from services.whatif.explain.explanation import (
    DecisionRecord,
    Explanation,
    Means,
    speed_prospect,
    tasks_held,
)
from services.whatif.explain.remedies import find_obstacle, find_remedies
from services.whatif.explain.waiting import by_waiting, settled_states
from shared.messages import AllocationDecided, JobFinished

OVER = "it is over"
LEFT_OUT = "the obstacles to a larger size are left out"


def explain_job(moment: Moment, key: str, rules: Rules) -> Explanation | None:
    """Explain the job `<namespace>.<job>`. Return None if there is no such job at the moment."""
    job = moment.state.jobs.get(key)
    if job is not None:
        return _of_open(moment, job, rules)
    closed = moment.state.closed.get(key)
    if closed is not None:
        return _of_closed(moment, closed, rules)
    return None


def _of_closed(moment: Moment, closed: ClosedJob, rules: Rules) -> Explanation:
    """Explain a job that has ended: its last phase, its progress and the reason. It has no pending
    decision, and nothing would give it more.
    """
    view = closed_view(closed)
    found = _without_obstacle(moment, closed.job, rules)
    return replace(
        found,
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
    """Explain a job that has not ended, with the speed of a larger size. The obstacle is left out
    if a policy is unknown here, because then the decision cannot be repeated.
    """
    state = moment.state
    found = _without_obstacle(moment, job, rules)
    found = replace(found, prospect=speed_prospect(state, job.key, rules))
    unasked = unknown_policies(state, LEFT_OUT)
    if unasked:
        return replace(found, unasked=unasked)
    return _with_obstacle(found, moment, job, rules)


def _with_obstacle(found: Explanation, moment: Moment, job: Job, rules: Rules) -> Explanation:
    """Return the explanation with the obstacle to a larger size, and the means against it."""
    decisions = decide(moment.state, moment.at_s, rules, moment.wishes)
    why = decisions.why.get(job.key, "")
    if _is_finished(decisions, job.key):
        return replace(found, why=why, nothing=why)
    means, nothing = _find_means(moment, job.key, rules)
    until_s = _until_s(decisions, job, moment.at_s, rules)
    return replace(
        found,
        why=why,
        until_s=until_s,
        means=means,
        nothing=nothing,
    )


def _find_means(moment: Moment, key: str, rules: Rules) -> tuple[tuple[Means, ...], str]:
    """Return the means that help; if there are none, the reason why nothing helps."""
    now = moment.at_s
    soon = by_waiting(moment.state, key, now, rules, moment.wishes)
    if soon is not None:
        return (soon,), ""
    nothing = ""
    for changes, there in settled_states(moment.state, key, now, rules):
        found = find_remedies(there, key, now, rules)
        if found:
            return _with_changes_before(found, changes), ""
        nothing = find_obstacle(there, key, now, rules)
    return (), nothing


def _with_changes_before(
    found: tuple[Means, ...], changes: tuple[AnyChange, ...]
) -> tuple[Means, ...]:
    """Return the means with the changes that have to come first."""
    whole = []
    for means in found:
        all_changes = (*changes, *means.changes)
        whole.append(replace(means, changes=all_changes))
    return tuple(whole)


def _is_finished(found: Decisions, key: str) -> bool:
    """Return True if these decisions finish the job."""
    finished = [action.key() for action in found.actions if isinstance(action, JobFinished)]
    return key in finished


def _until_s(found: Decisions, job: Job, now: float, rules: Rules) -> float | None:
    """Return the end of the allocator's timer that the job waits for, if there is one."""
    due = 0.0
    wish = found.pending_changes.get(job.key)
    if wish:
        due = change_due_s(wish, job.resumed_s, rules)
    until_s = max(retry_s(job, rules), due)
    return until_s if until_s > now else None


# ---------------------------------------------------------------- its tasks, and the last decision


def _without_obstacle(moment: Moment, job: Job, rules: Rules) -> Explanation:
    """Return the explanation without the obstacle and the means against it: the job's tasks,
    progress and last decision, from the state and the log.
    """
    request = job.request
    progress = job.progress
    return Explanation(
        job=request.job,
        namespace=request.namespace,
        uid=job.uid,
        at_s=moment.at_s,
        phase=phase_of(job),
        since_s=job.asked_s if job.running is None else job.resumed_s,
        policy=request.policy or rules.policy,
        priority=request.priority,
        bounds=bounds_of(request),
        samples=progress.samples if progress else 0,
        total_samples=progress.total_samples if progress else 0,
        samples_per_second=speed_of(job),
        reported_s=job.recent[-1].at_s if job.recent else None,
        runs=tasks_held(job.active_decision) if job.active_decision else None,
        comes=tasks_held(job.pending_decision) if job.pending_decision else None,
        ground=_decision_record(moment.decided, job.newest_decision),
    )


def _decision_record(
    decided: Mapping[int, LoggedDecision], last: AllocationDecided | None
) -> DecisionRecord | None:
    """Return the decision behind a job's tasks.

    If the beginning of the log is gone, the decision may be known from the state only; then its
    event is unknown.
    """
    if last is None:
        return None
    known = decided.get(last.revision)
    return DecisionRecord(
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
