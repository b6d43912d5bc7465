"""Repeat decisions that the launcher does not act on.

Such a decision was purged, or the launcher could not read it, or there is no launcher. It is
repeated as a new revision. A launcher that has it already changes nothing. The signs of an action:

    pending             its cluster spec is published, or one of its new pods exists, is ready, or
                        has ended; from then on the launcher's own timers apply
    a suspension        no node lists a pod of the job that is not being deleted
    a change in place   no node lists a pod with its earlier size

The n-th repetition comes repeat_s * 2^(n-1) after the decision that it repeats. After `repeat_max`
of them the next ones come at equal times, at least `backoff_max_s` apart: a launcher that is away
for long finds few of them, and a decision is never given up. Law: a job with a decision without a
sign of an action has a time for the next look.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from services.allocator.settings import Rules
from services.allocator.state.job import Job, job_of
from services.allocator.steps.verdict import Verdict
from shared.messages import AllocationDecided, CapacityChanged, OwnPod, Resources

Nodes = Mapping[str, CapacityChanged]
REMEDY = "the launcher does not act on it: see the launcher's log and `weir dead-letters`"
LEAST_S = 1.0
"""Shortest wait between two looks."""


def repeat_ignored_decisions(
    jobs: Iterable[Job], verdicts: Mapping[str, Verdict], nodes: Nodes, now: float, rules: Rules
) -> dict[str, Verdict]:
    """Return, of jobs with a pending decision, the verdicts with a time to look again, or with a
    repetition, by job key.
    """
    if not rules.repeat_max:
        return {}
    late: dict[str, Job] = {}
    updated: dict[str, Verdict] = {}
    for job in jobs:
        verdict = verdicts[job.key]
        if verdict.action is not None:
            continue
        due_s = repeat_due_s(job, rules)
        updated[job.key] = _with_wake(verdict, due_s)
        if now >= due_s or job.repeats >= rules.repeat_max:
            late[job.key] = job

    # Look at the pods of late jobs only.
    pods = pods_of(late, nodes)
    for key, job in late.items():
        updated[key] = _repeat_if_due(job, verdicts[key], pods[key], now, rules)
    return updated


def _repeat_if_due(
    job: Job, verdict: Verdict, pods: Sequence[OwnPod], now: float, rules: Rules
) -> Verdict:
    """Return the verdict of a job with an overdue decision. It is repeated when the next repetition
    is due; before that, the reason names the remedy. If it was acted on, only look again later.
    """
    if is_acted_on(job, pods):
        if job.pending_decision is None:
            return verdict  # a change of its nodes starts the next pass
        return _with_wake(verdict, now + max(rules.repeat_s, LEAST_S))
    if now >= repeat_due_s(job, rules):
        return _repeat_decision(job, verdict, rules)
    return _with_wake(replace(verdict, why=f"{verdict.why}; {REMEDY}"), repeat_due_s(job, rules))


def repeatable_decision(job: Job) -> AllocationDecided | None:
    """Return the newest decision, if the launcher may not have acted on it; no other one can still
    be repeated.
    """
    if job.pending_decision is not None:
        return job.pending_decision
    if job.active_decision is None:
        return job.suspension
    if job.resized_from and job.generation == job.running:
        return job.active_decision
    return None


def repeat_wait_s(job: Job, rules: Rules) -> float:
    """Return how long (s) the newest decision waits for an action of the launcher."""
    doublings = min(job.repeats, rules.repeat_max, 30)
    wait_s = max(rules.repeat_s, LEAST_S) * 2.0**doublings
    if job.repeats >= rules.repeat_max:
        return max(wait_s, rules.backoff_max_s)
    return wait_s


def repeat_due_s(job: Job, rules: Rules) -> float:
    """Return the time (s) at which the newest decision is repeated, unless the launcher acts on it
    before.
    """
    return max(job.sent_s, job.abandoned_s) + repeat_wait_s(job, rules)


def pods_of(keys: Collection[str], nodes: Nodes) -> dict[str, list[OwnPod]]:
    """Return the pods of these jobs that nodes list, by job key."""
    found: dict[str, list[OwnPod]] = {key: [] for key in keys}
    if not found:
        return found
    for node in nodes.values():
        for pod in node.own:
            key = job_of(pod)
            if key in found:
                found[key].append(pod)
    return found


def is_acted_on(job: Job, pods: Sequence[OwnPod]) -> bool:
    """Return True if the launcher acted on the pending decision. `pods`: the job's listed pods."""
    pending = job.pending_decision
    if pending is None and job.active_decision is None:
        return all(pod.terminating for pod in pods)
    if pending is None:
        return not _has_old_sizes(job, pods)
    if job.acted_on == pending.generation:
        return True
    new_pods = job.new_pods(pending)
    if not new_pods.isdisjoint(job.exits):
        return True
    return any(pod.pod in new_pods for pod in pods)


