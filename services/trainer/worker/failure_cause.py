"""Describe the causes of failures, of the program and of the storage, in terms the reader knows.

The first line can be read alone: the program's file and line, and the exception. After it comes the
traceback, without the frames of Weir and TensorFlow if the program has frames of its own.

A frame of the program may be in three places: in the exception's traceback, in that of an earlier
exception, or, because TensorFlow traces and runs Python in other threads and processes, only in the
text of the exception:

    in user code:  File "net.py", line 3, in loss  *        a function that TensorFlow rewrote
    Detected at node GatherV2 defined at:  File ...         an operation that failed after its line had run; for a
                                                            dataset's, `program_data.locate_errors`
                                                            writes it
    KeyError: 'row'  Traceback (most recent call last): ... a function that TensorFlow called back

A worker's error travels to the chief as the text of a gRPC error, of which some 3,000 characters
arrive. So the worker describes it and puts the description between marks.

Code that TensorFlow has rewritten (AutoGraph) runs from a generated file. An error in such a
function names the original line; the stack of a thread does not, nor does an exception that is no
`Exception` (`sys.exit()`). For these, TensorFlow's source maps give the original line, without
importing TensorFlow.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from traceback import FrameSummary
from typing import Any, NamedTuple

from services.trainer.program import BadProgram, is_program_file, own_name
from services.trainer.protocol import CAUSE_LENGTH, GENERATED_FILE
from shared.text import cut_middle

REMOTE_LENGTH = 2_000  # characters from a worker to the chief
BEGINS, ENDS = "[[weir: the program failed]]", "[[weir: so far]]"

FRAME = re.compile(
    r'(?P<indent>\s*)File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<name>.*?)[ *]*'
)
TYPED = re.compile(r"[A-Za-z_][\w.]*:\s")
NOISE = re.compile(
    r"\x1b\[\d*m|\{\{function_node [^}]*\}\} ?|\d+ root error\(s\) found\.\s+\(0\) [A-Z_]+:\s+"
    r"|Error in user-defined function passed to \S+ transformation with iterator: \S+: "
)
HIDDEN = re.compile(rf"^<frozen |/(tensorflow|keras|services/trainer)/|{GENERATED_FILE}")
PRELUDES = (
    *(
        "Detected at ",
        "Traceback (most recent",
        "Graph execution error",
        "in user code:",
        "Exception enc",
    ),
    "<stack traces unavailable>",
)
RESTS = re.compile(r"\s+\[\[\{\{node |\n\s*Arguments received by |\nAdditional GRPC error | \[Op:")
LED_TO = "\n\nwhich led to:\n\n"
AUTOGRAPH = "tensorflow.python.autograph.impl.api"
STORAGE_TEXT_LENGTH = 500  # characters of a file system's message
STORAGE_NOISE = re.compile(
    r"\{\{function_node [^}]*\}\} ?|\{\{node [^}]*\}\} ?|\d+ root error\(s\) found\.\s+\(0\)"
    r" [A-Z_]+:\s+"
)
STORAGE_REST = re.compile(r"\s+\[\[|\n\s*\[\[|\nAdditional GRPC error | \[Op:")
STORAGE_FAILURES: tuple[tuple[str, str, str], ...] = (
    (
        r"no space left|disk quota|ResourceExhausted",
        "the checkpoint folder is full",
        "make room there, or keep fewer checkpoints (checkpoint.keep)",
    ),
    (
        r"read-only|permission denied|PermissionDenied|Unauthenticated",
        "the checkpoint folder cannot be written",
        "let the job's pods write there (volume, owner, or the store's credentials)",
    ),
    (
        r"no such|not a directory|not found|NotFound|FailedPrecondition|AlreadyExists",
        "the checkpoint folder does not exist or is not a folder",
        "check that it exists and that every node of the job mounts it",
    ),
    (
        r"input/output error|stale file handle",
        "the disk under the checkpoint folder reports errors",
        "check its volume",
    ),
    (
        r"Unavailable|DeadlineExceeded|Aborted",
        "the checkpoint store does not answer",
        "check the store and the network",
    ),
)


class ProgramError(NamedTuple):
    """One exception: its frames from the program's first one on, and its message with its type."""

    frames: list[FrameSummary]
    says: str


class StorageUnavailable(Exception):
    """The storage of checkpoints does not answer. That is no failure of the program. The text has
    the cause and the remedy.
    """


class RemoteFailure(Exception):
    """A failure of the program in another process; the text is the whole cause."""


