"""Why a program failed, in words that its author understands.

The first line can be read alone: the program's own file and line, and the exception. Behind it
stands the traceback, without the frames of Weir and TensorFlow where the program has any of its
own.

A frame of the program may be in three places: in the exception's traceback; in that of an exception
before it; or, because TensorFlow traces, and runs Python in other threads and processes, only in
the text of the exception:

    in user code:  File "net.py", line 3, in loss  *        a function that TensorFlow rewrote
    Detected at node GatherV2 defined at:  File ...         an operation that failed later than its line was run; of a
                                                            dataset's, `sought.py` says so
    KeyError: 'row'  Traceback (most recent call last): ... a function that TensorFlow called back

What a worker met travels to the chief as the text of a gRPC error, of which some 3,000 characters
arrive: so it is told there already, and put between marks.

Lines of functions that TensorFlow has rewritten, as their author wrote them; without importing
it.

What is traced runs as text of TensorFlow's own making, from a file of its own. An error of such a
function says itself where it was written; a thread that stands in one does not, nor does what is no
`Exception` (`sys.exit()`). There TensorFlow's maps are asked, of which each rewritten function has
one; where they have nothing, a line stays as it is.

What kept a checkpoint from being written, for people: cause and remedy. Pure.

By the names of TensorFlow's errors and what file systems put into their texts.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from traceback import FrameSummary
from typing import Any, NamedTuple

from services.trainer.program import BadProgram
from services.trainer.protocol import CAUSE_LENGTH, GENERATED
from shared.text import cut_middle

REMOTE = 2_000  # characters that a worker tells the chief
BEGINS, ENDS = "[[weir: the program failed]]", "[[weir: so far]]"

FRAME = re.compile(
    r'(?P<indent>\s*)File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<name>.*?)[ *]*'
)
TYPED = re.compile(r"[A-Za-z_][\w.]*:\s")
NOISE = re.compile(
    r"\x1b\[\d*m|\{\{function_node [^}]*\}\} ?|\d+ root error\(s\) found\.\s+\(0\) [A-Z_]+:\s+"
    r"|Error in user-defined function passed to \S+ transformation with iterator: \S+: "
)
HIDDEN = re.compile(rf"^<frozen |/(tensorflow|keras|services/trainer)/|{GENERATED}")
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


class Seen(NamedTuple):
    """One exception: the program's frames on its way, and what it says, with its type."""

    frames: list[FrameSummary]
    says: str


class Failed(Exception):
    """What the program did wrong in another process; the text is the whole cause."""


def told(error: BaseException, program: str, longest: int = CAUSE_LENGTH) -> str:
    """Why the program in this file failed; at most so many characters."""
    marked = re.search(re.escape(BEGINS) + "(.*?)" + re.escape(ENDS), str(error), re.DOTALL)
    if marked:
        return marked[1]
    if isinstance(error, BadProgram):
        return cut_middle(
            f"{_place(program, error.line)}{error}" if error.line else str(error), longest
        )
    if isinstance(error, SyntaxError) and error.filename == program:
        return cut_middle(_misspelt(error, program), longest)
    found = [seen for each in _chain(error, program) if (seen := _seen(each, program)).frames]
    return cut_middle(_written(found, program) if found else _foreign(error), longest)


def marked(error: BaseException, program: str) -> Failed:
    """The same, as it can be sent to the chief."""
    return Failed(f"{BEGINS}{told(error, program, REMOTE)}{ENDS}")


def plainly(text: str) -> Failed:
    """A failure of no line of the program's; the text is the whole cause."""
    return Failed(f"{BEGINS}{text}{ENDS}")


# ------------------------------------------------------------ what is written


def _written(found: list[Seen], program: str) -> str:
    frames, says = found[0]
    place = next(f for f in reversed(frames) if _same(f.filename, program))
    tracebacks = LED_TO.join(_traceback(seen, program) for seen in reversed(found))
    return f"{_place(program, place.lineno)}{_headline(says)}\n{tracebacks}"


