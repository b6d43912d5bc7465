"""Policies of one's own: `module:function`, imported by that name once, at start. Edge.

Only whoever runs the allocator, or types a command, names one (`Rules.policy`, `Rules.policies`); a request may name
what is enrolled and nothing else, so that no message has code imported. The module is looked for where Python looks,
then in the folder in which the process was started.

A policy of one's own is not trusted to be right: what it raises, and a want outside of its job's bounds, is its fault.
Then nothing of what it said holds, each of its jobs stays as it is, and `fault` is told.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from services.allocator.placing.placement import Node
from services.allocator.policies import POLICIES, JobSeen, Policy, Want
from shared.config import BadSettings
from shared.messages import Span

Fault = Callable[[str, Exception], None]
"""Told a policy's name, and what it did wrong."""


def enrol(names: Iterable[str], fault: Fault) -> None:
    """Know these policies by their names; raises `BadSettings` with every name that cannot be one, and why."""
    wrong = []
    for name in names:
        if name not in POLICIES:
            try:
                POLICIES[name] = partial(_asked, name, _imported(name), fault)
            except _Unusable as unusable:
                wrong.append(f"policy {name!r}: {unusable}")
    if wrong:
        raise BadSettings("\n".join(wrong))


class _Unusable(Exception):
    """Why a name is that of no policy."""


def _imported(name: str) -> Policy:
    module, colon, function = name.partition(":")
    if not colon:
        known = ", ".join(sorted(POLICIES))
        raise _Unusable(f"there are {known}; one of your own is called `module:function`")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        found: Policy = getattr(importlib.import_module(module), function)
    except Exception as error:  # whatever a stranger's module raises
        raise _Unusable(f"it cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise _Unusable(f"it is {found!r}, and not a function of (cluster, jobs, now)")
    return found


def _asked(
    name: str, policy: Policy, fault: Fault, cluster: Sequence[Node], jobs: Sequence[JobSeen], now: float
) -> list[Want]:
    by_key = {job.key: job for job in jobs}
    try:
        return [_checked(want, by_key) for want in policy(cluster, jobs, now)]
    except Exception as error:
        fault(name, error)
        return []


def _checked(want: Any, jobs: Mapping[str, JobSeen]) -> Want:
    if not isinstance(want, Want):
        raise TypeError(f"it answers with {want!r}, which is no Want")
    if not isinstance(want.reason, str):
        raise TypeError(f"its reason for {want.job} is {want.reason!r}, and no text")
    job = jobs.get(want.job)
    if job is None:
        raise ValueError(f"it wants something for {want.job}, of which it was not asked")
    if not want.waits and want.size != job.size:
        _within(job.request.ps, want.ps, f"ps for {want.job}")
        _within(job.request.workers, want.workers, f"workers for {want.job}")
    if not want.waits and want.batch != job.batch:
        _within(job.request.batch, want.batch, f"as the batch of {want.job}")
    return want


def _within(span: Span, number: Any, what: str) -> None:
    if not isinstance(number, int) or not span.min <= number <= span.max:
        raise ValueError(f"it wants {number!r} {what}; asked for is {span.min} to {span.max}")
