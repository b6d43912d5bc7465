"""Decisions that nobody acts on.

A decision in flight counts as acted on once its cluster spec is published, or one of its new pods exists, is ready, or
has ended; from then on the launcher's own timers bring it on or abandon it. One that is not acted on was missed: it was
purged, or the launcher could not read it, or no launcher is there. It is repeated as a new revision of the same
generation, which changes nothing for a launcher that has it already. The n-th repetition comes

    repeat_s * 2^(n-1) after the decision that it repeats, at most `repeat_max` times

so a launcher that is away for long finds few of them. Law: a job with a decision in flight has a time to look again.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from services.allocator.job import Job
from services.allocator.rules import Rules
from services.allocator.verdict import Verdict
from shared.messages import AllocationDecided, CapacityChanged

LEAST_S = 1.0
"""Shortest wait between two looks."""


def attend(job: Job, verdict: Verdict, nodes: Mapping[str, CapacityChanged], now: float, rules: Rules) -> Verdict:
    """Return the verdict with a time to look again, or with the repetition of a decision that nobody acts on."""
    pending = job.flies
    if pending is None or not pending.tasks or verdict.action is not None or not rules.repeat_max:
        return verdict
    wait_s = repeat_wait_s(job, rules)
    if now < job.sent_s + wait_s:
        return _with_wake(verdict, job.sent_s + wait_s)
    if is_acted_on(job, pending, nodes):
        return _with_wake(verdict, now + max(rules.repeat_s, LEAST_S))
    if job.repeats >= rules.repeat_max:
        why = f"{verdict.why}; the launcher does not act on it: look at its log, and at `weir dead-letters`"
        return _with_wake(replace(verdict, why=why), now + max(rules.backoff_max_s, LEAST_S))
    reason = (
        f"repeated ({job.repeats + 1} of {rules.repeat_max}), not acted on by the launcher within {wait_s:g} s: "
        f"{first_reason(job, pending)}"
    )
    return replace(verdict, why=reason, action=replace(pending, revision=job.revision + 1, reason=reason))


def repeat_wait_s(job: Job, rules: Rules) -> float:
    """How long the newest decision waits for somebody to act on it."""
    return max(rules.repeat_s, LEAST_S) * 2.0 ** min(job.repeats, 30)


def is_acted_on(job: Job, pending: AllocationDecided, nodes: Mapping[str, CapacityChanged]) -> bool:
    if job.acted_on == pending.generation:
        return True
    pods = job.new_pods(pending)
    if pods & job.exits.keys():
        return True
    return any(own.pod in pods and own.namespace == pending.namespace for seen in nodes.values() for own in seen.own)


def first_reason(job: Job, pending: AllocationDecided) -> str:
    """The reason of the decision, without what earlier repetitions put in front of it."""
    return pending.reason.partition(" s: ")[2] if job.repeats else pending.reason


def count_unanswered(jobs: Mapping[str, Job]) -> int:
    """How many jobs have a decision in flight that was repeated, and that nobody has acted on yet."""
    return sum(job.repeats > 0 and job.coming is not None and job.acted_on != job.coming for job in jobs.values())


def _with_wake(verdict: Verdict, wake_s: float) -> Verdict:
    return replace(verdict, wake_s=wake_s if verdict.wake_s is None else min(verdict.wake_s, wake_s))
