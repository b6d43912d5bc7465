"""The files of checkpoints: digests, marks, and their removal.

Files lie wherever TensorFlow can write: a folder, a shared volume, an object store by its URL. A
digest pins every byte without reading it again: TensorFlow computes a checksum (CRC-32C) of each
variable's bytes while it writes, on the ps, and keeps them in the index. The digest covers the
index and the names and sizes of the other files. So files with the same digest, whose checksums
hold while they are restored, are the bytes that were written.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
import structlog
import tensorflow as tf
from tensorflow.python.lib.io import _pywrap_file_io
from tensorflow.python.training import py_checkpoint_reader

from services.trainer import checkpoint_policy, table_files
from services.trainer.checkpoint_policy import CheckpointAge
from services.trainer.table_files import TABLE_FILES, EarlierFiles, TableFile
from services.trainer.worker import failure_cause
from shared import checkpoints
from shared.checkpoints import COMMITTED, INDEX, CommitMark

gfile = tf.io.gfile
logger = structlog.get_logger()
STORAGE_ERRORS = (
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.PermissionDeniedError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnauthenticatedError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)
FILES_NOT_FOUND = ("Failed to find any matching files", "Failed to get matching files")
"""TensorFlow's messages if it does not find a checkpoint's files, whatever the reason."""
NO_FOLDER = "Not a directory"


class StorageNotReadable(tf.errors.UnknownError):  # type: ignore[misc]
    """The storage does not answer as it should, which says nothing about the files in it."""


@contextmanager
def detect_storage_errors() -> Iterator[None]:
    """Raise `StorageNotReadable` in place of an error that says nothing about the files. Use it for
    a checkpoint whose index has been read: then a process that does not see its files is an outage,
    too.
    """
    try:
        yield
    except StorageNotReadable:
        raise
    except (tf.errors.OpError, ValueError) as error:
        if _is_storage_error(error):
            raise StorageNotReadable(None, None, str(error)) from error
        raise


def _is_storage_error(error: Exception) -> bool:
    if any(text in str(error) for text in FILES_NOT_FOUND):
        return True
    if isinstance(error, tf.errors.FailedPreconditionError):
        return NO_FOLDER not in str(error)
    # `CheckpointReader` raises a plain `OpError` for what it does not know.
    return isinstance(error, STORAGE_ERRORS) or type(error) is tf.errors.OpError


class CheckpointSeal(NamedTuple):
    """The ledger's record of a checkpoint: `sha256-<hex>`, and its size in bytes."""

    digest: str
    bytes: int


def seal_checkpoint(path: str) -> CheckpointSeal:
    """Return the seal of a complete checkpoint. Raise `tf.errors.OpError` if it is missing."""
    with gfile.GFile(path + INDEX, "rb") as index:
        body = index.read()
    folder = path.rpartition("/")[0]
    counted = [name for name in _file_names(path) if checkpoints.is_in_digest(name)]
    sizes = [(name, int(gfile.stat(f"{folder}/{name}").length)) for name in counted]
    total = len(body) + sum(size for _, size in sizes)
    return CheckpointSeal(checkpoints.checkpoint_digest(body, sizes), total)


def checkpoint_fault(path: str, digest: str) -> str:
    """Return why a checkpoint does not match this digest ("": none is known); empty if no fault is
    found. Raise `StorageNotReadable`.
    """
    try:
        with detect_storage_errors():
            found = seal_checkpoint(path)
    except tf.errors.NotFoundError:
        return "it is missing"
    except StorageNotReadable:
        raise
    except tf.errors.OpError as error:
        return f"it cannot be read: {error.message}"
    if digest in ("", found.digest):
        return ""
    return "it is damaged: its files are not those that were written"


def table_fault(path: str, digest: str, held: Sequence[TableFile] = ()) -> str:
    """Return why a file before a checkpoint that has rows of its tables cannot be used; empty if no
    fault is found. `digest`: of the checkpoint, if it is known; `held`: files whose rows the tables
    have. Raise `StorageNotReadable`.
    """
    try:
        files = files_of_checkpoint(path, digest)
    except StorageNotReadable:
        raise
    except (tf.errors.OpError, ValueError, msgspec.DecodeError) as error:
        return f"its table files are not known: {error}"
    for file in table_files.files_to_read(held, files)[:-1]:
        before = table_files.file_path(path, file)
        if fault := checkpoint_fault(before, file.digest):
            return f"it needs {before}: {fault}"
    return ""


def restore_fault(path: str, digest: str, held: Sequence[TableFile] = ()) -> str:
    """Return why a checkpoint or a file that it needs cannot be used; empty if no fault is found.
    The arguments are those of `table_fault`. Raise `StorageNotReadable`.
    """
    return checkpoint_fault(path, digest) or table_fault(path, digest, held)


def merge_files(prefixes: Sequence[str], path: str) -> None:
    """Make one checkpoint of the files with these prefixes."""
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=tf.constant(prefixes),
        destination_prefix=tf.constant(path),
        delete_old_dirs=True,
    )


