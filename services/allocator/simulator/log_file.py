"""A recorded event log, as `weir events --json` prints it: one JSON object a line, the message whole."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec

from services.allocator.simulator.tables import Bad, Reason
from shared.messages import Message
from shared.subjects import Unusable, decode, kind_of


class Line(msgspec.Struct, frozen=True):
    """What we need of a line."""

    time: datetime
    stream: str
    sequence: int
    subject: str
    message: msgspec.Raw


class Told(msgspec.Struct, frozen=True):
    """A message, and where and when the server stored it (seconds since 1970)."""

    at_s: float
    stream: str
    sequence: int
    message: Message


def told(text: str) -> list[Told]:
    """Every message of a kind that we know, by time; dead letters are passed over. Raises `Bad`."""
    reasons: list[Reason] = []
    lines = enumerate(text.splitlines(), start=1)
    entries = [entry for number, line in lines for entry in _entry(number, line, reasons)]
    if not entries and not reasons:
        reasons.append(Reason(1, ": the log is empty"))
    if reasons:
        raise Bad(reasons)
    return sorted(entries, key=lambda entry: (entry.at_s, entry.stream, entry.sequence))


def _entry(number: int, line: str, reasons: list[Reason]) -> Iterator[Told]:
    if not line.strip():
        return
    try:
        said = msgspec.json.decode(line, type=Line)
        if _is_known(said.subject):
            message = decode(said.subject, bytes(said.message))
            yield Told(said.time.timestamp(), said.stream, said.sequence, message)
    except (msgspec.DecodeError, Unusable, RecursionError) as error:
        reasons.append(Reason(number, f": {error}"))


def _is_known(subject: str) -> bool:
    try:
        kind_of(subject)
    except Unusable:
        return False
    return True