def _has_old_sizes(job: Job, pods: Sequence[OwnPod]) -> bool:
    """Return True if a pod is listed with its size before a change in place."""
    decided = {}
    for task in job.active_decision.tasks if job.active_decision else ():
        decided[job.pod(task)] = _millicores_and_mib(task.resources)
    for pod in pods:
        listed = _millicores_and_mib(pod.resources)
        if listed == decided.get(pod.pod, listed):
            continue
        earlier = job.resized_from.get(pod.pod, ())
        if any(listed == _millicores_and_mib(size) for size in earlier):
            return True
    return False


def _millicores_and_mib(resources: Resources) -> tuple[int, int]:
    """Return CPU and memory in the units of Kubernetes."""
    return round(resources.cpu * 1000), round(resources.memory_gib * 1024)


def _repeat_decision(job: Job, verdict: Verdict, rules: Rules) -> Verdict:
    """Repeat the pending decision, if there is one, as a new revision."""
    pending = repeatable_decision(job)
    if pending is None:
        return verdict
    reason = _repeat_reason(job, pending, rules)
    generation = job.generation
    if not pending.tasks and pending.generation < job.generation:  # it tried to start meanwhile
        generation = job.next_generation
    again = replace(pending, generation=generation, revision=job.revision + 1, reason=reason)
    return replace(verdict, why=reason, action=again)


def _repeat_reason(job: Job, pending: AllocationDecided, rules: Rules) -> str:
    """Return the reason of a repeated decision: the number of the repetition, the wait for the
    launcher (s), and the first reason.
    """
    number = job.repeats + 1
    times = f"{number} times"
    if number <= rules.repeat_max:
        times = f"{number} of {rules.repeat_max}"
    wait_s = repeat_wait_s(job, rules)
    return (
        f"repeated ({times}), not acted on by the launcher within {wait_s:g} s: "
        f"{first_reason(pending)}"
    )


def first_reason(pending: AllocationDecided) -> str:
    """Return the reason of the decision without the prefix of earlier repetitions."""
    if pending.reason.startswith("repeated ("):
        return pending.reason.partition(" s: ")[2]
    return pending.reason


def count_unanswered(jobs: Mapping[str, Job], nodes: Nodes) -> int:
    """Return the number of jobs with a repeated decision that the launcher has not acted on yet."""
    repeated: dict[str, Job] = {}
    for key, job in jobs.items():
        if job.repeats and repeatable_decision(job):
            repeated[key] = job
    pods = pods_of(repeated, nodes)
    count = 0
    for key, job in repeated.items():
        if not is_acted_on(job, pods[key]):
            count += 1
    return count


def _with_wake(verdict: Verdict, wake_s: float) -> Verdict:
    """Return the verdict with this time (s) to look again, unless it has an earlier one."""
    if verdict.wake_s is not None:
        wake_s = min(verdict.wake_s, wake_s)
    return replace(verdict, wake_s=wake_s)