def describe_failure(error: BaseException, program: str, longest: int = CAUSE_LENGTH) -> str:
    """Return why the program in this file failed, in at most `longest` characters."""
    marked = re.search(re.escape(BEGINS) + "(.*?)" + re.escape(ENDS), str(error), re.DOTALL)
    if marked:
        return marked[1]
    if isinstance(error, BadProgram):
        location = _location(error.file or program, error.line) if error.line else ""
        return cut_middle(f"{location}{error}", longest)
    if isinstance(error, SyntaxError) and is_program_file(error.filename or "", program):
        return cut_middle(_syntax_error_cause(error), longest)
    found = []
    for each in _exception_chain(error, program):
        part = _program_part(each, program)
        if part.frames:
            found.append(part)
    cause = _format_cause(found, program) if found else _cause_outside_program(error)
    return cut_middle(cause, longest)


def mark_failure(error: BaseException, program: str) -> RemoteFailure:
    """Return the same failure in a form that reaches the chief."""
    return RemoteFailure(f"{BEGINS}{describe_failure(error, program, REMOTE_LENGTH)}{ENDS}")


def plain_failure(text: str) -> RemoteFailure:
    """Return a failure without a line of the program; the text is the whole cause."""
    return RemoteFailure(f"{BEGINS}{text}{ENDS}")


# ------------------------------------------------------------ text of a failure


def _format_cause(found: list[ProgramError], program: str) -> str:
    frames, says = found[0]
    place = next(f for f in reversed(frames) if is_program_file(f.filename, program))
    tracebacks = LED_TO.join(_traceback(seen, program) for seen in reversed(found))
    return f"{_location(place.filename, place.lineno)}{_headline(says)}\n{tracebacks}"


def _location(path: str, line: int | None) -> str:
    return f"{own_name(path)}:{line}: " if line else f"{own_name(path)}: "


def _headline(says: str) -> str:
    """Return the first line with content. Keras begins with the layer's name."""
    kind, _, text = says.partition(":") if TYPED.match(says) else ("", "", says)
    for line in map(str.strip, text.splitlines()):
        if line and not line.startswith(PRELUDES):
            return f"{kind}: {line}" if kind else line
    return kind


def _traceback(seen: ProgramError, program: str) -> str:
    shown = []
    for frame in seen.frames:
        file_name = frame.filename
        if is_program_file(file_name, program):
            file_name = own_name(file_name)
        shown.append(FrameSummary(file_name, frame.lineno, frame.name, line=frame.line))
    stack = "".join(traceback.StackSummary.from_list(shown).format())
    return f"Traceback (most recent call last):\n{stack}{seen.says}"


def _syntax_error_cause(error: SyntaxError) -> str:
    path = error.filename or ""
    shown = "".join(traceback.format_exception_only(error)).rstrip()
    what = f"{_location(path, error.lineno)}{type(error).__name__}: {error.msg}"
    return f"{what}\n{shown.replace(path, own_name(path))}"


def _cause_outside_program(error: BaseException) -> str:
    """Return the whole traceback after its headline: no frame is the program's."""
    text = _without_noise(error)
    frames = _frames_in_text(text)
    says = _message_after(error, text, max(frames)) if frames else _message(error)
    return f"{_headline(says)}\n{''.join(traceback.format_exception(error)).rstrip()}"


# ------------------------------------------------------------ exceptions and frames


def _exception_chain(error: BaseException, program: str) -> Iterator[BaseException]:
    """Yield an exception and those before it. A text that TensorFlow rewrote contains the earlier
    ones.
    """
    known: list[BaseException | None] = [None]
    each: BaseException | None = error
    while each not in known and each is not None:
        yield each
        known.append(each)
        if _program_frames_in(_without_noise(each), program):
            return
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _program_part(error: BaseException, program: str) -> ProgramError:
    """Return the frames from the program's first one on, without those of libraries."""
    text = _without_noise(error)
    inner = _program_frames_in(text, program)
    met = traceback.extract_tb(error.__traceback__)
    frames = [*met, *inner] if inner else original_frames(met)
    own: list[FrameSummary] = []
    entered = False
    for frame in frames:
        is_own = is_program_file(frame.filename, program)
        entered = entered or is_own
        if entered and (is_own or not HIDDEN.search(frame.filename)):
            own.append(frame)
    if not inner:
        return ProgramError(own, _message(error))
    last = _last_program_frame(text, program)
    return ProgramError(own, _message_after(error, text, last))