def read_earlier_files(path: str) -> EarlierFiles | None:
    """Return the table files before that of a checkpoint; None: it has no tables, or an earlier
    version wrote it.

    Raise `tf.errors.OpError`, among them `StorageNotReadable`, or `msgspec.DecodeError`.
    """
    with detect_storage_errors():
        reader = py_checkpoint_reader.NewCheckpointReader(path)
        if not reader.has_tensor(TABLE_FILES):
            return None
        return msgspec.json.decode(reader.get_tensor(TABLE_FILES), type=EarlierFiles)


def files_of_checkpoint(path: str, digest: str) -> tuple[TableFile, ...]:
    """Return the files with the rows of a checkpoint, the base first, its own last."""
    earlier = read_earlier_files(path)
    name = table_files.path_in_job(path)
    if earlier is None:
        return (TableFile(name, digest, in_blocks=False),)
    own = TableFile(name, digest, earlier.rows, earlier.bytes, earlier.ps, earlier.parts)
    return (*earlier.files, own)


def checkpoints_in(folder: str) -> list[str]:
    """Return the paths of all checkpoints in a job's folder that have an index, the newest
    first. Raise `StorageNotReadable`.
    """
    ages = {}
    for generation in _list_folder(folder):
        if checkpoint_policy.generation_of_folder(generation) is None:
            continue
        for name in _list_folder(f"{folder}/{generation}"):
            if not name.endswith(INDEX):
                continue
            path = f"{folder}/{generation}/{name.removesuffix(INDEX)}"
            age = checkpoint_policy.checkpoint_age(path)
            if age is not None:
                ages[path] = age
    return sorted(ages, key=lambda path: ages[path], reverse=True)


def mark_committed(path: str, committed: CommitMark) -> None:
    """Write a mark beside a checkpoint that the ledger has named, unless it exists, or the
    checkpoint is gone or was written again since.
    """
    mark = _read_mark(path)
    is_marked = mark is not None and mark.digest == committed.digest
    if not is_marked and not checkpoint_fault(path, committed.digest):
        _write_file(path + COMMITTED, msgspec.json.encode(committed))


def _read_mark(path: str) -> CommitMark | None:
    """Return the mark beside a checkpoint; None if there is none, or an incomplete one."""
    try:
        with detect_storage_errors(), gfile.GFile(path + COMMITTED, "rb") as file:
            return msgspec.json.decode(file.read(), type=CommitMark)
    except (tf.errors.NotFoundError, msgspec.DecodeError):
        return None


def committed_digest(path: str) -> str:
    """Return the digest of a checkpoint that the ledger has named; "" if it has no complete mark.
    Raise `StorageNotReadable`.
    """
    mark = _read_mark(path)
    return mark.digest if mark is not None else ""


def committed_digests(folder: str, later_than: int = -1) -> dict[str, str]:
    """Return the digests of all checkpoints in a job's folder that the ledger has ever named, by
    path. `later_than`: only of those after this step.

    An incomplete mark counts as none. Raise `StorageNotReadable`.
    """
    digests = {}
    for path in checkpoints_in(folder):
        if checkpoints.checkpoint_step(path) <= later_than:
            continue
        if digest := committed_digest(path):
            digests[path] = digest
    return digests


def write_job_files(folder: str, request: bytes, program: str) -> None:
    """Write the job's request and program beside its checkpoints, unless they exist. `program`: a
    local file.
    """
    if gfile.exists(f"{folder}/{checkpoints.REQUEST}"):
        return
    make_folder(f"{folder}/{checkpoints.JOB}")
    with gfile.GFile(program, "rb") as file:
        _write_file(f"{folder}/{checkpoints.PROGRAM}", file.read())
    _write_file(f"{folder}/{checkpoints.REQUEST}", request)


def _write_file(path: str, body: bytes) -> None:
    with gfile.GFile(path, "wb") as file:
        file.write(body)


def make_folder(path: str) -> None:
    gfile.makedirs(path)


def remove_checkpoint(path: str) -> None:
    """Remove all files of a checkpoint, also of an incomplete one. Files that cannot be removed
    stay.
    """
    with contextlib.suppress(tf.errors.OpError):
        for name in _file_names(path):
            _remove_path(f"{path.rpartition('/')[0]}/{name}")


def remove_temporary_files(path: str) -> None:
    """Remove what an incomplete write has left, but no earlier checkpoint with this path. Files
    that cannot be removed stay.
    """
    with contextlib.suppress(tf.errors.OpError):
        _remove_path(f"{path}_temp")


def replace_checkpoint(prefixes: Sequence[str], path: str) -> None:
    """Make one checkpoint of the files with these prefixes, which are below `{path}_temp`, in place
    of an earlier one with this path. Its files may have other names, so all of them are removed.
    """
    for name in _file_names(path):
        if not name.endswith("_temp"):
            _remove_path(f"{path.rpartition('/')[0]}/{name}")
    merge_files(prefixes, path)


