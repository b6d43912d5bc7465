"""What an exit means.

Law: a task that was taken away (evicted, deleted, killed by a signal, node lost) is replaced and costs the job nothing;
a task that failed by itself (1-127) or ran out of memory is replaced too, but counts against `max_failures`. Exit code
0 is completion, unless somebody took the pod away.
"""

from __future__ import annotations

import msgspec

COMPLETED = 0
OUT_OF_MEMORY, UNSCHEDULABLE = "OOMKilled", "Unschedulable"
TAKEN = frozenset(
    {"Evicted", "NodeLost", "Deleted", "Preempting", "Preempted", "Terminated", "NodeShutdown", "Shutdown"}
)
SIGNALS = range(128, 256)


class Exit(msgspec.Struct, frozen=True):
    """How one pod ended."""

    role: str
    code: int | None
    reason: str = ""
    message: str = ""
    at_s: float = 0.0


def taken(ended: Exit) -> bool:
    return ended.reason in TAKEN or ended.code is None or ended.code in SIGNALS


def completed(ended: Exit | None) -> bool:
    return ended is not None and ended.code == COMPLETED and ended.reason not in TAKEN


def lost(ended: Exit | None) -> bool:
    """Must the task be replaced?"""
    return ended is not None and not completed(ended)


def own_fault(ended: Exit) -> bool:
    return ended.reason == OUT_OF_MEMORY or (lost(ended) and not taken(ended))


def told(ended: Exit) -> str:
    code = "" if ended.code is None else f"exit code {ended.code}"
    return ", ".join(part for part in (ended.reason, code, ended.message) if part) or "gone"
