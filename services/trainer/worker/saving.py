"""The saves of a chief: it makes a cut while training stands still, and writes it while training
continues, if memory allows.

One write at a time. A fault of the files costs a checkpoint and no training: it is reported with
its cause and remedy, incomplete files are removed, and the next save is tried. Only a missing ps
ends the generation.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog
import tensorflow as tf

from services.trainer import checkpoint_policy
from services.trainer.checkpoint_policy import SaveHistory
from services.trainer.program import stored_file
from services.trainer.protocol import (
    Assignment,
    CommittedCheckpoints,
    Drain,
    Line,
    MemoryHeadroom,
    Saved,
    Unsaved,
    history_after_save,
)
from services.trainer.worker import checkpoint_files, failure_cause
from services.trainer.worker.checkpoint import Checkpoint
from services.trainer.worker.checkpoint_files import (
    CheckpointSeal,
    remove_checkpoint,
    remove_temporary_files,
    seal_checkpoint,
)
from services.trainer.worker.shard_ledger import Ledger
from services.trainer.worker.table_base import BaseWriter
from services.trainer.worker.write_pace import WritePace
from shared.checkpoints import CommitMark
from shared.messages import GIB

HEADROOM_UNKNOWN = "the memory that the ps have left is not known yet"
NO_BASE = "all rows of its tables were written: there is no base yet"
UNKNOWN_HEADROOM_SHARE = 0.5
"""Of the tables of a ps: changed rows that it may hold while the memory it has left is unknown."""
REST_SHARE = 1 / 3
"""Of the time from one save to the next: the most that a planned save rests in all."""
LEAST_SPEED_S = 1.0
"""Training between two saves that is long enough to measure its speed."""
RETRY_S = 60.0  # the longest time to the next save after one that failed
LostPs = Callable[[], list[str]]
logger = structlog.get_logger()


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint before it is written. `began_s`, `drained_s`: monotonic clock; `speed`: examples
    a second.
    """

    step: int
    ledger: Ledger
    began_s: float
    drained_s: float
    speed: float = 0.0


