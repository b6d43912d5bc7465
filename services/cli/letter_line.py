"""One dead letter, as a line of a list and whole: pure."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import Any

import msgspec
from rich.text import Text

from services.cli.entry import Entry
from services.cli.event_line import when
from shared.messages import DeadLetter
from shared.text import headline, single_line

SHOWN = ("stream", "sequence", "said_by", "subject", "error", "body")


def line(number: int, letter: DeadLetter, stored_s: float, zone: tzinfo | None) -> Text:
    """`number`: by which it is asked for. `zone` None: that of this machine."""
    return Text.assemble(
        (f"{number:>6} ", "bold"),
        (f"{' '.join(when(stored_s, zone))} ", "dim"),
        (f"{single_line(letter.subject)} ", "cyan"),
        headline(letter.error),
    )


def whole(letter: DeadLetter) -> str:
    """A line a field; the body last, as it was."""
    return "\n".join(f"{name + ':':<10}{getattr(letter, name)}" for name in SHOWN)


def document(entry: Entry) -> str:
    """One JSON object."""
    assert isinstance(entry.said, DeadLetter)
    fields: dict[str, Any] = msgspec.structs.asdict(entry.said)
    return msgspec.json.encode(
        {"letter": entry.sequence, "time": _iso(entry.stored_s), **fields}
    ).decode()


def _iso(stored_s: float) -> str:
    return datetime.fromtimestamp(stored_s, UTC).isoformat()
