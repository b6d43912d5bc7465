"""Decisions that nobody acts on.

A decision that was missed was purged, or the launcher could not read it, or no launcher is there. It is repeated as a
new revision, which changes nothing for a launcher that has it already. Whether somebody acted is seen by this:

    in flight           its cluster spec is published, or one of its new pods exists, is ready, or has ended; from then
                        on the launcher's own timers bring it on or abandon it
    a suspension        no node lists a pod of the job that is not being deleted
    a change in place   no node lists a pod with what it had before

The n-th repetition comes repeat_s * 2^(n-1) after the decision that it repeats. After `repeat_max` of them the next
come at equal times, `backoff_max_s` or more apart: a launcher that is away for long finds few of them, and a decision
is never given up. Law: a job with a decision that nobody acted on has a time to look again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

from msgspec.structs import replace

from services.allocator.job import Job
from services.allocator.rules import Rules
from services.allocator.verdict import Verdict
from shared.messages import AllocationDecided, CapacityChanged, OwnPod, Resources

Nodes = Mapping[str, CapacityChanged]
REMEDY = "the launcher does not act on it: look at its log, and at `weir dead-letters`"
LEAST_S = 1.0
"""Shortest wait between two looks."""


def attend(
    jobs: Iterable[Job], verdicts: Mapping[str, Verdict], nodes: Nodes, now: float, rules: Rules
) -> dict[str, Verdict]:
    """Return, of jobs with a pending decision, the verdicts with a time to look again, or with a repetition."""
    silent = [job for job in jobs if verdicts[job.key].action is None] if rules.repeat_max else []
    late = {job.key for job in silent if now >= due_s(job, rules) or job.repeats >= rules.repeat_max}
    pods = pods_of(late, nodes)
    attended: dict[str, Verdict] = {}
    for job in silent:
        if job.key in late:
            attended[job.key] = _attend_one(job, verdicts[job.key], pods[job.key], now, rules)
        else:
            attended[job.key] = _with_wake(verdicts[job.key], due_s(job, rules))
    return attended


def _attend_one(job: Job, verdict: Verdict, pods: Sequence[OwnPod], now: float, rules: Rules) -> Verdict:
    if is_acted_on(job, pods):  # what nodes show of the others wakes us
        return _with_wake(verdict, now + max(rules.repeat_s, LEAST_S)) if job.flies else verdict
    if now >= due_s(job, rules):
        return _repeat_decision(job, verdict, rules)
    return _with_wake(replace(verdict, why=f"{verdict.why}; {REMEDY}"), due_s(job, rules))


def pending_decision(job: Job) -> AllocationDecided | None:
    """Return the newest decision, if the launcher may not have acted on it; no other one can still be repeated."""
    if job.flies is not None:
        return job.flies
    if job.runs is None:
        return job.suspension
    return job.runs if job.resized_from and job.generation == job.running else None


def repeat_wait_s(job: Job, rules: Rules) -> float:
    """Return how long (s) the newest decision waits for the launcher to act on it."""
    wait_s = max(rules.repeat_s, LEAST_S) * 2.0 ** min(job.repeats, rules.repeat_max, 30)
    return wait_s if job.repeats < rules.repeat_max else max(wait_s, rules.backoff_max_s)


def due_s(job: Job, rules: Rules) -> float:
    """Return when (s) the newest decision is to be repeated, if nobody has acted on it by then."""
    return max(job.sent_s, job.abandoned_s) + repeat_wait_s(job, rules)


def pods_of(keys: Collection[str], nodes: Nodes) -> dict[str, list[OwnPod]]:
    """Return the pods of these jobs that are listed."""
    found: dict[str, list[OwnPod]] = {key: [] for key in keys}
    for own in chain.from_iterable(seen.own for seen in nodes.values()) if keys else ():
        key = f"{own.namespace}.{own.job}"
        if key in found:
            found[key].append(own)
    return found


def is_acted_on(job: Job, pods: Sequence[OwnPod]) -> bool:
    """Return whether somebody acted on the pending decision. `pods`: the job's, as nodes list them."""
    pending = job.flies
    if pending is None and job.runs is None:
        return all(own.terminating for own in pods)
    if pending is None:
        return not _has_old_sizes(job, pods)
    if job.acted_on == pending.generation:
        return True
    new = job.new_pods(pending)
    return bool(new & job.exits.keys()) or any(own.pod in new for own in pods)


def _has_old_sizes(job: Job, pods: Sequence[OwnPod]) -> bool:
    """Return whether a pod is listed as it was before a change in place."""
    decided = {job.pod(task): _millicores_and_mib(task.resources) for task in (job.runs.tasks if job.runs else ())}
    for own in pods:
        has, before = _millicores_and_mib(own.resources), map(_millicores_and_mib, job.resized_from.get(own.pod, ()))
        if has != decided.get(own.pod, has) and has in before:
            return True
    return False


def _millicores_and_mib(resources: Resources) -> tuple[int, int]:
    """Return CPU and memory in the units in which Kubernetes keeps them."""
    return round(resources.cpu * 1000), round(resources.memory_gib * 1024)


def _repeat_decision(job: Job, verdict: Verdict, rules: Rules) -> Verdict:
    pending = pending_decision(job)
    if pending is None:
        return verdict
    number = job.repeats + 1
    times = f"{number} of {rules.repeat_max}" if number <= rules.repeat_max else f"{number} times"
    wait_s = repeat_wait_s(job, rules)
    reason = f"repeated ({times}), not acted on by the launcher within {wait_s:g} s: {first_reason(pending)}"
    again = replace(pending, generation=job.generation, revision=job.revision + 1, reason=reason)
    if not pending.tasks and pending.generation < job.generation:  # it tried to start meanwhile
        again = replace(again, generation=job.next_generation)
    return replace(verdict, why=reason, action=again)


def first_reason(pending: AllocationDecided) -> str:
    """The reason of the decision, without what earlier repetitions put in front of it."""
    return pending.reason.partition(" s: ")[2] if pending.reason.startswith("repeated (") else pending.reason


def count_unanswered(jobs: Mapping[str, Job], nodes: Nodes) -> int:
    """Return how many jobs have a decision that was repeated, and that nobody has acted on yet."""
    repeated = {key: job for key, job in jobs.items() if job.repeats and pending_decision(job)}
    pods = pods_of(repeated, nodes)
    return sum(not is_acted_on(job, pods[key]) for key, job in repeated.items())


def _with_wake(verdict: Verdict, wake_s: float) -> Verdict:
    return replace(verdict, wake_s=wake_s if verdict.wake_s is None else min(verdict.wake_s, wake_s))