def _message(error: BaseException) -> str:
    text = RESTS.split(_without_noise(error), maxsplit=1)[0].strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _without_noise(error: BaseException) -> str:
    return NOISE.sub("", str(error))


def _program_frames_in(text: str, program: str) -> list[FrameSummary]:
    """Return the frames in a text that has any of the program's; TensorFlow writes some twice."""
    lines, found = text.splitlines(), _frames_in_text(text).items()
    if not any(is_program_file(frame["path"], program) for _, frame in found):
        return []
    frames = {}
    for at, frame in found:
        path, number, name = frame["path"], int(frame["line"]), _function_name(frame["name"])
        code = _code_line(lines, at, frame)
        frames[path, number, name] = FrameSummary(path, number, name, line=code)
    return list(frames.values())


def _frames_in_text(text: str) -> dict[int, re.Match[str]]:
    """Return the frames by line number."""
    frames = {}
    for at, line in enumerate(text.splitlines()):
        if frame := FRAME.fullmatch(line):
            frames[at] = frame
    return frames


def _last_program_frame(text: str, program: str) -> int:
    frames = _frames_in_text(text).items()
    return max(at for at, frame in frames if is_program_file(frame["path"], program))


def _function_name(name: str) -> str:
    """Return the name of a function; TensorFlow has none for a lambda."""
    return "<lambda>" if name == "None" else name


def _code_line(lines: list[str], at: int, frame: re.Match[str]) -> str:
    """Return the line of code below a frame, if there is one."""
    below = lines[at + 1] if at + 1 < len(lines) else ""
    is_code = _indentation(below) > len(frame["indent"]) and not FRAME.fullmatch(below)
    return below.strip() if is_code else ""


def _message_after(error: BaseException, text: str, last: int) -> str:
    """Return the message after this frame and those that follow it."""
    lines, frames = text.splitlines(), _frames_in_text(text)
    depth = len(frames[last]["indent"])
    for at in range(last + 1, len(lines)):
        line = lines[at]
        if (
            line.strip()
            and at not in frames
            and _indentation(line) <= depth
            and not line.startswith(PRELUDES)
        ):
            return _with_type(error, RESTS.split("\n".join(lines[at:]), maxsplit=1)[0].strip())
    return type(error).__name__


def _with_type(error: BaseException, says: str) -> str:
    """Return a message with the exception's type, without its module."""
    if not TYPED.match(says):
        return f"{type(error).__name__}: {says}"
    kind, _, text = says.partition(":")
    return f"{kind.rpartition('.')[2]}:{text}"


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def original_frames(frames: Iterable[FrameSummary]) -> list[FrameSummary]:
    """Return the frames with the file and line that the author wrote."""
    found = list(frames)
    if not any(GENERATED_FILE in frame.filename for frame in found):
        return found
    origins: dict[Any, Any] = {}
    for source_map in _source_maps():
        origins.update(source_map)
    return [_original_frame(frame, origins) for frame in found]


def _original_frame(frame: FrameSummary, origins: Mapping[Any, Any]) -> FrameSummary:
    origin = origins.get((frame.filename, frame.lineno))
    if origin is None or GENERATED_FILE not in frame.filename:
        return frame
    return FrameSummary(
        origin.loc.filename, origin.loc.lineno, origin.function_name, line=origin.source_code_line
    )


def _source_maps() -> Iterator[Mapping[Any, Any]]:
    """Yield the maps of all functions that were rewritten in this process."""
    cache = getattr(getattr(sys.modules.get(AUTOGRAPH), "_TRANSPILER", None), "_cache", None)
    for made in list(getattr(cache, "_cache", {}).values()):
        for function in list(made.values()):
            yield function.source_map


class StorageFailure(NamedTuple):
    cause: str
    remedy: str


def explain_storage_error(kind: str, text: str) -> StorageFailure:
    """Return the cause and the remedy. `kind`: the error's class; `text`: its message."""
    told = storage_message(text)
    for pattern, cause, remedy in STORAGE_FAILURES:
        if re.search(pattern, f"{kind} {told}", re.IGNORECASE):
            return StorageFailure(f"{cause} ({told})", remedy)
    return StorageFailure(f"{kind}: {told}", "check its file system")


def storage_message(text: str) -> str:
    """Return the message of a TensorFlow error without its place in a graph."""
    return STORAGE_REST.split(STORAGE_NOISE.sub("", text))[0].strip()[:STORAGE_TEXT_LENGTH]
