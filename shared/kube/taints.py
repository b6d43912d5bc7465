"""Which taints take a node's pods away, and whether a node has been closed to new ones by somebody
who may open it.

A pod that does not tolerate a NoExecute taint is deleted for it at once. Who takes nodes away
(autoscalers, clouds' spot notices) says so beforehand by a taint of a known name, mostly one that
only keeps new pods off. That a node is not ready or cannot be reached is a taint, too, but says
nothing of whether its pods have to go.
"""

from __future__ import annotations

from collections.abc import Iterable

from shared.kube.quantities import GPU
from shared.messages import CORDONED, TAINTED, Taint

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
"""Taints that announce a node's end, and the seconds of notice that come with them; 0: not
known.
"""


def takes_away(taint: Taint) -> bool:
    return taint.key in TAKEN_AWAY or (taint.effect == NO_EXECUTE and taint.key not in TOLERATED)


def closed(schedulable: bool, taints: Iterable[Taint]) -> str:
    """Why its pods have to go, the hardest reason; empty where they may stay."""
    if any(takes_away(taint) for taint in taints):
        return TAINTED
    return "" if schedulable else CORDONED
