"""The probable needs of a job, from jobs that finished: the warm start of DLRover-RM (Wang et al.,
PVLDB 17(12), 2024).

The paper's: the k most similar finished jobs are found by their metadata, and exponentially
smoothed,

    A <- mu A_i + (1 - mu) A          from the least to the most similar

so that training starts near the best size, not at it. Ours: what counts as similar (the same
program file by digest or by name, the same namespace, a batch of the same order; of equals the one
that finished later), that a job of another program is no guide at all, and that memory is the most
that any of them used, because too little of it kills.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from services.allocator.policies.contract import Past, Plan
from shared.messages import JobRequested

MOST_SIMILAR = 5
MU = 0.5  # weight of each job over those before it
SAME_DIGEST = 4.0
SAME_NAME = 2.0
SAME_NAMESPACE = 1.0


class Guess(msgspec.Struct, frozen=True):
    """The size and memory to start with."""

    plan: Plan
    ps_gib: float
    """Memory of all ps together, then."""
    worker_gib: float
    """Memory of each worker."""
    jobs: int
    """The number of finished jobs that it is taken from."""


def similarity(request: JobRequested, past: Past) -> float:
    """Return how much of a guide a finished job is; 0: none."""
    other = past.request
    score = 0.0
    if request.program.digest == other.program.digest:
        score += SAME_DIGEST
    if request.program.name == other.program.name:
        score += SAME_NAME
    if not score:
        return 0.0

    if request.namespace == other.namespace:
        score += SAME_NAMESPACE
    # Batches of one order of magnitude are alike.
    ratio = request.batch.start / other.batch.start
    apart = abs(math.log2(ratio))
    return score + 1 / (1 + apart)


def most_similar(
    request: JobRequested, history: Sequence[Past], k: int = MOST_SIMILAR
) -> list[Past]:
    """Return the k most similar jobs, from the least to the most similar of them."""
    ranked = []
    for place, past in enumerate(history):
        score = similarity(request, past)
        if score > 0:
            ranked.append((score, past.finished_s, place))
    ranked.sort()
    return [history[place] for _, _, place in ranked[-k:]]


def warm_start(
    request: JobRequested, history: Sequence[Past], k: int = MOST_SIMILAR, mu: float = MU
) -> Guess | None:
    """Return where to start; None where no finished job is a guide."""
    similar = most_similar(request, history, k)
    if not similar:
        return None
    plans = []
    ps_gib = []
    worker_gib = []
    for past in similar:
        plans.append(past.plan)
        ps_gib.append(past.ps_gib)
        worker_gib.append(past.worker_gib)

    return Guess(
        plan=smoothed(plans, mu),
        ps_gib=max(ps_gib),
        worker_gib=max(worker_gib),
        jobs=len(similar),
    )


def smoothed(plans: Sequence[Plan], mu: float) -> Plan:
    """Return the exponentially smoothed plan; the last one weighs most."""
    first = plans[0]
    ps: float = first.ps
    workers: float = first.workers
    ps_cpu = first.ps_cpu
    worker_cpu = first.worker_cpu
    for plan in plans[1:]:
        ps = _smoothing_step(plan.ps, ps, mu)
        workers = _smoothing_step(plan.workers, workers, mu)
        ps_cpu = _smoothing_step(plan.ps_cpu, ps_cpu, mu)
        worker_cpu = _smoothing_step(plan.worker_cpu, worker_cpu, mu)
    return Plan(max(1, round(ps)), max(1, round(workers)), ps_cpu, worker_cpu)


def _smoothing_step(number: float, before: float, mu: float) -> float:
    """Return the smoothed number; `before`: that of the jobs before."""
    return mu * number + (1 - mu) * before
