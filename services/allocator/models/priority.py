"""The weight of a job's priority.

    weight = 2^p                      for -16 <= p <= 16
    weight = 2^16 (1 + p - 16)        above
    weight = 2^-16 / (1 - 16 - p)     below

Small priorities double the weight with each step. Values of Kubernetes' PriorityClasses, up to
2^31, must not overflow: beyond 16 the weight is proportional to what exceeds 15. So it stays finite
and positive, always rises with the priority, and twice the value is about twice the weight. Our
choice.
"""

from __future__ import annotations

STEEP = 16
"""Up to this priority, and down to its negative, each step doubles the weight."""


def priority_weight(priority: int) -> float:
    """Return the weight, positive and finite."""
    within = max(-STEEP, min(priority, STEEP))
    beyond = 1.0 + abs(priority - within)
    if priority > 0:
        return float(2.0**within * beyond)
    return float(2.0**within / beyond)
