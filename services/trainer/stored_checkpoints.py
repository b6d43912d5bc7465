"""The stored checkpoints of a job, as the command `weir checkpoints` lists them.

`python -m services.trainer.worker.stored_checkpoints` reads them: that needs TensorFlow.
"""

from __future__ import annotations

import msgspec

from services.trainer.table_files import TableFile


class StoredCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint in a job's folder.

    `bytes`: of its own files. `tables`: the files with the rows of its tables, the base first and
    its own last; none: it has no divided tables. `fault`: why it cannot be restored ("": no reason
    is known).
    """

    path: str
    bytes: int = 0
    tables: tuple[TableFile, ...] = ()
    fault: str = ""

    @property
    def is_delta(self) -> bool:
        """Return whether it needs other files, which Keras does not know."""
        return len(self.tables) > 1

    @property
    def bytes_before(self) -> int:
        """Return the bytes of the rows in the files that it needs."""
        return sum(each.bytes for each in self.tables[:-1])


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`error`: why there is no answer ("": there is one)."""

    checkpoints: tuple[StoredCheckpoint, ...] = ()
    error: str = ""