class CheckpointSaver:
    """One generation's checkpoints. `lost` returns the ps that are gone, `applied` the number of
    examples so far. `send` reports to the pod's first process.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        folder: str,
        every_s: float | None,
        send: Callable[[Line], None],
        inbox: queue.Queue[Any],
        lost: LostPs,
        applied: Callable[[], int],
        redo_s: float = checkpoint_policy.REDO_S,
    ) -> None:
        self._checkpoint = checkpoint
        self._folder = folder
        self._every_s = every_s
        self._redo_s = redo_s
        self._send = send
        self._inbox = inbox
        self._lost = lost
        self._applied = applied
        self._writes: threading.Thread | None = None
        self._last_save_s = self._training_since_s = time.monotonic()
        self._examples_before = 0  # applied at `_training_since_s`
        self._interval_s = 0.0
        self.newest: Saved | None = None
        self.headroom: MemoryHeadroom | None = None
        self._pace: WritePace | None = None
        self.history = SaveHistory()
        self._bases = BaseWriter(checkpoint.tables, folder, self._report_failed_base)

    def begin(self, past: SaveHistory, step: int) -> None:
        """Count the time to the next save from now: training begins, `step` updates after the
        start of the job.
        """
        self.history = past
        self._bases.start_if_needed(step)
        self._last_save_s = time.monotonic()
        self._training_since_s = time.monotonic()
        self._examples_before = self._applied()
        self._interval_s = self._next_interval()

    @property
    def due_s(self) -> float:
        """Return the time of the next save (monotonic clock); infinite while it is not possible."""
        return math.inf if self.is_writing else self._last_save_s + self._interval_s

    @property
    def is_writing(self) -> bool:
        """Return whether a save is in progress, or the base that the next one needs."""
        if self._bases.blocks_saves:
            return True
        return self._writes is not None and self._writes.is_alive()

    def wait_for_write(self, most_s: float | None = None) -> bool:
        """Wait until the next save is possible, for at most `most_s` seconds. Return whether it
        is. A write in progress takes no more rests.
        """
        if self._pace is not None:
            self._pace.end_rests()
        if self._bases.blocks_saves:
            self._bases.wait(most_s)
        if self._writes is not None:
            self._writes.join(most_s)
        return not self.is_writing

    def wait_for_base(self, most_s: float) -> bool:
        """Wait until no base is in progress, so that its files are complete or removed, for at most
        `most_s` seconds. Return whether that is so.
        """
        return self._bases.wait(most_s)

    def save_and_wait(self, draft: Draft, drain: Drain | None = None) -> bool:
        """Cut and write while training stands. Return whether it was saved. `drain`: the save is
        final.
        """
        self.wait_for_write()
        if self.newest is not None and self._is_saved(draft):
            drain_s = draft.drained_s - draft.began_s
            again = msgspec.structs.replace(
                self.newest, seconds=0.0, ran_s=0.0, drain_s=drain_s, pause_s=drain_s
            )
            self._send(msgspec.structs.replace(again, **_final_fields(drain)))
            return True
        self._checkpoint.cut(draft.ledger, self._room_for_changed_rows())
        return self._write(draft, drain)

    def _is_saved(self, draft: Draft) -> bool:
        """Return whether the newest checkpoint has this step. The last one of a job is written
        anyway: an earlier one may lack averaged weights, rows of tables, and the end of a file.
        """
        if self.newest is None or self.newest.step != draft.step:
            return False
        return not draft.ledger.finished

    def save_in_background(self, draft: Draft, planned: bool) -> bool:
        """Cut, then write while training continues; write at once if the ps lack the memory for
        that. `planned`: the save is due. Return whether there was something to save.
        """
        self.wait_for_write()
        if self._is_saved(draft):
            self._last_save_s = time.monotonic()
            return False
        pause_reason = copy_obstacle(self._checkpoint.largest_cut_bytes, self.headroom)
        room = self._room_for_changed_rows()
        if not pause_reason:  # training will change what the other copies share
            room = max(room - self._checkpoint.largest_cut_bytes, 0.0)
        self._checkpoint.cut(draft.ledger, room)
        if not self._checkpoint.is_written_beside:
            pause_reason = self._reason_for_all_rows(room)
        if pause_reason:
            self._write(draft, pause_reason=pause_reason, planned=planned)
            return True
        cut_s = time.monotonic()
        self._pace = None
        if planned and "://" not in self._folder:  # each block is a file: slow in an object store
            self._pace = WritePace(REST_SHARE * self._interval_s)
        self._writes = threading.Thread(
            target=self._write_in_background,
            args=(draft, cut_s, self._pace, planned),
            name="saving",
            daemon=True,
        )
        self._writes.start()
        return True

    def _room_for_changed_rows(self) -> float:
        """Return how many bytes of changed rows a ps can hold until they are written, while
        training stands still: the copies of all other variables take no memory then.
        """
        tables = self._checkpoint.tables
        if self.headroom is None and tables is not None:
            return UNKNOWN_HEADROOM_SHARE * tables.bytes_on_ps
        if self.headroom is None or self.headroom.gib is None:
            return math.inf
        return max(self.headroom.gib, 0.0) * GIB / 2

    def _reason_for_all_rows(self, room: float) -> str:
        """Return why a save had to write all rows of the tables. `room`: for changed rows, in bytes
        on a ps.
        """
        tables = self._checkpoint.tables
        if tables is None or not tables.has_base:
            return NO_BASE
        return (
            f"all rows of its tables were written: a ps has room for {room / 2**20:,.0f} MiB of "
            "changed rows, and more have changed; with more memory for ps, training would continue"
        )

    def _write_in_background(
        self, draft: Draft, cut_s: float, pace: WritePace | None, planned: bool
    ) -> None:
        try:
            self._write(draft, cut_s=cut_s, pace=pace, planned=planned)
        except Exception as error:
            self._inbox.put(error)

    def _write(
        self,
        draft: Draft,
        drain: Drain | None = None,
        pause_reason: str = "",
        cut_s: float | None = None,
        pace: WritePace | None = None,
        planned: bool = False,
    ) -> bool:
        """Write the cut and report the result. `pause_reason`: why training stands still
        meanwhile; `cut_s`, `pace`: training has continued since then, and the write has rests;
        `planned`: the save was due.
        """
        path = f"{self._folder}/ckpt-{draft.step}"
        try:
            self._checkpoint.write_cut(path, pace)
            sealed = seal_checkpoint(path)
            self._checkpoint.on_saved(path, sealed.digest)
        except tf.errors.OpError as error:
            self._on_failed(draft, path, error, drain)
            return False
        finally:
            self._last_save_s = time.monotonic()
        self.newest = self._describe_saved(draft, path, sealed, pause_reason, cut_s)
        report = msgspec.structs.replace(self.newest, planned=planned, **_final_fields(drain))
        self.history = history_after_save(self.history, report)
        self._training_since_s, self._interval_s = self._last_save_s, self._next_interval()
        self._examples_before = self._applied()
        self._send(msgspec.structs.replace(report, next_s=self._interval_s))
        if drain is None:
            self._bases.start_if_needed(draft.step)
        return True

    def _describe_saved(
        self,
        draft: Draft,
        path: str,
        sealed: CheckpointSeal,
        pause_reason: str,
        cut_s: float | None,
    ) -> Saved:
        pause_s = (self._last_save_s if cut_s is None else cut_s) - draft.began_s
        return Saved(
            step=draft.step,
            samples=draft.ledger.applied,
            path=path,
            seconds=self._last_save_s - draft.drained_s,
            drain_s=draft.drained_s - draft.began_s,
            digest=sealed.digest,
            bytes=sealed.bytes,
            stood=pause_reason,
            pause_s=pause_s,
            cost_s=pause_s if cut_s is None else pause_s + self._slowdown_s(draft, cut_s),
            ran_s=self._last_save_s - self._training_since_s,
        )

    def _slowdown_s(self, draft: Draft, cut_s: float) -> float:
        """Return the seconds of training that writing has cost since the cut."""
        did = self._applied() - draft.ledger.applied
        speed = self._speed_before(draft)
        return checkpoint_policy.save_cost(0.0, self._last_save_s - cut_s, did, speed)

    def _speed_before(self, draft: Draft) -> float:
        """Return the examples/s from the last save to this one. In the mean since the start, other
        saves would hide the cost of this one.
        """
        ran_s = draft.began_s - self._training_since_s
        if ran_s < LEAST_SPEED_S:
            return draft.speed
        return (draft.ledger.applied - self._examples_before) / ran_s

    def _on_failed(self, draft: Draft, path: str, error: Any, drain: Drain | None) -> None:
        """Report a failed write. Raise its error again if a ps is gone. A delta of the same step
        stays: its files are replaced when the others are complete.
        """
        if self._lost():
            raise error
        if self.newest is not None and self.newest.path == path:
            remove_temporary_files(path)
        else:
            remove_checkpoint(path)
        self._interval_s = min(self._next_interval(), RETRY_S)
        report = _failure_report(draft.step, path, error)
        self._send(msgspec.structs.replace(report, **_final_fields(drain)))

    def _report_failed_base(self, step: int, path: str, error: tf.errors.OpError) -> None:
        if self._lost():
            return  # the loss of a ps is no fault of the storage
        report = _failure_report(step, path, error)
        cause = f"all rows of tables, while training continues: {report.cause}"
        self._send(msgspec.structs.replace(report, cause=cause, is_base=True))

    def _next_interval(self) -> float:
        if self._every_s:
            return self._every_s
        interval_s = checkpoint_policy.save_interval(self.history, self._redo_s)
        if self._checkpoint.tables is None:
            return interval_s
        return min(checkpoint_policy.delta_interval(self.history), interval_s)


def _failure_report(step: int, path: str, error: Any) -> Unsaved:
    """Return the report of files that could not be written, with the cause and its remedy."""
    cause, remedy = failure_cause.explain_storage_error(type(error).__name__, error.message)
    return Unsaved(step=step, path=path, cause=cause, remedy=remedy)


def _final_fields(drain: Drain | None) -> dict[str, Any]:
    return {"final": drain is not None, "successor": drain.successor if drain else None}


def copy_obstacle(held: int, headroom: MemoryHeadroom | None) -> str:
    """Return why the fullest ps cannot hold `held` bytes twice while they are written ("": it can).

    A second child must still fit beside it (`usage.memory_shortage`), or the copy would cost the
    job its next hand-over. Both children grow by `held`, so twice as much must be left.
    """
    if headroom is None:
        return HEADROOM_UNKNOWN
    if headroom.gib is None or 2 * held <= headroom.gib * GIB:
        return ""
    return (
        f"a ps has {max(headroom.gib, 0.0):.2f} GiB left beside its next generation, and "
        f"{2 * held / GIB:.2f} are needed; with more memory for ps, training would continue"
    )


def keep_committed(assignment: Assignment, named: CommittedCheckpoints, total_samples: int) -> None:
    """Mark the checkpoints that the ledger names, and remove those that it no longer names."""
    mark_named(assignment, named, total_samples)
    checkpoint_files.prune_checkpoints(assignment.checkpoint_dir, named.paths)


def mark_named(assignment: Assignment, named: CommittedCheckpoints, total_samples: int) -> None:
    """Mark the checkpoints that the ledger names, and write the job's request and program beside
    them.

    A mark that cannot be written is written the next time.
    """
    try:
        request = msgspec.json.encode(assignment.request)
        stored = stored_file(Path(assignment.program), assignment.request.program.entry)
        checkpoint_files.write_job_files(assignment.checkpoint_dir, request, str(stored))
        for path in named.paths:
            if digest := named.digests.get(path):
                samples = named.samples if path == named.paths[0] else None
                checkpoint_files.mark_committed(
                    path, CommitMark(digest=digest, samples=samples, total_samples=total_samples)
                )
    except tf.errors.OpError as error:
        logger.warning("CheckpointNotMarked", error=failure_cause.storage_message(error.message))


def keep_committed_in_background(
    assignment: Assignment, named: CommittedCheckpoints, total_samples: int
) -> None:
    """Run `keep_committed` in a thread while training continues."""
    threading.Thread(
        target=keep_committed, args=(assignment, named, total_samples), name="keeping", daemon=True
    ).start()


def mark_named_in_background(
    assignment: Assignment, named: CommittedCheckpoints, total_samples: int
) -> None:
    """Run `mark_named` in a thread while training continues."""
    threading.Thread(
        target=mark_named, args=(assignment, named, total_samples), name="marking", daemon=True
    ).start()