def _place(program: str, line: int | None) -> str:
    return f"{PurePath(program).name}:{line}: " if line else f"{PurePath(program).name}: "


def _headline(says: str) -> str:
    """The first line that says something. Keras begins with which layer it was in."""
    kind, _, text = says.partition(":") if TYPED.match(says) else ("", "", says)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = next((line for line in lines if not line.startswith(PRELUDES)), "")
    return ": ".join(part for part in (kind, first) if part)


def _traceback(seen: Seen, program: str) -> str:
    name = PurePath(program).name
    shown = [
        FrameSummary(
            name if _same(f.filename, program) else f.filename, f.lineno, f.name, line=f.line
        )
        for f in seen.frames
    ]
    stack = "".join(traceback.StackSummary.from_list(shown).format())
    return f"Traceback (most recent call last):\n{stack}{seen.says}"


def _misspelt(error: SyntaxError, program: str) -> str:
    shown = "".join(traceback.format_exception_only(error)).rstrip()
    what = f"{_place(program, error.lineno)}{type(error).__name__}: {error.msg}"
    return f"{what}\n{shown.replace(program, PurePath(program).name)}"


def _foreign(error: BaseException) -> str:
    """Nothing of the program is to be seen: all of it, behind its headline."""
    text = _plain(error)
    says = _behind(error, text, max(_frames(text))) if _frames(text) else _says(error)
    return f"{_headline(says)}\n{''.join(traceback.format_exception(error)).rstrip()}"


# ------------------------------------------------------------ what is seen


def _chain(error: BaseException, program: str) -> Iterator[BaseException]:
    """An exception and those before it. What TensorFlow has rewritten says itself all that was said
    before.
    """
    known: list[BaseException | None] = [None]
    each: BaseException | None = error
    while each not in known and each is not None:
        yield each
        known.append(each)
        if _text_frames(_plain(each), program):
            return
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _seen(error: BaseException, program: str) -> Seen:
    """From the program's first frame on, and without the frames that are not the program's to
    mend.
    """
    text = _plain(error)
    inner = _text_frames(text, program)
    met = traceback.extract_tb(error.__traceback__)
    frames = [*met, *inner] if inner else as_written(met)
    entered = next(
        (at for at, frame in enumerate(frames) if _same(frame.filename, program)), len(frames)
    )
    own = [frame for frame in frames[entered:] if not HIDDEN.search(frame.filename)]
    return Seen(own, _behind(error, text, _last(text, program)) if inner else _says(error))


def _says(error: BaseException) -> str:
    text = RESTS.split(_plain(error), maxsplit=1)[0].strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _plain(error: BaseException) -> str:
    return NOISE.sub("", str(error))


def _text_frames(text: str, program: str) -> list[FrameSummary]:
    """The frames in a text that has any of the program's; TensorFlow writes some twice."""
    lines, found = text.splitlines(), _frames(text).items()
    if not any(_same(frame["path"], program) for _, frame in found):
        return []
    made = (
        FrameSummary(f["path"], int(f["line"]), _named(f["name"]), line=_code(lines, at, f))
        for at, f in found
    )
    return list({(frame.filename, frame.lineno, frame.name): frame for frame in made}.values())


def _frames(text: str) -> dict[int, re.Match[str]]:
    """By the number of the line."""
    return {
        at: frame for at, line in enumerate(text.splitlines()) if (frame := FRAME.fullmatch(line))
    }


def _last(text: str, program: str) -> int:
    return max(at for at, frame in _frames(text).items() if _same(frame["path"], program))


def _named(name: str) -> str:
    """TensorFlow has no name for a lambda."""
    return "<lambda>" if name == "None" else name


