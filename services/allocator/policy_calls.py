"""Call the policies, and check their answers.

No policy is trusted, neither Weir's own nor a custom one. An exception, or a target outside of the
bounds of its job, is a failure. The jobs that cause it are set aside (`failures.py`), and the
policy decides on its other jobs.

A program that works on a copy of the state (a command, not the allocator) may lack custom policies
of the cluster. `decide` then calls the cluster's default policy, and `unknown_policies` reports it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from services.allocator.failures import FaultSearch, IsolationResult, isolate
from services.allocator.placement.placers import ROLES
from services.allocator.policies.contract import JobList, JobSnapshot, Node, Target
from services.allocator.policies.registry import POLICIES
from services.allocator.state.job import Job
from services.allocator.state.state import State, tables_of
from shared.messages import Alternative, Span


def desired_sizes(
    by_policy: Mapping[str, Sequence[JobSnapshot]],
    cluster: Sequence[Node],
    now: float,
    search: FaultSearch,
    raise_all: bool,
) -> tuple[dict[str, Target], dict[str, str]]:
    """Return the targets of all policies by job, and the jobs that were not tried, with their
    policies.

    The search knows the jobs that a policy fails with.
    """
    targets: dict[str, Target] = {}
    untried: dict[str, str] = {}
    for name, jobs in by_policy.items():
        try:
            targets |= call_policy(name, cluster, jobs, now)
        except Exception as error:
            if raise_all:
                raise
            found = _without_faulty(name, cluster, jobs, now, error, search)
            targets |= found.result or {}
            untried |= dict.fromkeys(found.untried, name)
        else:
            search.clear([job.key for job in jobs], name)
    return targets, untried


def call_policy(
    name: str, cluster: Sequence[Node], jobs: Sequence[JobSnapshot], now: float
) -> dict[str, Target]:
    """Return the targets of one policy, by job.

    Raises the policy's own exceptions, and `TypeError` or `ValueError` for a target that is not
    allowed.
    """
    jobs_by_key = {job.key: job for job in jobs}
    found: dict[str, Target] = {}
    for target in POLICIES[name](cluster, jobs, now):
        if type(target) is not Target:
            raise TypeError(f"it returned {target!r}, not a Target")
        key = target.job
        error = _target_error(target, jobs_by_key.get(key))
        if error is not None:
            raise error
        if key in found:
            raise ValueError("it returned several targets for one job")
        found[key] = target
    return found


def jobs_by_policy(state: State, jobs: Mapping[str, Job]) -> dict[str, JobList]:
    """Return these jobs as their policies see them, in the given order, by policy.

    Jobs that their users suspended are left out.
    """
    by_policy = tables_of(state).by_policy
    if len(jobs) == len(state.jobs):
        return by_policy
    found = {}
    for name, seen_jobs in by_policy.items():
        chosen = JobList([job for job in seen_jobs if job.key in jobs])
        if chosen:
            found[name] = chosen
    return found


def _without_faulty(
    name: str,
    cluster: Sequence[Node],
    jobs: Sequence[JobSnapshot],
    now: float,
    error: Exception,
    search: FaultSearch,
) -> IsolationResult[dict[str, Target]]:
    """Call a policy that failed again, without the jobs that it fails with."""
    by_key = {job.key: job for job in jobs}

    def compute(keys: Sequence[str]) -> dict[str, Target]:
        return call_policy(name, cluster, [by_key[key] for key in keys], now)

    return isolate(compute, [*by_key], error, search, name)


def _target_error(target: Target, job: JobSnapshot | None) -> Exception | None:
    """Return the error in a target; None: there is none. Runs for each job in each pass."""
    if not _is_text(target.reason):
        return TypeError(f"its reason for {target.job} is {target.reason!r}, not a text")
    for other in target.alternatives:
        if not _is_alternative(other):
            return TypeError(f"its alternatives for {target.job} are {target.alternatives!r}")
    if job is None:
        return ValueError(f"it returned a target for {target.job}, a job that it was not given")
    return _bound_error(target, job) or _number_error(target)


def _is_text(value: Any) -> bool:
    """Return True if a value is a text that can be part of a message."""
    if not isinstance(value, str):
        return False
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


def _is_alternative(value: Any) -> bool:
    """Return True if a value is an alternative that can be part of a message."""
    if not isinstance(value, Alternative) or not _is_text(value.why):
        return False
    return all(type(n) is int and n >= 0 for n in (value.ps, value.workers, value.batch))


def _bound_error(target: Target, job: JobSnapshot) -> ValueError | None:
    """Return the error for a number of a target that is no `int` (no message can have another
    type), or that exceeds the bounds of the job. A job may keep its present numbers.
    """
    ps = target.ps
    workers = target.workers
    batch = target.batch
    if not ps and not workers:
        return None

    request = job.request
    current = job.size
    keeps_size = current is not None and current.ps == ps and current.workers == workers
    keeps_batch = batch == job.batch
    if type(ps) is not int or not (keeps_size or request.ps.min <= ps <= request.ps.max):
        return _outside_bounds(request.ps, ps, f"ps for {target.job}")
    span = request.workers
    if type(workers) is not int or not (keeps_size or span.min <= workers <= span.max):
        return _outside_bounds(span, workers, f"workers for {target.job}")
    if type(batch) is not int or not (
        keeps_batch or request.batch.min <= batch <= request.batch.max
    ):
        return _outside_bounds(request.batch, batch, f"as the batch of {target.job}")
    return None


def _outside_bounds(span: Span, number: Any, meaning: str) -> ValueError:
    """Return the error for a number that is outside of the requested bounds. `meaning`: its name in
    the message.
    """
    return ValueError(
        f"it returned {number!r} {meaning}; the request allows {span.min} to {span.max}"
    )


def _number_error(target: Target) -> ValueError | None:
    """Return the error for a speed or a size of a task that is not a possible number."""
    # An infinite speedup is allowed: it asks for a try. A comparison with nan is False.
    if target.speedup is not None and not target.speedup >= 0:
        return ValueError(f"its `speedup` for {target.job} is {target.speedup!r}")
    if target.speed_now is not None and not target.speed_now >= 0:
        return ValueError(f"its `speed_now` for {target.job} is {target.speed_now!r}")
    if target.speedup_if_spread is not None and not target.speedup_if_spread >= 0:
        return ValueError(
            f"its `speedup_if_spread` for {target.job} is {target.speedup_if_spread!r}"
        )

    if target.sizes is None:
        return None
    for role in ROLES:
        size = getattr(target.sizes, role)
        amounts = (size.cpu, size.memory_gib, size.gpu)
        if not all(map(_is_amount, amounts)):
            return ValueError(f"its size of a {role} for {target.job} is {amounts!r}")
    return None


def _is_amount(amount: float) -> bool:
    return math.isfinite(amount) and amount >= 0


REMEDY = "set WEIR_ALLOCATOR_POLICIES={}, and start in the folder of its module"


def unknown_policies(state: State, consequence: str) -> str:
    """Return the policies that are not known, with a job of each and the remedy; empty: all are
    known.

    `consequence`: the consequence, for the text.
    """
    job_of_policy = _jobs_of_unknown_policies(state)
    if not job_of_policy:
        return ""
    unknown = sorted(job_of_policy)
    jobs = ", ".join([job_of_policy[policy].replace(".", "/") for policy in unknown])
    policies = ", ".join(unknown)
    remedy = REMEDY.format(",".join(unknown))
    return f"policy {policies} (of {jobs}) is not known here, so {consequence}; {remedy}"


def _jobs_of_unknown_policies(state: State) -> dict[str, str]:
    """Return one job of each policy that is not known."""
    job_of_policy = {}
    for key, job in sorted(state.jobs.items()):
        policy = job.request.policy
        if policy and policy not in POLICIES:
            job_of_policy[policy] = key
    return job_of_policy