def tensor_files(path: str) -> list[str]:
    """Return the paths of the files with a checkpoint's tensors, and of its temporary folder; not
    those of marks and others whose names begin in the same way.
    """
    folder, _, name = path.rpartition("/")
    starts = (f"{name}.index", f"{name}.data-")
    return [
        f"{folder}/{each}"
        for each in _file_names(path)
        if each == f"{name}_temp" or each.startswith(starts)
    ]


def remove_tensor_files(path: str) -> None:
    """Remove `tensor_files`. Those that cannot be removed stay."""
    with contextlib.suppress(tf.errors.OpError):
        for each in tensor_files(path):
            _remove_path(each)


def prune_checkpoints(folder: str, kept: Sequence[str]) -> None:
    """Remove obsolete checkpoints from the generations' folders, and the folders that become
    empty. Files that the kept ones need stay.

    If the newest needs a base, the last checkpoint with an earlier base is kept, too: one damaged
    file cannot cost the job all its training, and a generation that reads the earlier base ahead
    can finish that. Where a folder cannot be read, the rest stays.
    """
    try:
        _prune_checkpoints(folder, kept)
    except (tf.errors.OpError, msgspec.DecodeError) as error:
        logger.warning("CheckpointsNotRemoved", error=failure_cause.storage_message(str(error)))


def _prune_checkpoints(folder: str, kept: Sequence[str]) -> None:
    files = {path: _paths_of_tables(path) for path in kept if _exists(path + INDEX)}
    earlier = _with_an_earlier_base(folder, kept, files)
    if earlier is not None:
        files[earlier] = _paths_of_tables(earlier)
    needed = checkpoint_policy.checkpoint_ages(itertools.chain(kept, *files.values()))
    bases = [paths[0] for paths in files.values()]
    for generation in _list_folder(folder):
        number = checkpoint_policy.generation_of_folder(generation)
        if number is not None:
            _prune_generation(f"{folder}/{generation}", number, needed, bases)


def _prune_generation(
    folder: str, number: int, needed: Set[CheckpointAge], bases: Sequence[str]
) -> None:
    """Remove the obsolete files of a generation, and its folder if that becomes empty. `needed`:
    the checkpoints that stay; `bases`: those that these need.
    """
    for name in _list_folder(folder):
        is_obsolete = checkpoint_policy.is_obsolete(number, name, needed)
        if is_obsolete or table_files.is_obsolete_base(number, name, bases):
            with contextlib.suppress(tf.errors.OpError):
                _remove_path(f"{folder}/{name}")
    if checkpoint_policy.is_generation_closed(number, needed) and not _list_folder(folder):
        with contextlib.suppress(tf.errors.OpError):
            gfile.rmtree(folder)


def _with_an_earlier_base(
    folder: str, kept: Sequence[str], files: Mapping[str, Sequence[str]]
) -> str | None:
    """Return the newest intact committed checkpoint that shares no file with the kept ones; the
    files that it needs are not checked. `files`: those with the tables of each kept one; None:
    there is no such one, or the newest kept one needs no base.
    """
    ages = {}
    for path in kept:
        age = checkpoint_policy.checkpoint_age(path)
        if age is not None:
            ages[path] = age
    newest = max(ages, key=lambda path: ages[path], default="")
    if len(files.get(newest, ())) < 2:
        return None
    needed = set(itertools.chain(kept, *files.values()))
    for path in checkpoints_in(folder):
        age = checkpoint_policy.checkpoint_age(path)
        if age is None or age > ages[newest] or path in needed:
            continue
        mark = _read_mark(path)
        if mark is None or checkpoint_fault(path, mark.digest):
            continue
        if needed.isdisjoint(_paths_of_tables(path)):
            return path
    return None


def _paths_of_tables(path: str) -> list[str]:
    """Return the paths of the files with a checkpoint's tables, the base first, its own last."""
    return [table_files.file_path(path, each) for each in files_of_checkpoint(path, "")]


def _file_names(path: str) -> Iterator[str]:
    """Return the names of a checkpoint's files and of its temporary folder."""
    folder, _, name = path.rpartition("/")
    return (
        found
        for found in _list_folder(folder)
        if found.startswith(f"{name}.") or found == f"{name}_temp"
    )


def _list_folder(folder: str) -> list[str]:
    """Return the names in a folder; none if it does not exist. Some file systems append a slash to
    folders.

    Raise `StorageNotReadable`: a folder that cannot be read for a moment is not empty. `gfile.listdir`
    would say that it does not exist.
    """
    try:
        with detect_storage_errors():
            return [name.rstrip("/") for name in _pywrap_file_io.GetChildren(folder)]
    except (tf.errors.NotFoundError, tf.errors.FailedPreconditionError):
        return []


def _exists(path: str) -> bool:
    """Return whether a file exists. Raise `StorageNotReadable`; `gfile.exists` would return
    false.
    """
    try:
        with detect_storage_errors():
            gfile.stat(path)
    except (tf.errors.NotFoundError, tf.errors.FailedPreconditionError):
        return False
    return True


def _remove_path(path: str) -> None:
    if gfile.isdir(path):
        gfile.rmtree(path)
    else:
        gfile.remove(path)
