"""The requests and their times: the trace of `bench-dlrover`, the same for every arm.

    asked = need x f        f is drawn for each of the six numbers of a request

The six numbers are, for ps and for workers, the count, and the cores and memory of each. The memory
that a ps needs is that with the requested number of ps, and no request is for more than a node has.

    mixed   f uniform in [0.5, 2]: too much is twice as likely as too little
    even    log2 f uniform in [-1, 1]: half is as likely as double
    under   f uniform in [0.5, 1]
    over    f uniform in [1, 2]
    right   f = 1: the request of a user who knows the need

A manual request is all or nothing: its minimum is its start. Arrivals are Poisson, at the rate at
which the needs alone would keep `load` of the cluster's cores busy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from msgspec.structs import replace

from shared.messages import JobRequested, Program, Resources, RoleResources, Span
from tests.bench.cloud import NODE, NODES
from tests.bench.dlrover_job import FULLEST, Running
from tests.bench.dlrover_truth import Truth, drawn, family

FAMILIES = 8
PS_MOST, WORKERS_MOST = 15, 60  # as in DLRover's repository
Factor = Callable[[random.Random], float]

ASKED: dict[str, Factor] = {
    "mixed": lambda rng: rng.uniform(0.5, 2.0),
    "even": lambda rng: 2.0 ** rng.uniform(-1.0, 1.0),
    "under": lambda rng: rng.uniform(0.5, 1.0),
    "over": lambda rng: rng.uniform(1.0, 2.0),
    "right": lambda rng: 1.0,
}


def trace(count: int, load: float, asked: str, seed: int, by_hand: bool = False) -> list[Running]:
    rng = random.Random(seed)
    families = [family(number, rng) for number in range(FAMILIES)]
    truths = [drawn(rng.choice(families), rng) for _ in range(count)]
    needed = math.fsum(core_seconds(truth) for truth in truths)
    mean_gap_s = needed / count / (load * NODES * NODE.cpu)
    jobs, at_s = [], 0.0
    for number, truth in enumerate(truths):
        request = requested(f"job-{number}", truth, ASKED[asked], random.Random(f"{seed}-{number}"))
        request = _fixed(request) if by_hand else request
        jobs.append(
            Running(f"default.job-{number}", truth, at_s, request, seed=1000 * seed + number)
        )
        at_s += rng.expovariate(1 / mean_gap_s)
    return jobs


def core_seconds(truth: Truth) -> float:
    """Return the cores of the need, times the duration of the work with them."""
    plan = truth.need
    cores = plan.ps * plan.ps_cpu + plan.workers * plan.worker_cpu
    return cores * truth.samples * truth.step_s(plan) / (plan.workers * truth.batch)


def requested(name: str, truth: Truth, factor: Factor, rng: random.Random) -> JobRequested:
    need = truth.need
    ps, workers = (max(1, round(number * factor(rng))) for number in (need.ps, need.workers))
    ps_cpu, worker_cpu = (round(cpu * factor(rng), 2) for cpu in (need.ps_cpu, need.worker_cpu))
    ps_gib = min(FULLEST * truth.ps_gib[1] / ps * factor(rng), NODE.memory_gib)
    return JobRequested(
        job=name,
        program=Program(name=f"{truth.family}.py", digest=f"sha256-{truth.family}"),
        epochs=1,
        batch=Span(start=truth.batch, min=truth.batch, max=truth.batch),
        ps=Span(start=ps, min=1, max=max(ps, PS_MOST)),
        workers=Span(start=workers, min=1, max=max(workers, WORKERS_MOST)),
        handover="restart",
        resources=RoleResources(
            chief=Resources(),
            ps=Resources(cpu=ps_cpu, memory_gib=ps_gib),
            worker=Resources(cpu=worker_cpu, memory_gib=truth.worker_gib * factor(rng)),
        ),
    )


def _fixed(request: JobRequested) -> JobRequested:
    ps, workers = (
        replace(span, min=span.start, max=span.start) for span in (request.ps, request.workers)
    )
    return replace(request, ps=ps, workers=workers)
