"""The models of `bench-elastic-batch`, by formula or from measured speeds; and arriving jobs."""

from __future__ import annotations

import csv
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from services.allocator.policies.elastic_batch.scalability import Rate, Speed, Timing, fit_timing
from tests.bench.elastic_world import Job, Model, table_of

BY_FORMULA = {
    "compute-bound": (
        Timing(step_s=0.02, sample_s=0.010, ring_s=0.02, hop_s=0.0005),
        (32, 64, 128, 256, 512),
    ),
    "balanced": (
        Timing(step_s=0.05, sample_s=0.010, ring_s=0.15, hop_s=0.002),
        (32, 64, 128, 256, 512),
    ),
    "communication-bound": (
        Timing(step_s=0.05, sample_s=0.010, ring_s=0.50, hop_s=0.005),
        (64, 128, 256, 512),
    ),
}
"""Assumed times in s of a step, an example, a ring and a hop; batches that keep the accuracy."""
MEAN_S = (1200.0, 3600.0)
"""Limits of the time of a job on one device at its best speed; uniform between the two."""

Load = Callable[[float], float]
"""Device-seconds of work that arrive per second and device, by time of day."""
PEAK = 4.0
"""Upper limit of all loads."""
Points = dict[tuple[int, int], float]
"""Examples per second, by total batch and number of devices."""


def by_formula() -> list[Model]:
    return [
        Model(name=n, true=t.rate, believed=t.rate, batches=b) for n, (t, b) in BY_FORMULA.items()
    ]


# ---------------------------------------------------------------- measured


def measured(path: Path) -> dict[str, Points]:
    """Read the measured speeds: `model,global_batch,gpus,samples_per_second`."""
    known: dict[str, Points] = defaultdict(dict)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            known[row["model"]][int(row["global_batch"]), int(row["gpus"])] = float(
                row["samples_per_second"]
            )
    return dict(known)


def by_measurement(known: dict[str, Points]) -> list[Model]:
    """Return models. True: interpolated. Believed: the fit to every other number of devices."""
    return [
        Model(
            name=name,
            true=between(points),
            believed=analysed(points)[0].rate,
            batches=_batches(points),
        )
        for name, points in known.items()
    ]


def _batches(points: Points) -> tuple[int, ...]:
    return tuple(sorted({batch for batch, _ in points}))


def between(points: Points) -> Rate:
    """Interpolate linearly in the logarithms of devices, batch and speed; constant outside."""
    batches = _batches(points)
    rows = [sorted((k, rate) for (b, k), rate in points.items() if b == batch) for batch in batches]

    def one(each: int, k: int) -> float:
        rates = [np.interp(np.log(k), *np.log(np.array(row)).T) for row in rows]
        return float(np.exp(np.interp(np.log(each * k), np.log(batches), rates)))

    return np.vectorize(one, otypes=[float])


def analysed(points: Points) -> tuple[Timing, list[float]]:
    """Return the fit to every other number of devices, and its relative errors at the rest.

    The smallest number is in the fit.
    """
    shown = set(sorted({k for _, k in points})[::2])
    speeds = [(Speed(batch / k, k, rate), k in shown) for (batch, k), rate in points.items()]
    timing = fit_timing(
        [speed for speed, is_shown in speeds if is_shown], reference=_batches(points)[-1]
    )
    hidden = [speed for speed, is_shown in speeds if not is_shown]
    return timing, [abs(float(timing.rate(s.each, s.devices)) / s.rate - 1.0) for s in hidden]


# ---------------------------------------------------------------- arrivals


def arriving(
    models: Sequence[Model], devices: int, load: Load, upto_s: float, seed: int
) -> list[Job]:
    """Return jobs with Poisson arrivals, thinned from the rate of the peak."""
    chance, now, jobs = random.Random(seed), 0.0, list[Job]()
    per_s = PEAK * devices / (sum(MEAN_S) / 2)
    while (now := now + chance.expovariate(per_s)) < upto_s:
        model, length_s = chance.choice(models), chance.uniform(*MEAN_S)
        if chance.random() < load(now) / PEAK:
            jobs.append(Job(now, model, length_s * best_rate(model), chance.choice(model.batches)))
    return jobs


def best_rate(model: Model) -> float:
    """Return the examples per second on one device, without a limit to its memory."""
    most = model.batches[-1]
    return float(model.true(np.asarray(most), np.asarray(1)))


def can_run(model: Model, device_batch_max: int, devices_max: int) -> bool:
    """Return whether every fixed batch can run on some number of devices."""
    tables = (
        table_of(model, batch, batch, device_batch_max, devices_max) for batch in model.batches
    )
    return all(np.isfinite(table.scales).any() for table in tables)
