"""List the checkpoints of a job, and merge a delta with the files before it.

    python -m services.trainer.worker.stored_checkpoints list FOLDER
    python -m services.trainer.worker.stored_checkpoints merge CHECKPOINT OUTPUT

The answer is JSON on the standard output. OUTPUT is a plain Keras checkpoint:
`tf.train.Checkpoint(model=model()).restore(OUTPUT)` restores it in any process.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import tensorflow as tf
from tensorflow.python.training import py_checkpoint_reader

from services.trainer import checkpoint_policy, table_files
from services.trainer.stored_checkpoints import Answer, StoredCheckpoint
from services.trainer.table_files import TABLE_FILES, EarlierFiles, TableFile
from services.trainer.worker import failure_cause
from services.trainer.worker.checkpoint_files import (
    checkpoints_in,
    committed_digest,
    committed_digests,
    files_of_checkpoint,
    make_folder,
    merge_files,
    read_earlier_files,
    remove_tensor_files,
    restore_fault,
    seal_checkpoint,
    tensor_files,
)
from services.trainer.worker.table_layout import slice_text
from services.trainer.worker.table_transfer import BLOCK_BYTES, IDS, ROWS

CHANGED = (f"{IDS}/", f"{ROWS}/")


def main(action: str, path: str, *output: str) -> Answer:
    try:
        if action == "list":
            return Answer(checkpoints=stored_checkpoints(path))
        return Answer(checkpoints=(merge_checkpoint(path, *output),))
    except (tf.errors.OpError, msgspec.DecodeError, ValueError, OSError) as error:
        return Answer(error=failure_cause.storage_message(str(error)))


# ---------------------------------------------------------------- list


def stored_checkpoints(folder: str) -> tuple[StoredCheckpoint, ...]:
    """Return the checkpoints in a job's folder, the newest first. `folder` may also be that of a
    generation, or one checkpoint.
    """
    job, _, name = folder.rpartition("/")
    if checkpoint_policy.generation_of_folder(name) is None:
        job = folder
    digests = committed_digests(job)
    found = [path for path in checkpoints_in(job) if path.startswith(f"{folder}/")]
    if not found and tf.io.gfile.exists(f"{folder}.index"):
        found, digests = [folder], {folder: committed_digest(folder)}
    return tuple([describe_checkpoint(path, digests.get(path, "")) for path in found])


def describe_checkpoint(path: str, digest: str) -> StoredCheckpoint:
    """`digest`: of its files when it was saved; "" if it is not known."""
    fault = ""
    try:
        fault = restore_fault(path, digest)
        seal = seal_checkpoint(path)
        has_tables = read_earlier_files(path) is not None
        tables = files_of_checkpoint(path, seal.digest) if has_tables else ()
    except (tf.errors.OpError, msgspec.DecodeError) as error:
        why = fault or failure_cause.storage_message(str(error))
        return StoredCheckpoint(path=path, fault=why)
    return StoredCheckpoint(path=path, bytes=seal.bytes, tables=tables, fault=fault)


# ---------------------------------------------------------------- merge


def merge_checkpoint(path: str, output: str) -> StoredCheckpoint:
    """Write the checkpoint `output`: that in `path`, with all rows of its tables.

    Raise `tf.errors.OpError`, `OSError` or `ValueError`, after what was written is removed. The rows
    of one table or slot at a time are in a temporary file beside the output; a delta's rows of one
    shard are in memory.
    """
    found = describe_checkpoint(path, committed_digest(path))
    if found.fault:
        raise ValueError(f"{path} cannot be merged: {found.fault}")
    if not found.is_delta:
        raise ValueError(f"{path} has all rows of its tables: nothing has to be merged")
    groups = _earlier_files(path).keys
    if not groups:
        raise ValueError(f"{path} does not name its tables: an unreleased version wrote it")
    if existing := tensor_files(output):
        raise ValueError(f"{existing[0]} exists")
    base_path, *_ = paths = [table_files.file_path(path, each) for each in found.tables]
    base, *deltas = [py_checkpoint_reader.NewCheckpointReader(each) for each in paths]
    block_bytes = BLOCK_BYTES if found.tables[0].in_blocks else sys.maxsize
    make_folder(f"{output}_temp")
    prefixes = [f"{output}_temp/others"]
    try:
        _write_others(deltas[-1], found.tables[0], prefixes[0])
        for group in groups:
            for key in group:
                prefix = f"{output}_temp/rows-{len(prefixes)}"
                rows = TableRows(key, group[0], base, deltas)
                prefixes += _write_table(rows, base_path, prefix, block_bytes)
        merge_files(prefixes, output)
    except BaseException:
        remove_tensor_files(output)
        raise
    return describe_checkpoint(output, "")


def _earlier_files(path: str) -> EarlierFiles:
    found = read_earlier_files(path)
    assert found is not None
    return found


def _write_others(delta: Any, base: TableFile, prefix: str) -> None:
    """Write everything of a delta's file but rows of tables."""
    keys = [
        key
        for key in delta.get_variable_to_shape_map()
        if key != TABLE_FILES and not key.startswith(CHANGED)
    ]
    whole = msgspec.json.encode(EarlierFiles((), base.rows, base.bytes))
    tf.raw_ops.SaveV2(
        prefix=tf.constant(prefix),
        tensor_names=tf.constant([TABLE_FILES, *keys]),
        shape_and_slices=tf.constant([""] * (1 + len(keys))),
        tensors=[tf.constant(whole), *[_as_tensor(delta, key) for key in keys]],
    )