def _code(lines: list[str], at: int, frame: re.Match[str]) -> str:
    """The line of code below a frame, where there is one."""
    below = lines[at + 1] if at + 1 < len(lines) else ""
    return (
        below.strip()
        if _indent(below) > len(frame["indent"]) and not FRAME.fullmatch(below)
        else ""
    )


def _behind(error: BaseException, text: str, last: int) -> str:
    """What stands behind this frame and those that follow it."""
    lines, frames = text.splitlines(), _frames(text)
    depth = len(frames[last]["indent"])
    for at in range(last + 1, len(lines)):
        line = lines[at]
        if (
            line.strip()
            and at not in frames
            and _indent(line) <= depth
            and not line.startswith(PRELUDES)
        ):
            return _typed(error, RESTS.split("\n".join(lines[at:]), maxsplit=1)[0].strip())
    return type(error).__name__


def _typed(error: BaseException, says: str) -> str:
    """With the exception's type, and without the module where that stands."""
    if not TYPED.match(says):
        return f"{type(error).__name__}: {says}"
    kind, _, text = says.partition(":")
    return f"{kind.rpartition('.')[2]}:{text}"


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _same(path: str, program: str) -> bool:
    """Whether this is the program's file, here or in another pod: there another folder holds that
    of its digest.
    """
    return PurePath(path).parts[-2:] == PurePath(program).parts[-2:]


AUTOGRAPH = "tensorflow.python.autograph.impl.api"


def as_written(frames: Iterable[FrameSummary]) -> list[FrameSummary]:
    """The same, each in the file where its line was written."""
    found = list(frames)
    if not any(GENERATED in frame.filename for frame in found):
        return found
    origins = {place: origin for each in _maps() for place, origin in each.items()}
    return [_written_rewritten(frame, origins) for frame in found]


def _written_rewritten(frame: FrameSummary, origins: Mapping[Any, Any]) -> FrameSummary:
    origin = origins.get((frame.filename, frame.lineno)) if GENERATED in frame.filename else None
    if origin is None:
        return frame
    return FrameSummary(
        origin.loc.filename, origin.loc.lineno, origin.function_name, line=origin.source_code_line
    )


def _maps() -> Iterator[Mapping[Any, Any]]:
    """Of all functions that were rewritten in this process."""
    cache = getattr(getattr(sys.modules.get(AUTOGRAPH), "_TRANSPILER", None), "_cache", None)
    for made in list(getattr(cache, "_cache", {}).values()):
        yield from (each.source_map for each in list(made.values()))


LONGEST = 500  # characters of what the file system says
NOISE_DISK = re.compile(
    r"\{\{function_node [^}]*\}\} ?|\{\{node [^}]*\}\} ?|\d+ root error\(s\) found\.\s+\(0\) [A-Z_]+:\s+"
)
REST = re.compile(r"\s+\[\[|\n\s*\[\[|\nAdditional GRPC error | \[Op:")


class Trouble(NamedTuple):
    cause: str
    remedy: str


KNOWN: tuple[tuple[str, str, str], ...] = (
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
        "the checkpoint folder is not there, or is none",
        "see that it exists, and that every node of the job mounts it",
    ),
    (
        r"input/output error|stale file handle",
        "the disk under the checkpoint folder fails",
        "look at its volume",
    ),
    (
        r"Unavailable|DeadlineExceeded|Aborted",
        "the checkpoint store does not answer",
        "look at the store and the way to it",
    ),
)


def trouble(kind: str, text: str) -> Trouble:
    """`kind`: the error's class; `text`: what it says."""
    told = said(text)
    for pattern, cause, remedy in KNOWN:
        if re.search(pattern, f"{kind} {told}", re.IGNORECASE):
            return Trouble(f"{cause} ({told})", remedy)
    return Trouble(f"{kind}: {told}", "see what its file system says")


def said(text: str) -> str:
    """What an error of TensorFlow's says, without where in a graph it did so."""
    return REST.split(NOISE_DISK.sub("", text))[0].strip()[:LONGEST]
