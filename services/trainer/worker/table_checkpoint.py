"""The tables of a model in its checkpoints: all rows, or a delta.

A delta has the rows that changed since the checkpoint before it, and the names of the files that it
needs: a base, and the deltas after it (`table_files.py`). Everything else of the model is in each
checkpoint.

A base is written while training continues and without a cut. It has the rows as they were at
different moments, all of them after the cut at which it began. Each row that changed after that cut
is in a later delta. So a base and all deltas after its beginning are the rows of the last cut. A
base in `base-<step>` has no other part of the model, and is no checkpoint by itself.
"""

from __future__ import annotations

import math
import threading
import time

import msgspec

from services.trainer import table_files
from services.trainer.table_files import PARTS, EarlierFiles, TableFile
from services.trainer.worker.checkpoint_files import (
    files_of_checkpoint,
    make_folder,
    merge_files,
    replace_checkpoint,
    seal_checkpoint,
)
from services.trainer.worker.ps_memory import MARK_BYTES
from services.trainer.worker.table_transfer import TableChange, TableTransfer
from services.trainer.worker.write_pace import WritePace
from shared.messages import TableRound


class TableCheckpoint:
    """Which files have the rows of the tables. `files`: those of the last cut that was saved or
    restored, the base first; none: there is no base yet. `rounds`: the files that were read.
    """

    def __init__(self, transfer: TableTransfer, ps: int, has_rows: bool = True) -> None:
        """`has_rows`: the tables have their initial values."""
        self.transfer = transfer
        self.rounds: list[TableRound] = []
        self.files: tuple[TableFile, ...] = ()
        self._ps = ps
        self._earlier: tuple[TableFile, ...] = ()
        self._change: TableChange | None = None
        self._lock = threading.Lock()  # of `files`: a base ends beside saves
        self._is_undefined = not has_rows
        # Rows that `model()` has set are in each checkpoint already, or all rows will be.
        transfer.advance_clock()
        transfer.mark_saved()

    # ------------------------------------------------------------ save

    def cut(self, all_rows: bool, most_bytes: float = math.inf) -> None:
        """Collect what changed, unless all rows are to be written: without a base, by order, or if
        a ps would hold more than `most_bytes`. `is_delta` says which.
        """
        self._earlier = self.files  # a base may end before this is written
        self._change = None
        if self._earlier and not all_rows:
            self._change = self.transfer.collect(most_bytes)
        if self._change is None:
            self.transfer.advance_clock()

    def cut_for_rehearsal(self) -> None:
        """Prepare a delta without rows."""
        self._earlier = self.files
        self._change = self.transfer.collect()

    @property
    def bytes_on_ps(self) -> float:
        """Return the mean bytes of tables, slots and marks on a ps."""
        return (self.transfer.bytes + MARK_BYTES * self.transfer.rows) / self._ps

    @property
    def has_base(self) -> bool:
        """Return whether there were files at the last cut that a delta could follow."""
        return bool(self._earlier)

    @property
    def is_delta(self) -> bool:
        return self._change is not None

    def earlier_files(self) -> bytes:
        """Return what the checkpoint that is being written has under `TABLE_FILES`."""
        rows, size = self._written()
        if self.is_delta:
            keys = tuple([group.keys for group in self.transfer.groups])
            earlier = EarlierFiles(self._earlier, rows, size, self._ps, PARTS, keys)
            return msgspec.json.encode(earlier)
        return msgspec.json.encode(EarlierFiles((), rows, size))

    def _written(self) -> TableChange:
        return self._change or TableChange(self.transfer.rows, self.transfer.bytes)

    def write_rows(self, path: str, others: str, pace: WritePace | None = None) -> None:
        """Write the changed rows, or all of them, and complete the checkpoint. Training may only
        continue meanwhile if it is a delta. `others`: the prefix of files with everything else. A
        delta of the same step is removed when all files are complete.
        """
        prefixes = [others]
        if self.is_delta:
            prefixes += self.transfer.write_changed(f"{path}_temp/changed", pace)
        else:
            prefixes += self._write_blocks(path)
        replace_checkpoint(prefixes, path)

    def _write_blocks(self, path: str) -> list[str]:
        make_folder(f"{path}_temp")
        return self.transfer.write_blocks(f"{path}_temp/rows")

    def on_saved(self, path: str, digest: str) -> None:
        """The last cut is saved in a checkpoint with this digest."""
        rows, size = self._written()
        ps = self._ps if self.is_delta else 0
        file = TableFile(table_files.path_in_job(path), digest, rows, size, ps, PARTS)
        with self._lock:
            self.files = (*self.files, file) if self.is_delta else (file,)
        self.transfer.mark_saved()

    def release_cut(self) -> None:
        """The last cut is written, or it will not be."""
        if self.is_delta:
            self.transfer.clear()

    # ------------------------------------------------------------ base

    @property
    def needs_base(self) -> bool:
        return table_files.needs_base(self.files)

    def write_base(self, path: str) -> tuple[TableFile, ...]:
        """Write a base while training continues. Return the files that it follows, for
        `adopt_base`.
        """
        before = self.files
        merge_files(self._write_blocks(path), path)
        return before

    def adopt_base(self, path: str, digest: str, before: tuple[TableFile, ...]) -> bool:
        """Let a base take the place of the files in `before`. Return false if these are not the
        first files any more.
        """
        base = TableFile(
            table_files.path_in_job(path),
            digest,
            self.transfer.rows,
            self.transfer.bytes,
            follows=before[-1].digest if before else "",
        )
        with self._lock:
            later = self.files[len(before) :]
            if self.files[: len(before)] != before or not all(each.ps for each in later):
                return False
            self.files = (base, *later)
        return True

    # ------------------------------------------------------------ restore

    def read(self, path: str) -> None:
        """Set all rows to those of a checkpoint. Only its last files are read, if the rows of the
        others are there already.

        Raise `tf.errors.OpError` or `msgspec.DecodeError`; the rows are then undefined, until
        another call succeeds or `refill_tables` is called.
        """
        wanted = files_of_checkpoint(path, seal_checkpoint(path).digest)
        missing = table_files.files_to_read(self.files, wanted)
        self.files, self._is_undefined = (), True
        for file in missing:
            self._read_file(table_files.file_path(path, file), file)
        self.files, self._is_undefined = wanted, False

    def _read_file(self, path: str, file: TableFile) -> None:
        began = time.monotonic()
        if file.ps:
            self.transfer.apply_delta(path, file.ps, file.parts)
        else:
            self.transfer.read_blocks(path, file.in_blocks)
        seconds = time.monotonic() - began
        self.rounds.append(TableRound(rows=file.rows, bytes=file.bytes, seconds=seconds))

    def forget_files(self) -> None:
        """Let the next base or checkpoint have all rows. The files that were read belong to another
        job, so no later one may need them.
        """
        self.files = ()

    def refill_tables(self) -> None:
        """Give all rows their initial values if they have others, or none."""
        if self._is_undefined or self.files:
            self.files, self._is_undefined = (), False
            self.transfer.refill()
