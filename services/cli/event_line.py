"""One stored message as one line: when, what, whose, the numbers one looks for, and a sentence. Pure.

For people: columns, with colours where the terminal has them. For programs: one JSON object, the message whole.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import Any

import msgspec
from rich.text import Text

from services.cli.entry import Entry
from services.cli.sentences import sentence
from services.cli.words import plain
from shared.messages import (
    CapacityChanged,
    CheckpointFailed,
    CheckpointSkipped,
    DeadLetter,
    GenerationAbandoned,
    JobFinished,
    JobRejected,
    JobRequested,
    Message,
)
from shared.subjects import tag_of

DEAD = "dead.letter"
STYLES = {"job": "cyan", "capacity": "blue", "allocation": "magenta", "cluster": "yellow", "task": "white"}
STYLES |= {"training": "green", "dead": "red"}
BAD = "bold red"
BETWEEN = {"revision": "rev", "generation": "gen", "step": "step"}
AT_THE_ENDS = {"uid": "uid", **BETWEEN}
WIDTHS = (19, 20, 18, 22)  # time, fact, whose, numbers


def line(entry: Entry, zone: tzinfo | None) -> Text:
    """`zone` None: that of this machine."""
    columns = (when(entry.stored_s, zone), fact(entry.said), whose(entry.said), numbers(entry))
    styles = ("dim", style(entry.said), "bold", "dim")
    padded = [(f"{plain(text):<{width}} ", s) for text, width, s in zip(columns, WIDTHS, styles, strict=True)]
    return Text.assemble(*padded, (sentence(entry.said), BAD if bad(entry.said) else ""))


def document(entry: Entry) -> str:
    """One JSON object."""
    parts: dict[str, Any] = {
        "time": datetime.fromtimestamp(entry.stored_s, UTC).isoformat(),
        "fact": fact(entry.said),
        "stream": entry.stream,
        "sequence": entry.sequence,
        "subject": entry.subject,
        "sentence": sentence(entry.said),
        "message": entry.said,
    }
    return msgspec.json.encode(parts).decode()


def fact(said: Message | DeadLetter) -> str:
    return DEAD if isinstance(said, DeadLetter) else tag_of(type(said))


def whose(said: Message | DeadLetter) -> str:
    """The node, or the job: with its namespace where that is not the default one."""
    if isinstance(said, CapacityChanged):
        return said.node
    job, namespace = getattr(said, "job", "-"), getattr(said, "namespace", "default")
    return job if namespace == "default" else f"{namespace}/{job}"


def numbers(entry: Entry) -> str:
    """What one greps for: the uid at both ends of a job's life; revision, generation and step in between."""
    if isinstance(entry.said, JobRequested):
        return f"uid={entry.sequence}"
    chosen = AT_THE_ENDS if fact(entry.said).startswith("job.") else BETWEEN
    return " ".join(f"{short}={value}" for name, short in chosen.items() if (value := getattr(entry.said, name, 0)))


def when(stored_s: float, zone: tzinfo | None) -> str:
    return datetime.fromtimestamp(stored_s, UTC).astimezone(zone).strftime("%Y-%m-%d %H:%M:%S")


def style(said: Message | DeadLetter) -> str:
    return BAD if bad(said) else STYLES[fact(said).partition(".")[0]]


def bad(said: Message | DeadLetter) -> bool:
    """What somebody should look at."""
    if isinstance(said, JobFinished):
        return said.outcome == "failed"
    failures = (JobRejected, GenerationAbandoned, CheckpointFailed, CheckpointSkipped, DeadLetter)
    return isinstance(said, failures) or bool(getattr(said, "error", None))
