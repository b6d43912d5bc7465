"""Saving, as a chief does it: cut while training stands, written while it goes on where there is
room for both.

One write at a time. What goes wrong with the files costs a checkpoint and no training: it is said,
with its cause and what helps, what was half-written goes, and the next save is tried. Only where a
ps is gone the generation is over.

What a chief keeps beside its checkpoints once the ledger has named them
(`shared/checkpoints.py`). Edge.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
import tensorflow as tf

from services.trainer import checkpoint_policy
from services.trainer.checkpoint_policy import Past
from services.trainer.protocol import (
    Assignment,
    Drain,
    Kept,
    Line,
    Room,
    Saved,
    Unsaved,
    past_after,
)
from services.trainer.worker import checkpoint, failure_cause
from services.trainer.worker.checkpoint import Checkpoint, Seal, remove, seal
from services.trainer.worker.shard_ledger import Ledger
from shared.checkpoints import CommitMark

GIB = 1 << 30
HEADROOM_UNKNOWN = "how much memory the ps have left is not known yet"
AGAIN_S = 60.0  # the longest time to the next save after one that failed
Lost = Callable[[], list[str]]


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint before it is written. `began_s`, `drained_s`: of the monotonic clock; `speed`:
    examples a second.
    """

    step: int
    ledger: Ledger
    began_s: float
    drained_s: float
    speed: float = 0.0


