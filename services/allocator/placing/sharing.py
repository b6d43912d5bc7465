"""How cores are divided among jobs that stand on several nodes each: weighted max-min, by progressive filling.

All jobs grow together, each in proportion to its weight; a job stops where a node that it stands on is full; the others
grow on. The result gives no node more than it has, and nobody more could be had without taking it from a job that has
less for its weight (Bertsekas & Gallager, Data Networks, section 6.5.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping


def filled(
    pots: Mapping[str, float], demands: Mapping[str, Mapping[str, float]], weights: Mapping[str, float]
) -> dict[str, float]:
    """Cores for each job. `pots`: cores a node; `demands[job][node]`: the share of the job's cores that lies there."""
    left, level, growing = dict(pots), dict.fromkeys(demands, 0.0), sorted(demands)
    while growing:
        pull = {node: math.fsum(weights[j] * demands[j].get(node, 0.0) for j in growing) for node in left}
        steps = {node: left[node] / p for node, p in pull.items() if p > 0}
        if not steps:
            break
        full = min(steps, key=lambda node: steps[node])
        for job in growing:
            level[job] += steps[full] * weights[job]
        left = {node: max(0.0, left[node] - steps[full] * pull[node]) for node in left}
        growing = [job for job in growing if not demands[job].get(full)]
    return level
