"""A stored message as one line: time, name, kind, subject, the usual numbers, and a sentence.

For people the line has columns, with colours where the terminal has them; at a terminal it has
fewer columns, and a long sentence continues below its own beginning. For programs it is one JSON
object with the whole message. A dead letter is one line of a list, or all of its fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from services.console.log_entry import Entry, event_name
from services.console.text.sentences import sentence
from shared.bus.subjects import BY_TAG, tag_of
from shared.messages import (
    CapacityChanged,
    ChangeRejected,
    CheckpointFailed,
    CheckpointSkipped,
    ClaimsChanged,
    DeadLetter,
    GenerationAbandoned,
    JobFinished,
    JobRejected,
    JobRequested,
    Message,
    QuotaChanged,
    ServiceTroubled,
)
from shared.text import headline, single_line

DEAD = "dead.letter"
STYLES = {
    "job": "cyan",
    "capacity": "blue",
    "allocation": "magenta",
    "cluster": "yellow",
    "task": "white",
}
STYLES |= {"training": "green", "dead": "red", "service": "bright_black"}
BAD = "bold red"
BETWEEN = {"revision": "rev", "generation": "gen", "step": "step"}
AT_THE_ENDS = {"uid": "uid", **BETWEEN}
WIDTHS = (19, 6, 20, 18, 22)  # time, name, kind, object, numbers
CLOCK_WIDTH = 8
LONGEST_FACT = max(map(len, BY_TAG))
OBJECT_WIDTH = 14


def event_line(entry: Entry, zone: tzinfo | None) -> Text:
    """Return the message as one line, however long. `zone` None: the zone of this machine."""
    day, clock = date_and_time(entry.stored_s, zone)
    columns = (
        f"{day} {clock}",
        event_name(entry),
        event_kind(entry.message),
        event_object(entry.message),
        event_numbers(entry),
    )
    styles = ("dim", "dim", event_style(entry.message), "bold", "dim")
    return cells_and_sentence(
        [*zip(columns, WIDTHS, styles, strict=True)], format_event(entry), None
    )


def short_event_line(entry: Entry, zone: tzinfo | None, width: int) -> Text:
    """Return the line for a terminal of so many columns; the day is in a line above."""
    return cells_and_sentence(
        [(date_and_time(entry.stored_s, zone)[1], CLOCK_WIDTH, "dim"), *event_cells(entry)],
        format_event(entry),
        width,
    )


def event_cells(entry: Entry) -> list[Cell]:
    """Return the name, the kind and the job of a message."""
    name = (event_name(entry), WIDTHS[1], "dim")
    return [
        name,
        (event_kind(entry.message), LONGEST_FACT, event_style(entry.message)),
        (event_object(entry.message), OBJECT_WIDTH, "bold"),
    ]


def format_event(entry: Entry) -> Text:
    return Text(sentence(entry.message), BAD if needs_attention(entry.message) else "")


def event_json(entry: Entry) -> str:
    """Return the message as one JSON object."""
    return msgspec.json.encode(event_fields(entry)).decode()


def event_fields(entry: Entry) -> dict[str, Any]:
    """Return the fields of the JSON object. `event`: the name for `weir why`; `id`: a message that
    was sent twice has the same one.
    """
    return {
        "time": _iso_time(entry.stored_s),
        "event": event_name(entry),
        "fact": event_kind(entry.message),
        "stream": entry.stream,
        "sequence": entry.sequence,
        "subject": entry.subject,
        "id": entry.message.id() if isinstance(entry.message, Message) else None,
        "sentence": sentence(entry.message),
        "message": entry.message,
    }


def event_kind(message: Message | DeadLetter) -> str:
    return DEAD if isinstance(message, DeadLetter) else tag_of(type(message))


def event_object(message: Message | DeadLetter) -> str:
    """Return the node, the service, or the job that a message is about. A job has its namespace
    before it, except for the default one.
    """
    if isinstance(message, CapacityChanged):
        return message.node
    if isinstance(message, QuotaChanged | ClaimsChanged):
        return message.namespace
    if isinstance(message, ServiceTroubled):
        return message.service
    job, namespace = getattr(message, "job", "-"), getattr(message, "namespace", "default")
    return job if namespace == "default" else f"{namespace}/{job}"


def event_numbers(entry: Entry) -> str:
    """Return the numbers to search for: the uid at both ends of a job's life; revision, generation
    and step in between.
    """
    if isinstance(entry.message, JobRequested):
        return f"uid={entry.sequence}"
    labels = AT_THE_ENDS if event_kind(entry.message).startswith("job.") else BETWEEN
    numbers = []
    for field, label in labels.items():
        value = getattr(entry.message, field, 0)
        if value:
            numbers.append(f"{label}={value}")
    return " ".join(numbers)


def date_and_time(stored_s: float, zone: tzinfo | None) -> tuple[str, str]:
    """Return the day and the time of day. `zone` None: the zone of this machine."""
    at = datetime.fromtimestamp(stored_s, UTC).astimezone(zone)
    return f"{at:%Y-%m-%d}", f"{at:%H:%M:%S}"


def event_style(message: Message | DeadLetter) -> str:
    return BAD if needs_attention(message) else STYLES[event_kind(message).partition(".")[0]]


def needs_attention(message: Message | DeadLetter) -> bool:
    """Return True for a message that needs attention."""
    if isinstance(message, JobFinished):
        return message.outcome == "failed"
    if isinstance(message, ServiceTroubled):
        return message.seconds is None
    failures = (
        JobRejected,
        ChangeRejected,
        GenerationAbandoned,
        CheckpointFailed,
        CheckpointSkipped,
        DeadLetter,
    )
    return isinstance(message, failures) or bool(getattr(message, "error", None))


Cell = tuple[str, int, str]
"""Text, width in columns, style. A wider text moves the rest of the line to the right."""
LEAST_SENTENCE_WIDTH, INDENT = 24, 6
"""A sentence with fewer columns than this beside its cells is below them, with this indent."""


def cells_and_sentence(cells: Sequence[Cell], sentence: Text, width: int | None) -> Text:
    """Return the cells with the sentence beside or below them. `width` of the terminal; None: one
    line, however long.
    """
    front = Text()
    for text, cell_width, style in cells:
        front.append(f"{_pad_text(single_line(text), cell_width)} ", style)
    if width is None or sentence.cell_len <= width - front.cell_len:
        return Text.assemble(front, sentence)
    if width - front.cell_len >= LEAST_SENTENCE_WIDTH:
        return Text.assemble(front, _wrap_sentence(sentence, width, front.cell_len))
    front.rstrip()
    return Text.assemble(front, "\n", " " * INDENT, _wrap_sentence(sentence, width, INDENT))


def _wrap_sentence(sentence: Text, width: int, indent: int) -> Text:
    lines = sentence.wrap(RULER, max(width - indent, LEAST_SENTENCE_WIDTH))
    for line in lines:
        line.rstrip()
    return Text(f"\n{' ' * indent}").join(lines)


RULER = Console(width=1)
"""Wrapping needs a console; the width is given each time."""


def _pad_text(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


DEAD_LETTER_FIELDS = ("stream", "sequence", "said_by", "subject", "error", "body")


def format_dead_letter(
    number: int, letter: DeadLetter, stored_s: float, zone: tzinfo | None
) -> Text:
    """Return a dead letter as one line. `number`: its name in commands. `zone` None: the zone of
    this machine.
    """
    return Text.assemble(
        (f"{number:>6} ", "bold"),
        (f"{' '.join(date_and_time(stored_s, zone))} ", "dim"),
        (f"{single_line(letter.subject)} ", "cyan"),
        headline(letter.error),
    )


def format_dead_letter_fields(letter: DeadLetter) -> str:
    """Return one line for each field; the unchanged body is the last one."""
    lines = []
    for name in DEAD_LETTER_FIELDS:
        label = f"{name}:"
        lines.append(f"{label:<10}{getattr(letter, name)}")
    return "\n".join(lines)


def encode_dead_letter(entry: Entry) -> str:
    """Return a dead letter as one JSON object."""
    assert isinstance(entry.message, DeadLetter)
    fields: dict[str, Any] = {"letter": entry.sequence, "time": _iso_time(entry.stored_s)}
    fields |= msgspec.structs.asdict(entry.message)
    return msgspec.json.encode(fields).decode()


def _iso_time(stored_s: float) -> str:
    return datetime.fromtimestamp(stored_s, UTC).isoformat()
