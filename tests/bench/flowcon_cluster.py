"""FlowCon's schedules in the real allocator: decisions and changes in place, simulated.

One node of 8 cores. A container becomes a job of one task (no ps) that requests as many cores as it
can use, reports its loss and speed every second, and is slowed in proportion to its missing cores.
Here a share is a reservation: other jobs cannot use the cores that a job leaves idle, and between
two passes a new job gets the capacity that the others give up. Speeds vary by 2 % (normal, of the
logarithm) between reports; losses have no noise of their own. A job pauses for a second before its
first step, and never again.

Baseline (`equal`): the same policy, for which every job is always new, so that all get equal
shares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from msgspec.structs import replace

from services.allocator import settings
from services.allocator.policies.contract import JobSnapshot, Node, Policy, Target
from services.allocator.policies.flowcon.growth import Rules
from services.allocator.policies.flowcon.policy import flowcon
from services.allocator.policies.registry import POLICIES
from services.whatif.simulator.run import simulate
from services.whatif.simulator.scenario import (
    Cluster,
    Curve,
    Machine,
    Measured,
    Scenario,
    Surface,
    Work,
)
from shared.messages import Span
from tests.bench.flowcon_jobs import Schedule
from tests.bench.machine import CORES, Image

BATCH, POINTS, NOISE = 100, 200, 0.02
RATE = 100.0
"""Samples per core-second."""
STATIC = "static"
ONE, NONE = Span(start=1, min=1, max=1), Span(start=0, min=0, max=0)


def equal(cluster: Sequence[Node], jobs: Sequence[JobSnapshot], now: float) -> list[Target]:
    return flowcon(cluster, [replace(job, since_s=now) for job in jobs], now)


Chosen = Rules | str | Policy
"""FlowCon with these rules, the name of a registered policy, or a function of the benchmark."""


def completions(schedule: Schedule, policy: Chosen, seed: int) -> tuple[dict[str, float], float]:
    """Return the completion time (end - submission) of each job, and the makespan, in s."""
    with named(policy) as name:
        done = simulate(
            scenario(schedule), settings.Rules(policy=name, reserve_after_s=0.0), seed, lambda: 0.0
        )
    ends = {record.work.job: record.finished_s or math.inf for record in done.records}
    return {r.work.job: ends[r.work.job] - r.work.submitted_s for r in done.records}, max(
        ends.values()
    )


@contextmanager
def named(policy: Chosen) -> Iterator[str]:
    """Yield the name of a policy. One that is not registered is registered for the duration."""
    if isinstance(policy, str):
        yield policy
        return
    POLICIES["flowcon-bench"] = (
        partial(flowcon, rules=policy) if isinstance(policy, Rules) else policy
    )
    try:
        yield "flowcon-bench"
    finally:
        del POLICIES["flowcon-bench"]


def scenario(schedule: Schedule) -> Scenario:
    images = {image.name: image for _, image in schedule}
    return Scenario(
        jobs=tuple(
            work(f"{n}-{image.name}", start, image) for n, (start, image) in enumerate(schedule)
        ),
        cluster=Cluster(nodes=(Machine(name="n1", cpu=CORES, memory_gib=64.0),)),
        surfaces={
            name: Surface([Measured(0, 1, BATCH, RATE * i.most)]) for name, i in images.items()
        },
        losses={name: curve(image) for name, image in images.items()},
        restart_s=1.0,
        noise=NOISE,
        report_s=1.0,
    )


def work(name: str, start: int, image: Image) -> Work:
    return Work(
        job=name,
        model=image.name,
        samples=round(image.work * RATE),
        submitted_s=float(start),
        batch=Span(start=BATCH, min=BATCH, max=BATCH),
        ps=NONE,
        workers=ONE,
        worker_cpu=image.most,
    )


def curve(image: Image) -> Curve:
    steps = [image.work * n / POINTS for n in range(POINTS + 1)]
    return Curve((done * RATE, image.loss(done)) for done in steps)
