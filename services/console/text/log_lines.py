"""A line that a task printed, as people read it.

Services and trainers print one JSON object in a line: it becomes time, level, task, message and the
other fields. Any other line is shown as it is. Control characters are removed from foreign text.

TensorFlow repeats the failure of a program a dozen times while it travels between tasks, in the
words of gRPC and between the marks of `services/trainer/worker/failure_cause.py`. The text between
the marks is shown the first time only. Such a repetition ends at a line from another source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, tzinfo
from typing import Any

import msgspec
from rich.text import Text

from services.trainer.worker import failure_cause
from shared.text import cut_middle, single_line

LEVELS = {
    "debug": "dim",
    "info": "green",
    "warning": "bold yellow",
    "error": "bold red",
    "critical": "bold red",
}
ROUTINE = ("debug", "info")
TENSORFLOW_START = re.compile(
    rb"I\d{4} |WARNING: All log messages before absl::|E\d{4} .*failed call to cuInit"
    rb"|WARNING:tensorflow:A `tf\.distribute\.experimental\.ParameterServerStrategy` method is"
    rb" invoked"
)
"""Lines of TensorFlow's start: information, no GPU found, variables read by Weir's chief itself."""
IN_FRONT = ("timestamp", "level", "event")
OMITTED = ("service", "job", "settings", "exception")
"""Fields that are not shown: the job is known, settings are many (`--json` has them), an exception
has its own lines.
"""
LEVEL_WIDE = 7
TASK_WIDE = 10
EVENT_WIDE = 22
VALUE_MOST = 400


def is_routine(raw: bytes) -> bool:
    """Return True for a routine line of Weir or of the start of TensorFlow, which is not output of
    the program. Warnings and errors of Weir are not routine.
    """
    record = _parse_record(raw)
    return record.get("level") in ROUTINE if record else bool(TENSORFLOW_START.match(raw))


def format_log_line(raw: bytes, task: str, zone: tzinfo | None) -> Iterator[Text]:
    """Yield a line as people read it. `zone` None: the zone of this machine."""
    record = _parse_record(raw)
    if record is None:
        yield Text(_printable(raw.decode("utf-8", "replace")))
        return
    level = single_line(str(record.get("level", "")))
    event = single_line(str(record["event"]))
    text = Text()
    text.append(f"{_format_clock(record.get('timestamp'), zone)} ", "dim")
    text.append(f"{level:<{LEVEL_WIDE}} ", LEVELS.get(level, ""))
    text.append(f"{task:<{TASK_WIDE}} ", "cyan")
    text.append(f"{event:<{EVENT_WIDE}}", "bold")
    for name, value in _shown_fields(record):
        text.append(f" {name}=", "dim")
        text.append(value)
    yield text
    for line in _traceback_lines(record.get("exception")):
        yield Text(f"    {line}", "red")


def _parse_record(raw: bytes) -> dict[str, Any] | None:
    """Return the fields of a line; None if no service wrote the line."""
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) and "event" in found else None


def _shown_fields(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the fields to show, the generation first. Fields without a value are left out."""
    for name in sorted(record, key=lambda name: (name != "generation", name)):
        value = record[name]
        if value is None or name in IN_FRONT or name in OMITTED:
            continue
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        shown = cut_middle(single_line(text), VALUE_MOST, head=0.5, gap=" [...] ")
        yield single_line(name), shown


def _traceback_lines(exception: Any) -> Iterator[str]:
    """Yield the lines of structlog's traceback: each exception with its frames, the oldest
    first.
    """
    if isinstance(exception, str):
        yield from map(_printable, exception.splitlines())
    if not isinstance(exception, list):
        return
    for error in exception:
        if not isinstance(error, dict):
            continue
        frames = error.get("frames", ())
        if isinstance(frames, list):
            for frame in frames:
                place = f"{frame.get('filename')}:{frame.get('lineno')}"
                yield single_line(f"{place} in {frame.get('name')}")
        yield single_line(f"{error.get('exc_type')}: {error.get('exc_value')}")


def _format_clock(stamp: Any, zone: tzinfo | None) -> str:
    try:
        return f"{datetime.fromisoformat(stamp).astimezone(zone):%H:%M:%S.%f}"[:-3]
    except (TypeError, ValueError):
        return " " * len("00:00:00.000")


def _printable(text: str) -> str:
    """Return the text with spaces in place of control characters; its own spaces stay."""
    characters = []
    for character in text.rstrip("\r\n"):
        shown = character.isprintable() or character == "\t"
        characters.append(character if shown else " ")
    return "".join(characters)


BEGINS, ENDS = failure_cause.BEGINS.encode(), failure_cause.ENDS.encode()
REPETITION_BEGINS = re.compile(
    rb"ERROR:tensorflow: /job:.* when processing closure|E\d{4} .* Truncated error message: "
)
OTHER_SOURCE = re.compile(rb'\{"|[IWEF]\d{4} |(ERROR|WARNING|INFO):tensorflow:')
SUMMARY_LINE = re.compile(rb":UNKNOWN:Error received from peer .*grpc_status:")
"""The same failure repeated on one line."""
TRAILING_LINE = re.compile(
    rb"\t \[\[.*\]\]|Additional GRPC error information | +\(\d+\) [A-Z_]+: |0 (successful"
    rb" op|derived err)"
)
"""The lines after the failure: the operations that waited for the failed one."""


def without_repeated_failures(lines: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield each line without the marks, and True if it is shown."""
    shown_texts: set[bytes] = set()
    repeats = shows = trailing = False
    for line in lines:
        begins = bool(REPETITION_BEGINS.match(line)) or BEGINS in line
        summary = bool(SUMMARY_LINE.match(line))
        trailing = trailing and (summary or bool(TRAILING_LINE.match(line)))
        if begins or OTHER_SOURCE.match(line):
            repeats, shows = begins, False
        text = line.rpartition(BEGINS)[2]
        if text != line and not summary and text not in shown_texts:
            shown_texts.add(text)
            shows = True
        text, mark, _ = text.partition(ENDS)
        shown = not (repeats or trailing) or (shows and not summary)
        if repeats:
            line = text + b"\n" if mark else text
        yield line, shown
        if mark:
            shows = False
        if summary:
            trailing = trailing or repeats
            repeats = False
