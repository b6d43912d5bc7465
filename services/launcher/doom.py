"""What a node's cordon and taints say about the pods that are on it.

A pod that does not tolerate a NoExecute taint is deleted for it at once. Who takes nodes away (autoscalers, clouds'
spot notices) says so beforehand by a taint of a known name, mostly one that only keeps new pods off. That a node is not
ready or cannot be reached is a taint, too, but it is judged by the node's readiness (`exits.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shared.messages import CORDONED, TAINTED, Taint
from shared.quantities import GPU

NO_EXECUTE = "NoExecute"
OF_READINESS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
TOLERATED = (*OF_READINESS, GPU)
TAKEN_AWAY: dict[str, float] = {
    "ToBeDeletedByClusterAutoscaler": 0.0,
    "karpenter.sh/disrupted": 0.0,
    "karpenter.sh/disruption": 0.0,
    "node.cloudprovider.kubernetes.io/shutdown": 0.0,
    "cloud.google.com/impending-node-termination": 30.0,
    "aws-node-termination-handler/spot-itn": 120.0,
    "aws-node-termination-handler/asg-lifecycle-termination": 0.0,
    "aws-node-termination-handler/scheduled-maintenance": 0.0,
    "aws-node-termination-handler/rebalance-recommendation": 0.0,
}
"""Taints that announce a node's end, and the seconds of notice that come with them; 0: not known."""


class Doom(msgspec.Struct, frozen=True):
    """Why a node's pods have to go, who says so, and within how many seconds (0: not known)."""

    why: str
    by: str = ""
    within_s: float = 0.0


def doom(unschedulable: bool, taints: Iterable[Taint]) -> Doom | None:
    """None for a node whose pods may stay; of several reasons the hardest."""
    found = [taint for taint in taints if _takes_away(taint)]
    if found:
        first = min(found, key=lambda taint: (TAKEN_AWAY.get(taint.key) or float("inf"), taint.key))
        return Doom(TAINTED, f"{first.key}:{first.effect}", TAKEN_AWAY.get(first.key, 0.0))
    return Doom(CORDONED) if unschedulable else None


def _takes_away(taint: Taint) -> bool:
    return taint.key in TAKEN_AWAY or (taint.effect == NO_EXECUTE and taint.key not in TOLERATED)
