"""What is read off a run: the three figures of the published systems (total time, epoch time,
utilisation).

All pure. Times are seconds since 1970 unless said otherwise; speeds are examples a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from shared.messages import ProgressReported


class CpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """All pods of the cluster together: CPU seconds used since it began, and the cores that its
    nodes have.
    """

    at_s: float
    seconds: float
    allocatable: float


def utilisation(samples: Sequence[CpuSample], from_s: float, to_s: float) -> float:
    """Measured CPU seconds over allocatable CPU seconds between two times: as the kernel counts,
    not requests.
    """
    inside = [s for s in samples if from_s <= s.at_s <= to_s]
    if len(inside) < 2 or inside[-1].at_s == inside[0].at_s:
        return 0.0
    used = inside[-1].seconds - inside[0].seconds
    return used / ((inside[-1].at_s - inside[0].at_s) * inside[-1].allocatable)


def utilisation_over_time(
    samples: Sequence[CpuSample], window_s: float = 3.0
) -> list[tuple[float, float]]:
    """(time, utilisation over the `window_s` before it)."""
    return [(s.at_s, utilisation(samples, s.at_s - window_s, s.at_s)) for s in samples[1:]]


def epoch_seconds(reports: Sequence[ProgressReported], began_s: float, epochs: int) -> list[float]:
    """How long each complete epoch took, from the time at which its last example was applied
    (interpolated).
    """
    if not reports:
        return []
    examples = reports[0].total_samples / epochs
    ends = [time_at(reports, began_s, examples * (n + 1)) for n in range(epochs)]
    known = [began_s, *[end for end in ends if end is not None]]
    return [later - earlier for earlier, later in pairwise(known)]


def time_at(reports: Sequence[ProgressReported], began_s: float, samples: float) -> float | None:
    """When so many examples were applied; None where the reports do not reach so far."""
    before_s, before = began_s, 0.0
    for report in reports:
        if report.samples >= samples:
            share = (samples - before) / max(report.samples - before, 1)
            return before_s + share * (report.reported_s - before_s)
        before_s, before = report.reported_s, report.samples
    return None


def samples_at(reports: Sequence[ProgressReported], at_s: float) -> float:
    """Examples applied at a time, interpolated between reports."""
    before_s, before = 0.0, 0.0
    for report in reports:
        if report.reported_s >= at_s:
            span = report.reported_s - before_s
            return (
                before + (at_s - before_s) / span * (report.samples - before) if before_s else 0.0
            )
        before_s, before = report.reported_s, report.samples
    return before


def speed(reports: Sequence[ProgressReported], from_s: float, to_s: float) -> float:
    """Examples a second between two times."""
    return (samples_at(reports, to_s) - samples_at(reports, from_s)) / max(to_s - from_s, 1e-9)


def ideal_cut(busy_share: float, leave_at: float) -> float:
    """How much of the static time a job could save that scales linearly over all cores at once.

    `busy_share` of the cores are somebody else's until `leave_at` (as a share of the static time
    T); the job has the rest. Work = (1 - busy) T; before: leave_at T at (1 - busy); after: what is
    left at 1. Elastic time over T is leave_at + (1 - leave_at) (1 - busy), and the cut is one less
    that.
    """
    return 1.0 - (leave_at + (1.0 - leave_at) * (1.0 - busy_share))
