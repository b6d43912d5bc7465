"""The lines between a supervisor and its children: one JSON document each, over a socket pair.

A child starts with an `Assignment`. A chief prepares, sends `Prepared`, and waits for `Begin`;
until then, `CheckpointAvailable` lets it read the tables of the running generation ahead.
`SaveNow` lets it save and train on; `Drain` lets it stop at a batch boundary and save;
`ContinueTraining` after that lets it train on as if nothing had been ordered. A ps or worker only
serves. A child that cannot send `Failed` any more (it crashed, or a thread holds the global lock
for ever) leaves the output of `faulthandler`: plain text.

The tags and field names stay: a child reads the lines of its supervisor.
"""

from __future__ import annotations

import msgspec

from services.trainer import checkpoint_policy
from services.trainer.checkpoint_policy import SaveHistory
from services.trainer.program import files_prefix
from shared.messages import (
    JobRequested,
    ModelProfile,
    PreparationParts,
    Resources,
    Role,
    Staleness,
    TableRound,
)

EXIT_FINISHED = 0
EXIT_FAILED = 1
EXIT_PEER_LOST = 75
CAUSE_LENGTH = 20_000  # characters of a traceback
GENERATED_FILE = "__autograph_generated_file"  # in file names of functions that TensorFlow rewrote


class Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="line"):
    """One line, in either direction."""


class Assignment(Line, frozen=True, kw_only=True, tag="assignment"):
    """The task of a child. `cluster` is TF_CONFIG's: role -> addresses. `warms_up`: run each worker
    once beforehand.

    `off_s`: seconds for which the whole cluster was off before; they are not part of a pause.
    `first`: nothing of the job has run yet, and the program's `evaluation()` has not been tried.
    `beside`: another generation trains meanwhile and continues if this one cannot be prepared.
    `continue_from`: the folder of a finished job; this job begins from its last checkpoint (empty:
    from nothing).

    `stuck_early_s`, `stuck_s`: the limits for one call of the program's code, before the first
    update and later. `stuck_patience`: this many times the limit may pass without an update.
    `redo_s`: maximum seconds of training that are repeated after a loss, if the request does not
    say how often to save. `ps_gib`: the memory of each ps (0: not known). `noise_share`: the most
    of a worker's time in which it measures gradient noise; 0: it does not.
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
    noise_share: float = 0.0
    ps_gib: tuple[float, ...] = ()


class Begin(Line, frozen=True, kw_only=True, tag="begin"):
    """Restore the newest complete checkpoint (without one, begin from nothing) and train.

    `paths`: those that the ledger names, in its order, the first with `samples` applied; newer ones
    may lie in the job's folder. `digests`: of sealed ones, by path. `past`: history of saves and
    failures. `applied_s`: when update number `applied_step`, the last that was reported, was
    applied; 0: none.
    """

    paths: tuple[str, ...] = ()
    digests: dict[str, str] = {}
    samples: int | None = None
    past: SaveHistory = SaveHistory()
    applied_step: int = 0
    applied_s: float = 0.0


class CheckpointAvailable(Line, frozen=True, kw_only=True, tag="available"):
    """The running generation has saved a checkpoint. A chief that does not train yet reads the rows
    of tables from it, so that fewer are left when it begins. `path` empty: it will not save.
    """

    path: str


class Drain(Line, frozen=True, kw_only=True, tag="drain"):
    """Stop at a batch boundary, save, and wait. `successor`: the next generation; None: none."""

    successor: int | None = None


class SaveNow(Line, frozen=True, kw_only=True, tag="save-now"):
    """Save at once and train on."""


class ContinueTraining(Line, frozen=True, kw_only=True, tag="go-on"):
    """The hand-over is cancelled: train on from the drained state."""


class CommittedCheckpoints(Line, frozen=True, kw_only=True, tag="kept"):
    """The ledger names these; remove older ones. `samples`: of the first; `digests`: by path."""

    paths: tuple[str, ...]
    digests: dict[str, str] = {}
    samples: int | None = None


class MemoryHeadroom(Line, frozen=True, kw_only=True, tag="room"):
    """The memory that the fullest ps has left: beside a second child of its size if that fits,
    otherwise in all. None: no ps has a limit.
    """

    gib: float | None = None


class Started(Line, frozen=True, kw_only=True, tag="born"):
    pid: int


class Prepared(Line, frozen=True, kw_only=True, tag="prepared"):
    """The child has prepared its generation. `seconds`: its duration. A chief also has `parts` and
    `profile`.
    """

    seconds: float
    parts: PreparationParts | None = None
    profile: ModelProfile | None = None


class CatchUp(Line, frozen=True, kw_only=True, tag="catch-up"):
    """A chief that prepares wants the running generation to save now, so that it can read what
    changed. `CheckpointAvailable` follows; without a path, if nothing was saved for it.
    """


class NothingToSave(Line, frozen=True, kw_only=True, tag="nothing-to-save"):
    """Nothing was saved, as ordered: all updates are in the last checkpoint, or were the last."""


class Saved(Line, frozen=True, kw_only=True, tag="saved"):
    """A checkpoint was saved. `stood`: why training stood still while it was written, if it had to.

    `pause_s`: seconds for which it stood still; `cost_s`: seconds of training lost in all; `ran_s`:
    since the last save or the beginning; `next_s`: until the next one. `planned`: it was due and
    not ordered; only such a save shows the cost.
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
    """Nothing was saved and training continues, also if it was to be `final`: the `successor` is
    given up. `is_base`: it is a base of tables; checkpoints are saved nevertheless.
    """

    step: int
    path: str
    cause: str
    remedy: str
    final: bool = False
    successor: int | None = None
    is_base: bool = False


