"""Taints that evict a node's pods, and the grace period that a task gets.

A pod that does not tolerate a NoExecute taint is deleted at once. Autoscalers and the spot notices
of clouds announce the end of a node with a taint of a known name; most of them only keep new pods
off. "Not ready" and "unreachable" are taints too, but do not mean that pods have to leave.

    grace = max(requested, min(MARGIN * change, most))

requested: `grace_s` of the request; change: the longest of the last measured times from a decision
to the first update of its generation (pods, preparation, drain, save, restore); most: the bound of
the platform.
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
    """Return the strongest reason why a node's pods have to leave; empty if they may stay."""
    if any(evicts_pods(taint) for taint in taints):
        return TAINTED
    return "" if schedulable else CORDONED


MARGIN = 1.5
MEASUREMENTS_KEPT = 3
"""Number of measurements that count."""


def grace_period(asked_s: float, changes_s: Sequence[float], most_s: float) -> float:
    """Return seconds; the requested period if nothing was measured."""
    return max(asked_s, min(MARGIN * max(changes_s, default=0.0), most_s))


def add_measurement(changes_s: Sequence[float], change_s: float) -> tuple[float, ...]:
    """Return the last measurements with one more. 0 is no measurement."""
    if change_s > 0:
        changes_s = (*changes_s, change_s)
    return tuple(changes_s[-MEASUREMENTS_KEPT:])