def _as_tensor(reader: Any, key: str) -> tf.Tensor:
    return tf.constant(reader.get_tensor(key), reader.get_variable_to_dtype_map()[key])


class TableRows(NamedTuple):
    """A table or slot in a base and the deltas after it. `ids_key`: the key of its table, behind
    which a delta has the numbers of the changed rows.
    """

    key: str
    ids_key: str
    base: Any
    deltas: Sequence[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.base.get_variable_to_shape_map()[self.key])

    @property
    def dtype(self) -> tf.DType:
        return self.base.get_variable_to_dtype_map()[self.key]

    def changes(self) -> Iterator[tuple[Any, Any]]:
        """Yield the numbers of changed rows and these rows, from the first delta to the last."""
        for delta in self.deltas:
            at = 0
            while delta.has_tensor(f"{IDS}/{at}/{self.ids_key}"):
                ids = delta.get_tensor(f"{IDS}/{at}/{self.ids_key}")
                yield ids, delta.get_tensor(f"{ROWS}/{at}/{self.key}")
                at += 1


def _write_table(table: TableRows, path: str, prefix: str, block_bytes: int) -> list[str]:
    """Write all rows of a table or slot, in blocks. Return the prefixes of the files. `path`: of
    the base.
    """
    shape, count = table.shape, table.shape[0]
    row_bytes = table.dtype.size * math.prod(shape[1:])
    step = max(min(block_bytes // row_bytes, count), 1)
    blocks = [(first, min(first + step, count)) for first in range(0, count, step)]
    with tempfile.TemporaryFile(dir=_local_folder(prefix)) as file:
        # A full disk is an error here. Writing to the mapped memory, it would end the process.
        os.posix_fallocate(file.fileno(), 0, max(count * row_bytes, 1))
        rows = np.memmap(file, table.dtype.as_numpy_dtype, "r+", shape=shape)
        for first, stop in blocks:
            (read,) = tf.raw_ops.RestoreV2(
                prefix=path,
                tensor_names=[table.key],
                shape_and_slices=[slice_text(table.shape, range(first, stop))],
                dtypes=[table.dtype],
            )
            rows[first:stop] = read.numpy()
        for ids, changed in table.changes():
            rows[ids] = changed
        for first, stop in blocks:
            tf.raw_ops.SaveV2(
                prefix=f"{prefix}-{first}",
                tensor_names=[table.key],
                shape_and_slices=[slice_text(table.shape, range(first, stop))],
                tensors=[tf.constant(rows[first:stop], table.dtype)],
            )
    return [f"{prefix}-{first}" for first, _ in blocks]


def _local_folder(path: str) -> str | None:
    """Return the folder of a path; None, the usual one for temporary files, if it is a URL."""
    return None if "://" in path else path.rpartition("/")[0]


if __name__ == "__main__":
    print(msgspec.json.encode(main(*sys.argv[1:])).decode())
