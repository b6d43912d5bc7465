"""Write bases of tables in a thread, while training continues."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog
import tensorflow as tf

from services.trainer.worker import failure_cause
from services.trainer.worker.checkpoint_files import remove_checkpoint, seal_checkpoint
from services.trainer.worker.table_checkpoint import TableCheckpoint

FIRST_WAIT_S, MOST_WAIT_S = 60.0, 3600.0
"""After a base that could not be written. Each attempt writes all rows, so the wait doubles."""
ReportFailure = Callable[[int, str, tf.errors.OpError], None]
"""Takes the step and path of a base, and the error of its files."""
logger = structlog.get_logger()


class BaseWriter:
    """The bases of one generation. If the first one cannot be written, the next save has all rows.
    Without a later one a restore reads more deltas. A base is tried again with a save, but not at
    once.
    """

    def __init__(
        self,
        tables: TableCheckpoint | None,
        folder: str,
        report_failure: ReportFailure,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tables`: None: the model has none, and needs no base. `folder`: of the generation."""
        self._tables = tables
        self._folder = folder
        self._report_failure = report_failure
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._not_before_s, self._wait_s = 0.0, FIRST_WAIT_S

    def start_if_needed(self, step: int) -> None:
        """Start to write a base if the tables need one and none is in progress. `step`: of the last
        cut, or of the restored checkpoint.
        """
        if self._tables is None or self._is_writing or not self._tables.needs_base:
            return
        if self._clock() < self._not_before_s:
            return
        path = f"{self._folder}/base-{step}"
        self._thread = threading.Thread(
            target=self._write, args=(self._tables, path, step), name="base", daemon=True
        )
        self._thread.start()

    @property
    def _is_writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def blocks_saves(self) -> bool:
        """Return whether the first base is in progress: no delta can be saved without one."""
        return self._tables is not None and self._is_writing and not self._tables.files

    def wait(self, most_s: float | None = None) -> bool:
        """Wait until no base is in progress. Return whether that is so."""
        if self._thread is not None:
            self._thread.join(most_s)
        return not self._is_writing

    def _write(self, tables: TableCheckpoint, path: str, step: int) -> None:
        try:
            before = tables.write_base(path)
            digest = seal_checkpoint(path).digest
        except Exception as error:  # training shows its own faults; it needs no base
            why = failure_cause.storage_message(str(error))
            logger.warning("BaseNotWritten", path=path, error=why)
            remove_checkpoint(path)
            self._not_before_s = self._clock() + self._wait_s
            self._wait_s = min(2 * self._wait_s, MOST_WAIT_S)
            if isinstance(error, tf.errors.OpError):
                self._report_failure(step, path, error)
            return
        self._wait_s = FIRST_WAIT_S
        if not tables.adopt_base(path, digest, before):
            remove_checkpoint(path)
