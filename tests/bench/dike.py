"""Measure how near a few probes come to the best size.

`make bench-dike [SURFACES=FILE.csv]` (about two minutes). FILE has measured speeds,
`model,mode,ps,workers,global_batch,samples_per_second`; the default is `surfaces.csv` beside this
module. A surface is what was measured of one model in one mode with one batch. For every budget, ps
+ workers <= 6 to 24, and every seed, Dike's search measures at most 8 (and at most 4) sizes, each
with an error of 3 % (normal, relative), and selects one. Only sizes that were measured in FILE and
are within the budget may be probed or selected, so nothing is interpolated. The figure is the true
speed of the selected size divided by the best true speed within the budget.

Static rules, on the same sizes:

    one_ps      1 ps (or the fewest measured) and as many workers as the budget allows
    even        as many ps as workers, as many as the budget allows
    quarter     the size with the most workers, of those with the number of ps nearest to a quarter
                of the workers
    everything  the whole budget, in any division: every size with the largest number of tasks
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from services.allocator.models.search import search_sizes
from services.allocator.policies.contract import Size
from tests.bench.report import finish, percentile, say

BUDGETS = range(6, 25)
SEEDS = int(os.environ.get("BENCH_SEEDS", "20"))
NOISE = 0.03
SURFACES = Path(__file__).with_name("surfaces.csv")
"""Measured speeds of five models, the default input."""
PROBES = (8, 4)

Speeds = Mapping[Size, float]


class Surface:
    """The measured speeds of one model, in samples per second, by size."""

    def __init__(self, name: str, batch: int, speeds: Speeds) -> None:
        self.name, self.batch, self.speeds = name, batch, speeds

    def within(self, budget: int) -> Surface:
        inside = {size: v for size, v in self.speeds.items() if size.ps + size.workers <= budget}
        return Surface(self.name, self.batch, inside)

    @property
    def sizes(self) -> list[Size]:
        return sorted(self.speeds, key=lambda s: (s.ps, s.workers))

    def share(self, size: Size) -> float:
        return self.speeds[size] / max(self.speeds.values())


def read(path: Path) -> list[Surface]:
    """Read the surfaces. A size that was measured more than once has the mean of its speeds."""
    found: dict[tuple[str, str, int], dict[Size, list[float]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            key = (row["model"], row.get("mode") or "", int(row["global_batch"]))
            speeds = found.setdefault(key, {}).setdefault(
                Size(int(row["ps"]), int(row["workers"])), []
            )
            speeds.append(float(row["samples_per_second"]))
    models = [model for model, _, _ in found]
    return [
        Surface(
            model if models.count(model) == 1 else f"{model}/{mode}/{batch}",
            batch,
            {size: sum(values) / len(values) for size, values in speeds.items()},
        )
        for (model, mode, batch), speeds in found.items()
    ]


def probed(surface: Surface, number: int, probes: int) -> list[float]:
    """Return the shares of the optimum, for every budget and seed."""
    shares = []
    for budget in BUDGETS:
        inside = surface.within(budget)
        for seed in range(SEEDS if inside.speeds else 0):
            shares.append(_once(inside, np.random.default_rng((seed, budget, number)), probes))
    return shares


def _once(surface: Surface, chance: np.random.Generator, probes: int) -> float:
    def measure(size: Size) -> float:
        return surface.speeds[size] * max(0.01, 1.0 + NOISE * float(chance.standard_normal()))

    found = search_sizes(surface.sizes, surface.batch, measure, probes)
    assert len(found.observed) <= probes
    return surface.share(found.size)


def one_ps(sizes: Sequence[Size]) -> list[Size]:
    fewest = min(s.ps for s in sizes)
    return [max((s for s in sizes if s.ps == fewest), key=lambda s: s.workers)]


def even(sizes: Sequence[Size]) -> list[Size]:
    return [min(sizes, key=lambda s: (abs(s.ps - s.workers), -s.workers))]


def quarter(sizes: Sequence[Size]) -> list[Size]:
    counts = {s.ps for s in sizes}
    nearest = [s for s in sizes if s.ps == min(counts, key=lambda p: abs(p - s.workers / 4))]
    return [max(nearest or list(sizes), key=lambda s: s.workers)]


def everything(sizes: Sequence[Size]) -> list[Size]:
    most = max(s.ps + s.workers for s in sizes)
    return [s for s in sizes if s.ps + s.workers == most]


STATIC = {"one_ps": one_ps, "even": even, "quarter": quarter, "everything": everything}


def static(surface: Surface, rule: str) -> list[float]:
    insides = (surface.within(budget) for budget in BUDGETS)
    return [
        inside.share(size)
        for inside in insides
        if inside.speeds
        for size in STATIC[rule](inside.sizes)
    ]


def figures(shares: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return `mean_8, p5_8, min_8, mean_4, ...`, and the same for each static rule."""
    said: dict[str, float] = {}
    for name, values in ((name, list(values)) for name, values in shares.items()):
        for what, value in (
            ("mean", sum(values) / len(values)),
            ("p5", percentile(values, 0.05)),
            ("min", min(values)),
        ):
            said[f"{what}_{name}" if name.isdigit() else f"{name}_{what}"] = round(value, 4)
    return said


def measured(surfaces: Sequence[Surface]) -> dict[str, Any]:
    pooled: dict[str, list[float]] = {}
    models = {}
    for number, surface in enumerate(surfaces):
        shares = {str(probes): probed(surface, number, probes) for probes in PROBES}
        shares |= {rule: static(surface, rule) for rule in STATIC}
        for name, values in shares.items():
            pooled.setdefault(name, []).extend(values)
        models[surface.name] = said = figures(shares)
        say(f"{number + 1}/{len(surfaces)} {surface.name:28} " + _line(said))
    total = figures(pooled)
    say(f"{'all':32} " + _line(total))
    return {**total, "surfaces": len(surfaces), "models": models}


def _line(said: Mapping[str, float]) -> str:
    probes = ", ".join(
        f"{p} probes {said[f'mean_{p}']:.3f} (5 %: {said[f'p5_{p}']:.3f})" for p in PROBES
    )
    return f"{probes}; " + ", ".join(f"{rule} {said[f'{rule}_mean']:.3f}" for rule in STATIC)


if __name__ == "__main__":
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else SURFACES
    finish(measured([s for s in read(file) if s.within(max(BUDGETS)).speeds]))
