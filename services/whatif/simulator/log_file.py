"""A recorded event log, as `weir events --json` prints it: a JSON object a line, with the whole
message.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from services.whatif.simulator.losses import Bad, Reason
from shared.bus.subjects import Unusable, decode, kind_of
from shared.messages import Message


class Line(msgspec.Struct, frozen=True):
    """The fields of a line that are needed."""

    time: datetime
    stream: str
    sequence: int
    subject: str
    message: msgspec.Raw


class Told(msgspec.Struct, frozen=True):
    """A message, with the place and the time (seconds since 1970) at which the server stored it."""

    at_s: float
    stream: str
    sequence: int
    message: Message


def told(text: str) -> list[Told]:
    """Return every message of a known kind, by time; raise `Bad`. Dead letters are passed over."""
    reasons: list[Reason] = []
    entries: list[Told] = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            entry = _entry(line)
        except (msgspec.DecodeError, Unusable, RecursionError) as error:
            reasons.append(Reason(number, f": {error}"))
            continue
        if entry is not None:
            entries.append(entry)

    if not entries and not reasons:
        reasons.append(Reason(1, ": the log is empty"))
    if reasons:
        raise Bad(reasons)
    entries.sort(key=lambda entry: (entry.at_s, entry.stream, entry.sequence))
    return entries


def _entry(line: str) -> Told | None:
    """Return the message of a line; None for an empty line, or a kind that is not known."""
    if not line.strip():
        return None
    said = msgspec.json.decode(line, type=Line)
    if not _is_known(said.subject):
        return None
    message = decode(said.subject, bytes(said.message))
    return Told(said.time.timestamp(), said.stream, said.sequence, message)


def _is_known(subject: str) -> bool:
    try:
        kind_of(subject)
    except Unusable:
        return False
    return True