class Saving:
    """One generation's checkpoints. `lost` names the ps that are gone, `applied` tells how many
    examples are by now.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        folder: str,
        every_s: float | None,
        say: Callable[[Line], None],
        inbox: queue.Queue[Any],
        lost: Lost,
        applied: Callable[[], int],
        redo_s: float = checkpoint_policy.REDO_S,
    ) -> None:
        self._checkpoint = checkpoint
        self._folder = folder
        self._every_s = every_s
        self._redo_s = redo_s
        self._say = say
        self._inbox = inbox
        self._lost = lost
        self._applied = applied
        self._writes: threading.Thread | None = None
        self._last_s = self._from_s = time.monotonic()
        self._wait_s = 0.0
        self.newest: Saved | None = None
        self.headroom: Room | None = None
        self.past = Past()

    def begin(self, past: Past) -> None:
        """Training begins: count from now."""
        self.past = past
        self._last_s = time.monotonic()
        self._from_s = time.monotonic()
        self._wait_s = self._interval()

    @property
    def due_s(self) -> float:
        """When the next is due (monotonic); never while one is under way."""
        return math.inf if self.busy else self._last_s + self._wait_s

    @property
    def busy(self) -> bool:
        return self._writes is not None and self._writes.is_alive()

    def settle(self) -> None:
        """Return when nothing is under way."""
        if self._writes is not None:
            self._writes.join()

    def now(self, draft: Draft, drain: Drain | None = None) -> bool:
        """Cut and write while training stands; whether it was saved. `drain`: it is final, as that
        says.
        """
        self.settle()
        if self.newest is not None and self.newest.step == draft.step:
            drain_s = draft.drained_s - draft.began_s
            again = msgspec.structs.replace(
                self.newest, seconds=0.0, ran_s=0.0, drain_s=drain_s, pause_s=drain_s
            )
            self._say(msgspec.structs.replace(again, **_final(drain)))
            return True
        self._checkpoint.cut(draft.ledger)
        return self._write(draft, drain)

    def aside(self, draft: Draft) -> None:
        """Cut; written is it meanwhile, or at once where the ps lack the memory for that."""
        self.settle()
        if self.newest is not None and self.newest.step == draft.step:
            self._last_s = time.monotonic()
            return
        stood = copy_obstacle(self._checkpoint.largest, self.headroom)
        self._checkpoint.cut(draft.ledger)
        if stood:
            self._write(draft, stood=stood, planned=True)
            return
        cut_s = time.monotonic()
        self._writes = threading.Thread(
            target=self._beside, args=(draft, cut_s), name="saving", daemon=True
        )
        self._writes.start()

    def _beside(self, draft: Draft, cut_s: float) -> None:
        try:
            self._write(draft, cut_s=cut_s, planned=True)
        except Exception as error:
            self._inbox.put(error)

    def _write(
        self,
        draft: Draft,
        drain: Drain | None = None,
        stood: str = "",
        cut_s: float | None = None,
        planned: bool = False,
    ) -> bool:
        """Write what was cut, and say what became of it. `cut_s`: training has gone on since;
        `planned`: it was due.
        """
        path = f"{self._folder}/ckpt-{draft.step}"
        try:
            self._checkpoint.write_cut(path)
            sealed = seal(path)
        except tf.errors.OpError as error:
            self._failed(draft, path, error, drain)
            return False
        finally:
            self._last_s = time.monotonic()
        made = self.newest = self._saved(draft, path, sealed, stood, cut_s)
        said = msgspec.structs.replace(made, planned=planned, **_final(drain))
        self.past = past_after(self.past, said)
        self._from_s, self._wait_s = self._last_s, self._interval()
        self._say(msgspec.structs.replace(said, next_s=self._wait_s))
        return True

    def _saved(
        self,
        draft: Draft,
        path: str,
        sealed: Seal,
        stood: str,
        cut_s: float | None,
    ) -> Saved:
        pause_s = (self._last_s if cut_s is None else cut_s) - draft.began_s
        return Saved(
            step=draft.step,
            samples=draft.ledger.applied,
            path=path,
            seconds=self._last_s - draft.drained_s,
            drain_s=draft.drained_s - draft.began_s,
            digest=sealed.digest,
            bytes=sealed.bytes,
            stood=stood,
            pause_s=pause_s,
            cost_s=pause_s if cut_s is None else pause_s + self._slowed(draft, cut_s),
            ran_s=self._last_s - self._from_s,
        )

    def _slowed(self, draft: Draft, cut_s: float) -> float:
        """Seconds of training that writing took from it since the cut."""
        did = self._applied() - draft.ledger.applied
        return checkpoint_policy.lost(0.0, self._last_s - cut_s, did, draft.speed)

    def _failed(self, draft: Draft, path: str, error: Any, drain: Drain | None) -> None:
        """Raises the error again where a ps is gone."""
        if self._lost():
            raise error
        remove(path)
        self._wait_s = min(self._interval(), AGAIN_S)
        cause, remedy = failure_cause.trouble(type(error).__name__, error.message)
        self._say(Unsaved(step=draft.step, path=path, cause=cause, remedy=remedy, **_final(drain)))

    def _interval(self) -> float:
        return self._every_s or checkpoint_policy.chosen(self.past, self._redo_s)


def _final(drain: Drain | None) -> dict[str, Any]:
    return {"final": drain is not None, "successor": drain.successor if drain else None}


def copy_obstacle(held: int, headroom: Room | None) -> str:
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


logger = structlog.get_logger()


def keep(assignment: Assignment, named: Kept, total_samples: int) -> None:
    """Mark the checkpoints that the ledger names, and remove those that it names no more."""
    mark(assignment, named, total_samples)
    checkpoint.prune(assignment.checkpoint_dir, named.paths)


def mark(assignment: Assignment, named: Kept, total_samples: int) -> None:
    """Mark the checkpoints that the ledger names; keep the job's request and program with them.

    What cannot be written is written at the next time.
    """
    try:
        request = msgspec.json.encode(assignment.request)
        checkpoint.keep_job(assignment.checkpoint_dir, request, assignment.program)
        for path in named.paths:
            if digest := named.digests.get(path):
                samples = named.samples if path == named.paths[0] else None
                checkpoint.mark_committed(
                    path, CommitMark(digest=digest, samples=samples, total_samples=total_samples)
                )
    except tf.errors.OpError as error:
        logger.warning("CheckpointNotMarked", error=failure_cause.said(error.message))


def keep_beside(assignment: Assignment, named: Kept, total_samples: int) -> None:
    """Do as `keep`, while training goes on."""
    threading.Thread(
        target=keep, args=(assignment, named, total_samples), name="keeping", daemon=True
    ).start()


def mark_beside(assignment: Assignment, named: Kept, total_samples: int) -> None:
    """Do as `mark`, while training goes on."""
    threading.Thread(
        target=mark, args=(assignment, named, total_samples), name="marking", daemon=True
    ).start()
