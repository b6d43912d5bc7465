"""What a supervisor and its children say to each other: one JSON document a line, over a socket
pair.

The child is born with an `Assignment`. A chief prepares, says `Prepared`, and waits for `Begin`;
`SaveNow` makes it save and train on, `Drain` stop at a batch boundary and save; `GoOn` after that
lets it train on as if nothing had been asked. A ps or worker only stands. A child that cannot say
`Failed` any more (it crashed, or holds the global lock for ever) leaves what `faulthandler` writes:
plain text, its last words.
"""

from __future__ import annotations

import msgspec

from services.trainer import checkpoint_policy
from services.trainer.checkpoint_policy import Past
from shared.messages import JobRequested, ModelProfile, Resources, Role


class Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="line"):
    """One line, either way."""


class Assignment(Line, frozen=True, kw_only=True, tag="assignment"):
    """Who a child is. `cluster` is TF_CONFIG's: role -> addresses. `warms_up`: run each worker once
    beforehand.

    `off_s`: for so long the whole cluster was off before: no part of a pause.

    `first`: nothing of the job has run yet, and the program's `evaluation()` has not been tried.
    `beside`: another generation trains meanwhile, and goes on where this one cannot be prepared.

    `continue_from`: the folder of a finished job, from whose last checkpoint this job begins
    (empty: from nothing).

    `stuck_early_s`, `stuck_s`: how long one call of the program's code may take before the first
    update, and later; `stuck_patience`: times that, how long no update may be applied. `redo_s`:
    seconds of training that are repeated at most after a loss, where the request does not say how
    often to save.
    """

    generation: int
    role: Role
    index: int
    cluster: dict[str, list[str]]
    request: JobRequested
    batch: int
    program: str
    checkpoint_dir: str
    resources: Resources
    warms_up: bool
    continue_from: str = ""
    off_s: float = 0.0
    first: bool = False
    beside: bool = False
    nice: int = 0
    progress_s: float = 1.0
    worker_slack: int = 2
    stuck_early_s: float = 90.0
    stuck_s: float = 300.0
    stuck_patience: float = 1.5
    redo_s: float = checkpoint_policy.REDO_S


class Begin(Line, frozen=True, kw_only=True, tag="begin"):
    """Restore the newest checkpoint that is whole (none: begin from nothing) and train.

    `paths`: those that the ledger names, in its order, the first with `samples` applied; newer ones
    may lie in the job's folder (`worker/checkpoint.py`). `digests`: of those that were sealed, by path;
    `past`: what is known of saves and failures. `applied_s`: when the last update that was reported
    was applied, which was number `applied_step`; 0: none was.
    """

    paths: tuple[str, ...] = ()
    digests: dict[str, str] = {}
    samples: int | None = None
    past: Past = Past()
    applied_step: int = 0
    applied_s: float = 0.0


class Drain(Line, frozen=True, kw_only=True, tag="drain"):
    """Stop at a batch boundary, save, and wait. `successor`: for which generation; None: for
    good.
    """

    successor: int | None = None


class SaveNow(Line, frozen=True, kw_only=True, tag="save-now"):
    """Save at once, and train on."""


class GoOn(Line, frozen=True, kw_only=True, tag="go-on"):
    """The hand-over is off: train on from where you drained."""


class Kept(Line, frozen=True, kw_only=True, tag="kept"):
    """The ledger names these; what is older goes. `samples`: of the first; `digests`: by path."""

    paths: tuple[str, ...]
    digests: dict[str, str] = {}
    samples: int | None = None


class Room(Line, frozen=True, kw_only=True, tag="room"):
    """What the fullest ps has left beside a second child of its size. None: no ps has a limit."""

    gib: float | None = None


class Born(Line, frozen=True, kw_only=True, tag="born"):
    pid: int


class Prepared(Line, frozen=True, kw_only=True, tag="prepared"):
    seconds: float


