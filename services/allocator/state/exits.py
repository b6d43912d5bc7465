"""The meaning of a task's exit.

Law: a task that was taken away (evicted, deleted, killed by a signal, node lost) is replaced and
costs the job nothing; a task that failed by itself (1-127) or ran out of memory is replaced too,
but counts against `max_failures`. Exit code 0 is completion, unless somebody took the pod away.

The cause of a kill may be unknown: too little memory in the process or on the machine, broken code,
a person. A trainer with a killed child, or with another task lost, ends as if it had been killed,
too. Such an end counts as long as the job gets no further, unless the lost task had been taken
away.

A trainer that the bus failed says so by an exit code of its own, `BUS_LOST`. It is replaced and
counts nowhere.
"""

from __future__ import annotations

import msgspec

COMPLETED = 0
OUT_OF_MEMORY, UNSCHEDULABLE = "OOMKilled", "Unschedulable"
TAKEN = frozenset(
    {
        "Evicted",
        "NodeLost",
        "Deleted",
        "Preempting",
        "Preempted",
        "Terminated",
        "NodeShutdown",
        "Shutdown",
    }
)
SHUT_DOWN = frozenset({"Terminated", "NodeShutdown", "Shutdown"})
"""Its node, or the whole cluster, was shut down in order: nothing broke."""
SIGNALS = range(128, 256)
TERMINATED = 128 + 15  # asked to end: somebody wanted it so
LOST_ANOTHER = 128 + 10  # the trainer's `EXIT_RETRY`
BUS_LOST = 128 + 12  # the trainer's `EXIT_BUS_LOST`


class Exit(msgspec.Struct, frozen=True, gc=False):
    """How one pod ended."""

    role: str
    code: int | None
    reason: str = ""
    message: str = ""
    at_s: float = 0.0


def was_taken_away(ended: Exit) -> bool:
    """Return True if the task was taken away."""
    return ended.reason in TAKEN or ended.code is None or ended.code in SIGNALS


def is_completed(ended: Exit | None) -> bool:
    """Return True if the task ended with exit code 0 and its pod was not taken away."""
    return ended is not None and ended.code == COMPLETED and ended.reason not in TAKEN


def is_lost(ended: Exit | None) -> bool:
    """Return True if the task must be replaced."""
    return ended is not None and not is_completed(ended)


def is_own_fault(ended: Exit) -> bool:
    return ended.reason == OUT_OF_MEMORY or (is_lost(ended) and not was_taken_away(ended))


def is_unexplained(ended: Exit) -> bool:
    """Return True if the task was killed without anybody saying why."""
    if ended.code not in SIGNALS or ended.code in (TERMINATED, BUS_LOST):
        return False
    return ended.reason not in TAKEN and ended.reason != OUT_OF_MEMORY


def describe_exit(ended: Exit) -> str:
    """Return the exit in one line, with the last line of the task's log."""
    parts = []
    if ended.reason:
        parts.append(ended.reason)
    if ended.code == BUS_LOST:
        parts.append(f"exit code {ended.code} (it lost the bus)")
    elif ended.code is not None:
        parts.append(f"exit code {ended.code}")
    last_line = _last_line(ended.message)
    if last_line:
        parts.append(last_line)
    return ", ".join(parts) or "gone"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
