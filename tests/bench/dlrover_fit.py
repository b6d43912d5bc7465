"""Test if the throughput model of `bench-dlrover` recovers planted coefficients despite noise.

The coefficients are those of the cloud's families. Plans are log-uniform in the ranges of the
paper's fit (4 to 32 workers and ps, 2 to 16 cores for a worker, 1 to 8 for a ps). Iterations are
measured with the noise of the cloud.

    coefficient error   |fitted / planted - 1| of each term that is at least 5 % of the mean iteration
    prediction error    |fitted / planted - 1| of iterations on plans that were not in the fit
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from services.allocator.policies.contract import Plan, TimedPlan
from services.allocator.policies.dlrover.iteration import (
    Array,
    Model,
    fit_throughput,
    iteration_s,
    plan_grid,
    term_columns,
)
from tests.bench.dlrover_job import SPEED_NOISE
from tests.bench.dlrover_truth import between, family, model
from tests.bench.report import median, percentile

WORKERS, PS, WORKER_CPU, PS_CPU = (4, 32), (4, 32), (2, 16), (1, 8)
SEEN, UNSEEN, FAMILIES = (6, 10, 20, 40), 200, 40
TELLING = 0.05
BOUNDED, UNBOUNDED = True, False


def plans(count: int, rng: random.Random) -> list[Plan]:
    return [
        Plan(
            round(between(rng, *PS)),
            round(between(rng, *WORKERS)),
            between(rng, *PS_CPU),
            between(rng, *WORKER_CPU),
        )
        for _ in range(count)
    ]


def recovered(seen: int, seed: int, bounded: bool) -> tuple[list[float], Array]:
    """Return the errors of the significant coefficients, and the prediction errors."""
    rng = random.Random(f"{seed}")
    of = family(seed, rng)
    truth = model(of.coefficients, of.useful if bounded else (np.inf, np.inf))
    shown, hidden = plans(seen, rng), plan_grid(plans(UNSEEN, rng))
    step_s = iteration_s(plan_grid(shown), of.batch, truth)
    found = fit_throughput(
        [_read(p, of.batch, s, rng) for p, s in zip(shown, step_s.tolist(), strict=True)]
    )
    terms = term_columns(np.minimum(hidden, truth.bounds), of.batch) * truth.coefficients
    telling = terms.mean(axis=0) >= TELLING * terms.sum(axis=1).mean()
    errors = np.abs(found.coefficients / truth.coefficients - 1)[telling]
    return errors.tolist(), predicted_apart(found, truth, hidden, of.batch)


def predicted_apart(found: Model, truth: Model, on: Array, batch: int) -> Array:
    apart: Array = np.abs(iteration_s(on, batch, found) / iteration_s(on, batch, truth) - 1)
    return apart


def _read(plan: Plan, batch: int, step_s: float, rng: random.Random) -> TimedPlan:
    return TimedPlan(plan, batch, step_s * (1 + rng.gauss(0, SPEED_NOISE)))


def recovery() -> dict[str, float]:
    """Return the errors by name: medians and 90th percentiles over all families.

    The names are `coefficient_error_<plans in the fit>` and so on.
    """
    said: dict[str, float] = {}
    for seen in SEEN:
        said |= _said(f"{seen}", [recovered(seen, seed, UNBOUNDED) for seed in range(FAMILIES)])
    return said | _said("bounded_40", [recovered(40, seed, BOUNDED) for seed in range(FAMILIES)])


def _said(name: str, tries: Sequence[tuple[list[float], Array]]) -> dict[str, float]:
    terms, predictions = (
        [e for errors, _ in tries for e in errors],
        np.concatenate([p for _, p in tries]).tolist(),
    )
    return {
        f"coefficient_error_{name}": round(median(terms), 4),
        f"coefficient_error_p90_{name}": round(percentile(terms, 0.9), 4),
        f"prediction_error_{name}": round(median(predictions), 4),
        f"prediction_error_p90_{name}": round(percentile(predictions, 0.9), 4),
    }