class Skipped(Line, frozen=True, kw_only=True, tag="skipped"):
    """A checkpoint is damaged; `instead` is tried next (empty: none is left)."""

    path: str
    cause: str
    instead: str = ""


class Resumed(Line, frozen=True, kw_only=True, tag="resumed"):
    """The first update is applied. `pause_s` by the workers' clocks; None if nothing ran before.

    `learning_rate`: of this generation; None if a schedule of the program gives it. `table_rounds`:
    the reads of tables, before and after the order to begin.
    """

    step: int
    samples: int
    pause_s: float | None
    restore_s: float
    first_step_s: float
    learning_rate: float | None = None
    table_rounds: tuple[TableRound, ...] = ()


class Progress(Line, frozen=True, kw_only=True, tag="progress"):
    step: int
    epoch: int
    samples: int
    total_samples: int
    samples_per_second: float
    loss: float | None
    applied_s: float = 0.0
    profile: ModelProfile | None = None
    gradient_noise: float | None = None
    gradient_noise_at_least: float | None = None
    staleness: Staleness | None = None
    staleness_cost: float | None = None


class Finished(Line, frozen=True, kw_only=True, tag="finished"):
    step: int
    samples: int
    counted: int
    metrics: dict[str, float]


class Failed(Line, frozen=True, kw_only=True, tag="failed"):
    """The child failed. `peer`: because another task went away, or the storage of checkpoints does
    not answer, so that it is no failure of the job; otherwise `cause` has the program's
    traceback. `too_small`: because the ps of this generation cannot hold the model, which those of
    another size of the job can.
    """

    cause: str
    peer: bool = False
    too_small: bool = False


Order = (
    Begin
    | CheckpointAvailable
    | Drain
    | SaveNow
    | ContinueTraining
    | CommittedCheckpoints
    | MemoryHeadroom
)
ChildEvent = (
    Started
    | Prepared
    | CatchUp
    | NothingToSave
    | Saved
    | Unsaved
    | Skipped
    | Resumed
    | Progress
    | Finished
    | Failed
)
EVENTS = msgspec.json.Decoder(ChildEvent)
ORDERS = msgspec.json.Decoder(Order)


def history_after_save(before: SaveHistory, report: Saved) -> SaveHistory:
    """Return the history after one more save."""
    cost_s = report.cost_s if report.planned else None
    return checkpoint_policy.record_save(
        before, report.ran_s, cost_s, report.drain_s + report.seconds
    )


def encode_line(item: Line) -> bytes:
    return msgspec.json.encode(item) + b"\n"


def decode_event(text: bytes) -> ChildEvent | None:
    """Return the event of a child; None if the line is none."""
    try:
        event: ChildEvent = EVENTS.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return event


def crash_failure(text: str, program: str) -> Failed:
    """Return the failure in the output of `faulthandler`: the program's if its code is on a stack.

    The text begins with the event. A paragraph for each thread follows, the most recent call first.
    Characters outside ASCII are escaped as Python does. If the program is at fault, only its stacks
    are shown.
    """
    happened, _, rest = text.strip().partition("\n")
    stacks = rest.strip().split("\n\n")
    program_files = files_prefix(program).encode("ascii", "backslashreplace").decode()
    guilty = [stack for stack in stacks if program_files in stack or GENERATED_FILE in stack]
    stuck = (
        "blocked its other threads for too long" if happened.startswith("Timeout") else "crashed"
    )
    told = "\n\n".join([f"the process {stuck} and reported only: {happened}", *(guilty or stacks)])
    return Failed(cause=told[:CAUSE_LENGTH], peer=not guilty)
