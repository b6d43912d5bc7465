"""Which taints take a node's pods away, and whether a node has been closed to new ones by somebody
who may open it.

A pod that does not tolerate a NoExecute taint is deleted for it at once. Who takes nodes away
(autoscalers, clouds' spot notices) says so beforehand by a taint of a known name, mostly one that
only keeps new pods off. That a node is not ready or cannot be reached is a taint, too, but says
nothing of whether its pods have to go.

How long a task may take to end: as long as its job was seen to need to move a task elsewhere.
Pure.

    grace = max(asked, min(MARGIN * change, most))

asked: `grace_s` of the request; change: the longest of the last measured times from a decision to
the first update of the generation that it wanted (pods, preparation, drain, save, restore); most: a
bound that somebody else sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shared.kube.objects import GPU
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


def evicts_pods(taint: Taint) -> bool:
    return taint.key in TAKEN_AWAY or (taint.effect == NO_EXECUTE and taint.key not in TOLERATED)


def leaving_reason(schedulable: bool, taints: Iterable[Taint]) -> str:
    """Why its pods have to go, the hardest reason; empty where they may stay."""
    if any(evicts_pods(taint) for taint in taints):
        return TAINTED
    return "" if schedulable else CORDONED


MARGIN = 1.5
MEASUREMENTS_KEPT = 3
"""Measurements that count."""


def grace_period(asked_s: float, changes_s: Sequence[float], most_s: float) -> float:
    """Seconds; what was asked for where nothing was measured."""
    return max(asked_s, min(MARGIN * max(changes_s, default=0.0), most_s))


def add_measurement(changes_s: Sequence[float], change_s: float) -> tuple[float, ...]:
    """The measurements with one more; 0 is none."""
    return (*changes_s, *((change_s,) if change_s > 0 else ()))[-MEASUREMENTS_KEPT:]
