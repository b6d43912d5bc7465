"""Whether the ps have room for a second value of all that they hold, while a checkpoint is written.
Pure.

Besides, a second child is to fit beside it as before (`usage.lacks_room`): or a copy would cost the
job its next hand-over. With S the bytes of what a ps holds, both children grow by S; what was left
beside two must be 2 S at least.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from shared.messages import ClusterSpecPublished, TaskUsage

GIB = 1 << 30
UNKNOWN = "how much memory the ps have left is not known yet"


class Spare(NamedTuple):
    """GiB that the fullest ps has left beside two children; None: no ps has a limit."""

    gib: float | None


def spare(spec: ClusterSpecPublished, usage: Mapping[str, TaskUsage]) -> Spare | None:
    """Of all ps of a generation; None as long as one of them has not said what it uses."""
    names = [task_of(task.pod) for task in spec.tasks if task.role == "ps"]
    if any(name not in usage for name in names):
        return None
    limited = [left for name in names if (left := usage[name].spare_gib) is not None]
    return Spare(min(limited, default=None))


def task_of(pod: str) -> str:
    """`<job>-<role>-<serial>` without the job."""
    return "-".join(pod.split("-")[-2:])


def lacking(held: int, known: Spare | None) -> str:
    """Why `held` bytes, of the ps that holds most, cannot be there twice; empty where they can."""
    if known is None:
        return UNKNOWN
    if known.gib is None or 2 * held <= known.gib * GIB:
        return ""
    return (
        f"a ps has {max(known.gib, 0.0):.2f} GiB left beside its next generation, and {2 * held / GIB:.2f} are needed; "
        "with more memory for ps, training would go on meanwhile"
    )
