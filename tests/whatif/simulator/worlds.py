"""Small worlds for the simulator's tests, with invented, round numbers."""

from __future__ import annotations

from itertools import count
from typing import Any

from services.allocator.settings import Rules
from services.whatif.simulator.outcome import Run
from services.whatif.simulator.run import simulate
from services.whatif.simulator.scenario import (
    Cluster,
    Machine,
    Measured,
    Scenario,
    Surface,
    Tenant,
    Work,
)
from shared.messages import Span

SPEEDS = {(1, 1): 100.0, (1, 2): 180.0, (1, 4): 300.0, (2, 1): 100.0, (2, 2): 190.0, (2, 4): 360.0}
"""Samples/s of the model `net` by (ps, workers), at a batch of 64."""
DEVICES = {1: 50.0, 2: 95.0, 4: 180.0}
"""Samples/s of the model `ring` by devices, at a batch of 64.

A batch of 128 is 1.5 times as fast.
"""


def surfaces() -> dict[str, Surface]:
    ring = [Measured(0, k, 64, v) for k, v in DEVICES.items()] + [
        Measured(0, k, 128, 1.5 * v) for k, v in DEVICES.items()
    ]
    return {
        "net": Surface(Measured(*size, 64, v) for size, v in SPEEDS.items()),
        "ring": Surface(ring),
    }


def span(start: int, most: int = 0, least: int = 1) -> Span:
    return Span(start=start, min=min(least, start), max=max(start, most))


def work(job: str = "one", **fields: Any) -> Work:
    usual: dict[str, Any] = {
        "model": "net",
        "samples": 10_000,
        "batch": span(64),
        "ps": span(1),
        "workers": span(1),
    }
    return Work(job=job, **(usual | fields))


def growing(job: str = "one", **fields: Any) -> Work:
    return work(job, **({"ps": span(1, most=2), "workers": span(1, most=4)} | fields))


def cluster(
    count: int = 1, cpu: float = 8, gpu: int = 0, tenants: tuple[Tenant, ...] = ()
) -> Cluster:
    return Cluster(nodes=(Machine(name="node", count=count, cpu=cpu, gpu=gpu),), tenants=tenants)


def scenario(*jobs: Work, **fields: Any) -> Scenario:
    usual: dict[str, Any] = {
        "cluster": cluster(),
        "surfaces": surfaces(),
        "restart_s": 10.0,
        "report_s": 30.0,
    }
    return Scenario(jobs=jobs, **(usual | fields))


def run(world: Scenario, policy: str = "static", seed: int = 0) -> Run:
    """Simulate with a clock that advances by 1 ms at each reading."""
    ticks = count()
    return simulate(world, Rules(policy=policy), seed, lambda: next(ticks) / 1000.0)
