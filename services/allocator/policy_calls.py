"""The calls of policies: what each wants for its jobs, checked, whatever a policy does.

A policy is not trusted to be right, be it one of Weir's or one's own: what it raises, and a want outside of its job's
bounds, is a failure. The jobs that cause it are set aside (`failures.py`), and the policy decides on its others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import starmap
from operator import attrgetter
from typing import Any

from services.allocator.failures import FaultSearch, Isolated, isolate
from services.allocator.kept import MOST, Answers
from services.allocator.placing.placement import ROLES
from services.allocator.policies.contract import JobSeen, Node, Want
from services.allocator.policies.registry import POLICIES
from shared.messages import Alternative, Span

_job_of, _key_of = attrgetter("job"), attrgetter("key")


def desired_sizes(
    by_policy: Mapping[str, Sequence[JobSeen]],
    cluster: Sequence[Node],
    now: float,
    search: FaultSearch,
    raise_all: bool,
) -> tuple[dict[str, Want], dict[str, str]]:
    """Return each policy's wants by job, and the jobs that were not tried, with their policies.

    The search knows the jobs that a policy fails with.
    """
    wants: dict[str, Want] = {}
    untried: dict[str, str] = {}
    for name, jobs in by_policy.items():
        try:
            wants |= call_policy(name, cluster, jobs, now)
            search.clear(map(_key_of, jobs), name)
        except Exception as error:
            if raise_all:
                raise
            found = _without_faulty(name, cluster, jobs, now, error, search)
            wants |= found.result or {}
            untried |= dict.fromkeys(found.untried, name)
    return wants, untried


def call_policy(name: str, cluster: Sequence[Node], jobs: Sequence[JobSeen], now: float) -> dict[str, Want]:
    """Raises what the policy raises, and `TypeError` or `ValueError` for what it may not want."""
    wants = list(POLICIES[name](cluster, jobs, now))
    if not {*map(type, wants)} <= {Want}:
        raise TypeError(f"it answers with {next(want for want in wants if type(want) is not Want)!r}, which is no Want")
    names = [*map(_job_of, wants)]
    by_key = dict(zip(map(_key_of, jobs), jobs, strict=True))
    asked = [*map(by_key.get, names)]
    keys = [*zip(map(id, wants), map(id, asked), strict=True)]
    errors = _known_errors.all_of(keys, [*zip(wants, asked, strict=True)], lambda pairs: starmap(_error, pairs))
    if wrong := next(filter(None, errors), None):
        raise type(wrong)(*wrong.args)  # the known one stays without a traceback, which would grow with each raise
    found = dict(zip(names, wants, strict=True))
    if len(found) < len(wants):
        raise ValueError("it wants several sizes for one job")
    return found


def _without_faulty(
    name: str,
    cluster: Sequence[Node],
    jobs: Sequence[JobSeen],
    now: float,
    error: Exception,
    search: FaultSearch,
) -> Isolated[dict[str, Want]]:
    by_key = {job.key: job for job in jobs}

    def compute(keys: Sequence[str]) -> dict[str, Want]:
        return call_policy(name, cluster, [by_key[key] for key in keys], now)

    return isolate(compute, [*by_key], error, search, name)


def _error(want: Want, job: JobSeen | None) -> Exception | None:
    """Why a want cannot hold; None where it can."""
    if not isinstance(want.reason, str) or not _is_unicode(want.reason):
        return TypeError(f"its reason for {want.job} is {want.reason!r}, and no text")
    if not all(isinstance(other, Alternative) and _is_unicode(other.why) for other in want.alternatives):
        return TypeError(f"its alternatives for {want.job} are {want.alternatives!r}")
    if job is None:
        return ValueError(f"it wants something for {want.job}, of which it was not asked")
    return _bound_error(want, job) or _number_error(want)


def _is_unicode(text: str) -> bool:
    """Return whether a value can be part of a message."""
    return not any("\ud800" <= character <= "\udfff" for character in text) if not text.isascii() else True


def _bound_error(want: Want, job: JobSeen) -> ValueError | None:
    if want.waits:
        return None
    asked = job.request
    if want.size != job.size:
        if not _is_within(asked.ps, want.ps):
            return _outside(asked.ps, want.ps, f"ps for {want.job}")
        if not _is_within(asked.workers, want.workers):
            return _outside(asked.workers, want.workers, f"workers for {want.job}")
    if want.batch != job.batch and not _is_within(asked.batch, want.batch):
        return _outside(asked.batch, want.batch, f"as the batch of {want.job}")
    return None


def _is_within(span: Span, number: Any) -> bool:
    return isinstance(number, int) and span.min <= number <= span.max


def _outside(span: Span, number: Any, what: str) -> ValueError:
    return ValueError(f"it wants {number!r} {what}; asked for is {span.min} to {span.max}")


def _number_error(want: Want) -> ValueError | None:
    for field, value in (("faster", want.faster), ("speed_now", want.speed_now), ("apart", want.apart)):
        if value is not None and not value >= 0:  # infinitely many times as fast is a way to say: try it
            return ValueError(f"its `{field}` for {want.job} is {value!r}")
    if want.sizes is None:
        return None
    for role in ROLES:
        size = getattr(want.sizes, role)
        amounts = (size.cpu, size.memory_gib, size.gpu)
        if not all(math.isfinite(amount) and amount >= 0 for amount in amounts):
            return ValueError(f"its size of a {role} for {want.job} is {amounts!r}")
    return None


_known_errors: Answers[tuple[int, int], tuple[Want, JobSeen | None], Exception | None] = Answers(MOST)
"""A want that a policy says again of the same job is not looked at again."""
