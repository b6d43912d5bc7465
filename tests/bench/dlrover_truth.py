"""The true model of a job in the cloud of `bench-dlrover`, and the resources that it needs.

Eight families (models) of jobs. An iteration takes T = a1 m/lw + a2 w/(p lp) + a3 w/p + a4 m/p + b,
with coefficients drawn for each family and varied by 10 % for each job; speed is w m / T. The
amount of work is lognormal, with a median of 40 minutes at the need (sigma 0.8, 10 minutes to 4
hours). While training, a worker uses a1 m / T cores, all ps together w (a2 + a4 m) / T. The memory
of a worker is constant; that of all ps grows with the examples seen, from 10 to 60 GiB to 1.5 to 4
times as much.

The need. The plan that a user who knows all that would request: the largest Psi^2 / cost (a core
costs as much as eight GiB) of the plans with at most 16 to 128 cores, by family; and the most
memory that a task will use.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import msgspec
import numpy as np

from services.allocator.policies.contract import Plan
from services.allocator.policies.dlrover.candidates import PRICE_CPU, PRICE_GIB
from services.allocator.policies.dlrover.iteration import (
    Model,
    iteration_s,
    plan_grid,
    plan_throughput,
)
from shared.messages import Role

HOUR = 3600.0
PS_GIB_MOST = 48.0  # nobody requests a larger ps


def model(coefficients: Sequence[float] | np.ndarray, useful: tuple[float, float]) -> Model:
    return Model(np.array(coefficients), np.array([math.inf, math.inf, *useful]))


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """The truth about a job, hidden from policies.

    `coefficients`: a1..a4, b; `useful`: the cores that a ps, and a worker, can use at once.
    """

    family: str
    coefficients: tuple[float, ...]
    useful: tuple[float, float]
    batch: int
    samples: float
    ps_gib: tuple[float, float]
    """GiB of all ps together, at the start and at the end."""
    worker_gib: float
    need: Plan

    def gib(self, done: float) -> float:
        start, end = self.ps_gib
        return start + (end - start) * min(1.0, done / self.samples)

    def step_s(self, plan: Plan, slow_ps: bool = False) -> float:
        a = np.array(self.coefficients) * (np.array([1, 2, 1, 2, 1]) if slow_ps else 1)
        return float(iteration_s(plan_grid([plan]), self.batch, model(a, self.useful))[0])

    def cores(self, plan: Plan, step_s: float) -> dict[Role, float]:
        """Return the cores used by all ps, and by all workers."""
        a1, a2, _, a4, _ = self.coefficients
        on_ps = plan.workers * (a2 + a4 * self.batch) / step_s
        on_worker = min(plan.worker_cpu, a1 * self.batch / step_s)
        return {"ps": min(plan.ps * plan.ps_cpu, on_ps), "worker": plan.workers * on_worker}


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A model: what its jobs have in common.

    `gib`: of all ps at the start and the end, of a worker.
    """

    name: str
    coefficients: tuple[float, ...]
    batch: int
    gib: tuple[float, float, float]
    useful: tuple[float, float]
    budget: float


def needed(of: Family, coefficients: Sequence[float], gib: tuple[float, float]) -> Plan:
    """Return the plan within the budget with the largest Psi^2 / cost.

    Its tasks have the cores that they can use.

    If no plan within the budget has enough memory for the model, the budget is exceeded.
    """
    counts = np.array([(p, w) for p in range(1, 16) for w in range(1, 61)], float)
    plans = np.hstack([counts, np.broadcast_to(of.useful, counts.shape)])
    cpu = plans[:, 0] * plans[:, 2] + plans[:, 1] * plans[:, 3]
    cost = PRICE_CPU * cpu + PRICE_GIB * (gib[0] + plans[:, 1] * gib[1])
    holds = gib[0] <= PS_GIB_MOST * plans[:, 0]
    allowed = holds & (cpu <= max(of.budget, float(cpu[holds].min())))
    value = plan_throughput(plans, of.batch, model(coefficients, of.useful)) ** 2 / cost * allowed
    ps, workers, ps_cpu, worker_cpu = plans[int(value.argmax())].tolist()
    return Plan(int(ps), int(workers), ps_cpu, worker_cpu)


def family(number: int, rng: random.Random) -> Family:
    start = between(rng, 10, 60)
    ranges = ((400e-6, 1500e-6), (0.005, 0.04), (0.0005, 0.01), (2e-6, 20e-6), (0.003, 0.02))
    return Family(
        name=f"model-{number}",
        coefficients=tuple(between(rng, *each) for each in ranges),
        batch=rng.choice((512, 1024, 2048)),
        gib=(start, start * rng.uniform(1.5, 4.0), between(rng, 1, 4)),
        useful=(rng.choice((1.0, 2.0, 3.0, 4.0)), rng.choice((2.0, 3.0, 4.0, 6.0))),
        budget=between(rng, 16, 128),
    )


def between(rng: random.Random, low: float, high: float) -> float:
    """Return a log-uniform random number."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def drawn(of: Family, rng: random.Random) -> Truth:
    a = tuple(each * rng.lognormvariate(0, 0.1) for each in of.coefficients)
    start, end, worker_gib = (
        each * factor for each, factor in zip(of.gib, _memory_factors(rng), strict=True)
    )
    need = needed(of, a, (end, worker_gib))
    seconds = min(max(rng.lognormvariate(math.log(2400), 0.8), 600), 4 * HOUR)
    speed = float(plan_throughput(plan_grid([need]), of.batch, model(a, of.useful))[0])
    return Truth(
        family=of.name,
        coefficients=a,
        useful=of.useful,
        batch=of.batch,
        samples=speed * seconds,
        ps_gib=(start, end),
        worker_gib=worker_gib,
        need=need,
    )


def _memory_factors(rng: random.Random) -> tuple[float, float, float]:
    ps, worker = rng.lognormvariate(0, 0.1), rng.lognormvariate(0, 0.1)
    return ps, ps, worker