class Saved(Line, frozen=True, kw_only=True, tag="saved"):
    """`stood`: why training stood still while this was written, where it need not have.

    `pause_s`: for how long it did; `cost_s`: seconds of training that were lost in all; `ran_s`:
    since the last one, or the beginning; `next_s`: until the next one.

    `planned`: it was due, and not asked for; only such a one shows what saves cost.
    """

    step: int
    samples: int
    path: str
    seconds: float
    drain_s: float = 0.0
    final: bool = False
    successor: int | None = None
    digest: str = ""
    bytes: int = 0
    stood: str = ""
    pause_s: float = 0.0
    cost_s: float = 0.0
    ran_s: float = 0.0
    next_s: float = 0.0
    planned: bool = False


class Unsaved(Line, frozen=True, kw_only=True, tag="unsaved"):
    """Nothing was saved, and training goes on; where it was to be `final`, too: a `successor` is
    given up.
    """

    step: int
    path: str
    cause: str
    remedy: str
    final: bool = False
    successor: int | None = None


class Skipped(Line, frozen=True, kw_only=True, tag="skipped"):
    """A checkpoint is not whole; `instead` is tried (empty: none is left)."""

    path: str
    cause: str
    instead: str = ""


class Resumed(Line, frozen=True, kw_only=True, tag="resumed"):
    """The first update is applied. `pause_s` by the ps' clocks; None where nothing ran before.

    `learning_rate`: of this generation; None where a schedule of the program gives it.
    """

    step: int
    samples: int
    pause_s: float | None
    restore_s: float
    first_step_s: float
    learning_rate: float | None = None


class Progress(Line, frozen=True, kw_only=True, tag="progress"):
    step: int
    epoch: int
    samples: int
    total_samples: int
    samples_per_second: float
    loss: float | None
    applied_s: float = 0.0
    profile: ModelProfile | None = None


class Finished(Line, frozen=True, kw_only=True, tag="finished"):
    step: int
    samples: int
    counted: int
    metrics: dict[str, float]


class Failed(Line, frozen=True, kw_only=True, tag="failed"):
    """`peer`: another task went away and this is not the program's fault; otherwise `cause` has its
    traceback.
    """

    cause: str
    peer: bool = False


Order = Begin | Drain | SaveNow | GoOn | Kept | Room
Word = Born | Prepared | Saved | Unsaved | Skipped | Resumed | Progress | Finished | Failed
WORDS = msgspec.json.Decoder(Word)
ORDERS = msgspec.json.Decoder(Order)

EXIT_FINISHED = 0
EXIT_FAILED = 1
EXIT_PEER_LOST = 75
CAUSE_LENGTH = 20_000  # characters of a traceback that are told
GENERATED = "__autograph_generated_file"  # in the file names of what TensorFlow makes of a program's functions


def past_after(before: Past, word: Saved) -> Past:
    """Return what is known of saves after one more."""
    cost_s = word.cost_s if word.planned else None
    return checkpoint_policy.saved(before, word.ran_s, cost_s, word.drain_s + word.seconds)


def line(item: Line) -> bytes:
    return msgspec.json.encode(item) + b"\n"


def heard(text: bytes) -> Word | None:
    """A word of a child; None for what is none."""
    try:
        word: Word = WORDS.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return word


def last_words(text: str, program: str) -> Failed:
    """What `faulthandler` wrote: the program's fault where its code is on a stack, and then only
    those stacks.

    In front what happened, then a thread each, the most recent call first, with an empty line in
    between. It writes what is not ASCII as Python escapes it.
    """
    happened, _, rest = text.strip().partition("\n")
    stacks = rest.strip().split("\n\n")
    marks = (program.encode("ascii", "backslashreplace").decode(), GENERATED)
    guilty = [stack for stack in stacks if any(mark in stack for mark in marks)]
    stuck = (
        "has let no other thread run for too long" if happened.startswith("Timeout") else "has died"
    )
    told = "\n\n".join([f"the process {stuck} and says only: {happened}", *(guilty or stacks)])
    return Failed(cause=told[:CAUSE_LENGTH], peer=not guilty)
