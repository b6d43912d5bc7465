"""The baseline: what the user asked for, for ever."""

from __future__ import annotations

from collections.abc import Sequence

from services.allocator.policies.contract import JobSeen, Node, Want, at_start


def static(cluster: Sequence[Node], jobs: Sequence[JobSeen], now: float) -> list[Want]:
    """Start the jobs that wait at the size that was asked for, and leave the others alone."""
    return [at_start(job, "the size that was asked for") for job in jobs if job.size is None]
