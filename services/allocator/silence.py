"""Jobs that train and do not report: their program may hang. Pure.

A trainer reports every second, but only after an update. So the longest silence that means nothing
is `unreported_s`, or twice the time that lay between the last two reports, where updates are that
slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from services.allocator.job import Job
from services.allocator.view import TRAINS, phase_of


def silent_s(job: Job, unreported_s: float) -> float:
    """Return the time (s) at which a job counts as silent if nothing is reported until then;
    infinity: never.
    """
    if not unreported_s or phase_of(job) not in TRAINS or job.is_trained:
        return inf
    reported_s = [reading.at_s for reading in job.recent if reading.at_s >= job.resumed_s]
    if not reported_s:
        return job.resumed_s + unreported_s
    last_s = reported_s[-1]
    usual_s = 0.0
    if len(reported_s) > 1:
        usual_s = last_s - reported_s[-2]
    return last_s + max(unreported_s, 2.0 * usual_s)


def next_silence_s(jobs: Iterable[Job], now: float, unreported_s: float) -> float:
    """Return the time (s) at which the next job counts as silent; infinity: none does."""
    next_s = inf
    for job in jobs:
        at_s = silent_s(job, unreported_s)
        if at_s > now:
            next_s = min(next_s, at_s)
    return next_s


def silent_jobs(jobs: Mapping[str, Job], now: float, unreported_s: float) -> dict[str, str]:
    """Return the jobs that are silent now by key, each with a remark for its user."""
    silent = {}
    for key, job in jobs.items():
        if silent_s(job, unreported_s) <= now:
            silent[key] = _remark(job)
    return silent


def _remark(job: Job) -> str:
    """Return the text shown for a job without recent reports: its last step, and the command that
    shows its output.
    """
    step = job.progress.step if job.progress else 0
    return (
        f"no report since step {step}: its program may hang; "
        f"`weir logs {job.request.job}` shows what it prints"
    )
