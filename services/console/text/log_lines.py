"""A line that a task printed, as people read it.

Services and trainers print one JSON object in a line: it becomes time, level, task, message and the
other fields. Any other line is shown as it is. Control characters are removed from foreign text.

TensorFlow repeats the failure of a program while it travels between tasks, a dozen times, in the
words of gRPC and between the marks of `services/trainer/worker/failure_cause.py`. The text between the marks is
shown the first time only. Such a repetition lasts until a line is known to be from another source.
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
"""Of TensorFlow: its information, that there is no GPU, and that Weir's chief reads variables by
itself.
"""
IN_FRONT = ("timestamp", "level", "event")
OMITTED = ("service", "job", "settings", "exception")
"""Fields left out too: the job is known, settings are many (`--json` has them), an exception has
its own lines.
"""
LEVEL_WIDE = 7
TASK_WIDE = 10
EVENT_WIDE = 22
VALUE_MOST = 400


def is_routine(raw: bytes) -> bool:
    """Return True for a routine line of Weir or of the start of TensorFlow, which is not output of
    the program. Warnings and errors of Weir are not routine.
    """
    said = _parse_record(raw)
    return said.get("level") in ROUTINE if said else bool(TENSORFLOW_START.match(raw))


def format_log_line(raw: bytes, task: str, zone: tzinfo | None) -> Iterator[Text]:
    """`zone` None: that of this machine."""
    said = _parse_record(raw)
    if said is None:
        yield Text(_printable(raw.decode("utf-8", "replace")))
        return
    level = single_line(str(said.get("level", "")))
    yield Text.assemble(
        (f"{_format_clock(said.get('timestamp'), zone)} ", "dim"),
        (f"{level:<{LEVEL_WIDE}} ", LEVELS.get(level, "")),
        (f"{task:<{TASK_WIDE}} ", "cyan"),
        (f"{single_line(str(said['event'])):<{EVENT_WIDE}}", "bold"),
        *(piece for name, value in _shown_fields(said) for piece in ((f" {name}=", "dim"), value)),
    )
    for line in _traceback_lines(said.get("exception")):
        yield Text(f"    {line}", "red")


def _parse_record(raw: bytes) -> dict[str, Any] | None:
    """Return None if no service wrote the line."""
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) and "event" in found else None


def _shown_fields(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return the fields, the generation first; unknown fields are left out."""
    for name in sorted(said, key=lambda name: (name != "generation", name)):
        value = said[name]
        if name not in (*IN_FRONT, *OMITTED) and value is not None:
            text = single_line(
                value if isinstance(value, str) else msgspec.json.encode(value).decode()
            )
            yield single_line(name), cut_middle(text, VALUE_MOST, head=0.5, gap=" [...] ")


def _traceback_lines(exception: Any) -> Iterator[str]:
    """As structlog tells it: each with its frames, the oldest first."""
    if isinstance(exception, str):
        yield from map(_printable, exception.splitlines())
    for one in exception if isinstance(exception, list) else ():
        frames = one.get("frames", ()) if isinstance(one, dict) else ()
        for frame in frames if isinstance(frames, list) else ():
            yield single_line(
                f"{frame.get('filename')}:{frame.get('lineno')} in {frame.get('name')}"
            )
        if isinstance(one, dict):
            yield single_line(f"{one.get('exc_type')}: {one.get('exc_value')}")


def _format_clock(stamp: Any, zone: tzinfo | None) -> str:
    try:
        return f"{datetime.fromisoformat(stamp).astimezone(zone):%H:%M:%S.%f}"[:-3]
    except (TypeError, ValueError):
        return " " * len("00:00:00.000")


def _printable(text: str) -> str:
    """Its spaces stay as they are."""
    return "".join(c if c.isprintable() or c == "\t" else " " for c in text.rstrip("\r\n"))


BEGINS, ENDS = failure_cause.BEGINS.encode(), failure_cause.ENDS.encode()
REPETITION_BEGINS = re.compile(
    rb"ERROR:tensorflow: /job:.* when processing closure|E\d{4} .* Truncated error message: "
)
OTHER_SOURCE = re.compile(rb'\{"|[IWEF]\d{4} |(ERROR|WARNING|INFO):tensorflow:')
SUMMARY_LINE = re.compile(rb":UNKNOWN:Error received from peer .*grpc_status:")
"""The same once more, on one line."""
TRAILING_LINE = re.compile(
    rb"\t \[\[.*\]\]|Additional GRPC error information | +\(\d+\) [A-Z_]+: |0 (successful"
    rb" op|derived err)"
)
"""The text behind it: the operations that waited for the failed one."""


def without_repeated_failures(lines: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Return a line without the marks, and True if it is shown."""
    told: set[bytes] = set()
    echoes = shows = ended = False
    for line in lines:
        begins, last = REPETITION_BEGINS.match(line) or BEGINS in line, SUMMARY_LINE.match(line)
        ended = ended and bool(last or TRAILING_LINE.match(line))
        if begins or OTHER_SOURCE.match(line):
            echoes, shows = bool(begins), False
        says = line.rpartition(BEGINS)[2]
        if says != line and not last and says not in told:
            told.add(says)
            shows = True
        text, mark, _ = says.partition(ENDS)
        shown = not (echoes or ended) or (shows and not last)
        yield (line if not echoes else text + b"\n" * bool(mark)), shown
        shows = shows and not mark
        ended, echoes = ended or bool(echoes and last), echoes and not last
