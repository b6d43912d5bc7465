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
    pulls: dict[str, dict[str, float]] = {node: {} for node in pots}
    for job, shares in demands.items():
        for node in shares.keys() & pulls.keys():
            pulls[node][job] = weights[job] * shares[node]
    while growing:
        pull = {node: math.fsum(of.values()) for node, of in pulls.items()}
        steps = {node: left[node] / p for node, p in pull.items() if p > 0}
        if not steps:
            break
        full = min(steps, key=lambda node: steps[node])
        for job in growing:
            level[job] += steps[full] * weights[job]
        left = {node: max(0.0, left[node] - steps[full] * pull[node]) for node in left}
        for job in [job for job in growing if demands[job].get(full)]:
            growing.remove(job)
            for node in demands[job].keys() & pulls.keys():
                del pulls[node][job]
    return level
