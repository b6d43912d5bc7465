"""What a job probably needs, from jobs that finished: the warm start of DLRover-RM (Wang et al., PVLDB 17(12), 2024).

The paper's: the k most similar finished jobs are found by their metadata, and exponentially smoothed,

    A <- mu A_i + (1 - mu) A          from the least to the most similar

so that training starts near the best size, not at it. Ours: what counts as similar (the same program file by digest or
by name, the same namespace, a batch of the same order; of equals the one that finished later), that a job of another
program is no guide at all, and that memory is the most that any of them used, because too little of it kills.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from services.allocator.policies.contract import Past, Plan
from shared.messages import JobRequested

MOST_SIMILAR = 5
MU = 0.5  # weight of each job over those before it
EARLY = 0.25  # of its examples
SAME_DIGEST, SAME_NAME, SAME_NAMESPACE = 4.0, 2.0, 1.0


class Guess(msgspec.Struct, frozen=True):
    """Where to start, the memory of all ps then and of a worker, and how many jobs say so."""

    plan: Plan
    ps_gib: float
    worker_gib: float
    jobs: int


def similarity(request: JobRequested, past: Past) -> float:
    """0: no guide."""
    program, other = request.program, past.request.program
    if program.name != other.name and program.digest != other.digest:
        return 0.0
    apart = abs(math.log2(request.batch.start / past.request.batch.start))
    return (
        SAME_DIGEST * (program.digest == other.digest)
        + SAME_NAME * (program.name == other.name)
        + SAME_NAMESPACE * (request.namespace == past.request.namespace)
        + 1 / (1 + apart)
    )


def most_similar(request: JobRequested, history: Sequence[Past], k: int = MOST_SIMILAR) -> list[Past]:
    """From the least to the most similar of the k that are most so."""
    ranked = sorted((similarity(request, past), past.finished_s, i) for i, past in enumerate(history))
    return [history[i] for score, _, i in ranked if score > 0][-k:]


def warm_start(request: JobRequested, history: Sequence[Past], k: int = MOST_SIMILAR, mu: float = MU) -> Guess | None:
    """None where no finished job is a guide."""
    similar = most_similar(request, history, k)
    if not similar:
        return None
    return Guess(
        plan=smoothed([past.plan for past in similar], mu),
        ps_gib=max(past.ps_gib for past in similar),
        worker_gib=max(past.worker_gib for past in similar),
        jobs=len(similar),
    )


def smoothed(plans: Sequence[Plan], mu: float) -> Plan:
    mean = msgspec.structs.astuple(plans[0])
    for plan in plans[1:]:
        mean = tuple(mu * new + (1 - mu) * old for new, old in zip(msgspec.structs.astuple(plan), mean, strict=True))
    ps, workers, ps_cpu, worker_cpu = mean
    return Plan(max(1, round(ps)), max(1, round(workers)), ps_cpu, worker_cpu)
