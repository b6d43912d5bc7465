"""What a node's cordon and taints say about the pods that are on it.

Which taints take pods away is said in `shared/kube/eviction.py`. That a node is not ready or cannot be
reached is a taint, too, but it is judged by the node's readiness (`exits.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shared.kube.eviction import TAKEN_AWAY, evicts_pods
from shared.messages import CORDONED, TAINTED, Taint


class Doom(msgspec.Struct, frozen=True):
    """Why a node's pods have to go, who says so, and within how many seconds (0: not known)."""

    why: str
    by: str = ""
    within_s: float = 0.0


def doom(unschedulable: bool, taints: Iterable[Taint]) -> Doom | None:
    """None for a node whose pods may stay; of several reasons the hardest."""
    found = [taint for taint in taints if evicts_pods(taint)]
    if found:
        first = min(found, key=lambda taint: (TAKEN_AWAY.get(taint.key) or float("inf"), taint.key))
        return Doom(TAINTED, f"{first.key}:{first.effect}", TAKEN_AWAY.get(first.key, 0.0))
    return Doom(CORDONED) if unschedulable else None
