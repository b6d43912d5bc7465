"""All of one stop that was asked for, told together: one thing that happened, not a dozen that went
wrong. Pure.

Of a stop are the ends of pods whose nodes or cluster are shut down in order, and what their tasks
said of it before (SIGTERM). It is another one where nothing of it was told for so long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from services.allocator.state.exits import SHUT_DOWN
from services.whatif.event_log import LogEntry
from shared.messages import SIGTERM, Message, TaskExited, TaskLeaving

APART_S = 120.0
"""Longer than a stop gives pods to end."""
Stop = tuple[LogEntry, ...]


def folded(marks: Sequence[LogEntry]) -> list[Stop]:
    """In order; what is of no stop stands by itself."""
    shut = {said.pod_uid for said in ends(marks)}
    found: list[Stop] = []
    last: int | None = None  # where the newest stop stands
    for one in marks:
        if not _is_of_stop(one.message, shut):
            found.append((one,))
        elif last is not None and one.at_s - found[last][-1].at_s <= APART_S:
            found[last] = (*found[last], one)
        else:
            last = len(found)
            found.append((one,))
    return found


def ends(told: Sequence[LogEntry]) -> Iterator[TaskExited]:
    """Of those that were shut down."""
    messages = (one.message for one in told)
    return (said for said in messages if isinstance(said, TaskExited) and said.reason in SHUT_DOWN)


def _is_of_stop(said: Message, shut: set[str]) -> bool:
    if isinstance(said, TaskLeaving):
        return said.why == SIGTERM and said.pod_uid in shut
    return isinstance(said, TaskExited) and said.reason in SHUT_DOWN
