"""Checkpoints: TensorFlow's own format, with the shard ledger inside.

A checkpoint written under n parameter servers restores under m, because every variable is whole (no
partitioner). Each ps writes its own part, in parallel. Every generation has a folder `gen-<g>`, so
that a stale generation never touches another's files. A checkpoint exists once the ledger bucket
names it, not once its files exist.

A save is a cut, then a write. A cut is one value of every variable at one moment: on each ps a
second variable takes the value of the first. Nothing is copied for that: TensorFlow shares an
assigned value and copies before it changes a shared one (`ReadVariableOp` promises that a value
once read stays as it was). So a cut takes milliseconds whatever the model's size, and it can be
written while training continues. Until then memory holds both values of everything that training
changes.

Restoring: the newest complete checkpoint counts. A torn or missing one is reported and skipped, and
the next older one that the ledger names is tried. Model and ledger of examples come from the same
checkpoint, so every example still counts once; only work is repeated. A bus that lost its last
minute has an old ledger: checkpoints that it names may be gone, and newer ones lie in the job's
folder. A mark beside each says that the ledger has named it once (`shared/checkpoints.py`); those
come first. A job may also begin with the last checkpoint of a finished one
(`checkpoint.continue_from`). The epochs of the earlier job count, so the new job trains only the
additional ones.

`table_checkpoint.py` has the rows of divided tables, `checkpoint_files.py` the files.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
import structlog
import tensorflow as tf
from tensorflow.python.checkpoint import functional_saver
from tensorflow.python.trackable import trackable_utils
from tensorflow.python.training import py_checkpoint_reader
from tensorflow.python.util import object_identity

from services.trainer import checkpoint_policy
from services.trainer.protocol import Begin, Line, Skipped
from services.trainer.table_files import TABLE_FILES
from services.trainer.worker import failure_cause, shard_ledger
from services.trainer.worker.checkpoint_files import (
    StorageNotReadable,
    checkpoints_in,
    committed_digests,
    detect_storage_errors,
    make_folder,
    remove_checkpoint,
    restore_fault,
    seal_checkpoint,
)
from services.trainer.worker.shard_ledger import Ledger
from services.trainer.worker.sharded_table import ShardedTable
from services.trainer.worker.table_checkpoint import TableCheckpoint
from services.trainer.worker.table_transfer import TableTransfer
from services.trainer.worker.training_step import BuiltModel
from services.trainer.worker.write_pace import WritePace
from shared.checkpoints import checkpoint_step, restore_candidates
from shared.text import format_count

PATH_SIGNATURE = [tf.TensorSpec([], tf.string)]
logger = structlog.get_logger()
CONTINUE_FROM = "checkpoint.continue_from"
STORAGE_PATIENCE_S, STORAGE_RETRY_S = 60.0, 2.0
"""The longest wait for a storage that does not answer, and the time between two tries."""
Answer = TypeVar("Answer")
gfile = tf.io.gfile


class CheckpointTensor(NamedTuple):
    """One tensor of a checkpoint: its owner, key and source. Without an owner it is constant."""

    owner: Any
    key: str
    source: Any


class Checkpoint:
    """The values that a generation writes and reads; any Keras program can restore `model` and
    `optimizer`.

    Everything is traced once. Otherwise TensorFlow would build the same graph at each call, while
    training stands still. AutoGraph would make the tracing take four times as long.
    """

    def __init__(self, built: BuiltModel) -> None:
        self._ledger = built.counters.ledger
        self._states = _untracked_states(built)
        self._whole = tf.train.Checkpoint(**_tracked_objects(built), states=self._states)
        tensors, _, self._savers, _ = self._whole._saver._gather_serialized_tensors()
        self._constant: list[CheckpointTensor] = []
        self._parts: list[CheckpointTensor] = []
        divided: dict[str, ShardedTable] = {}
        for owner, found in tensors.items():
            if isinstance(owner, ShardedTable):
                divided.update(dict.fromkeys(found, owner))
                continue
            parts = self._constant if owner is None or _is_lookup_table(found) else self._parts
            parts += [CheckpointTensor(owner, key, source) for key, source in found.items()]
        self.tables: TableCheckpoint | None = None
        if divided:
            self.tables = TableCheckpoint(TableTransfer(divided), built.ps, built.has_table_rows)
        self._copies = [_copy_variable(part.source) for part in self._parts]
        self._copy_bytes: dict[str, tuple[str, int]] = {}
        self._cut = tf.function(
            self._assign_copies, input_signature=[], autograph=False
        ).get_concrete_function()
        self._drop = tf.function(
            self._clear_copies, input_signature=[], autograph=False
        ).get_concrete_function()
        self._restore_cut = tf.function(
            self._restore_from_copies, input_signature=[], autograph=False
        )
        self._write = tf.function(
            self._write_copies, input_signature=PATH_SIGNATURE, autograph=False
        )
        self._write_beside_tables = tf.function(
            self._write_copies_beside_tables, input_signature=2 * PATH_SIGNATURE, autograph=False
        )
        self._read = tf.function(
            self._restore_from_files, input_signature=PATH_SIGNATURE, autograph=False
        )
        self._read_without_states = tf.function(
            self._restore_without_states, input_signature=PATH_SIGNATURE, autograph=False
        )

    # ------------------------------------------------------------ traced functions

    def _assign_copies(self) -> None:
        for part, copy in zip(self._parts, self._copies, strict=True):
            with tf.device(part.source.device):
                value = part.source.tensor
                copy.assign(value, read_value=False)
            self._copy_bytes[part.key] = (
                part.source.device,
                (value.shape.num_elements() or 0) * (value.dtype.size or 8),
            )

    def _clear_copies(self) -> None:
        for part, copy in zip(self._parts, self._copies, strict=True):
            with tf.device(part.source.device):
                copy.assign(_empty_tensor(part.source.dtype), read_value=False)

    def _restore_from_copies(self) -> None:
        """Restore from the cut as if from files."""
        found = object_identity.ObjectIdentityDictionary()
        for part, copy in zip(self._parts, self._copies, strict=True):
            with tf.device(part.source.device):
                name = trackable_utils.extract_local_name(part.key)
                found.setdefault(part.owner, {})[name] = copy.read_value()
        for owner, values in found.items():
            owner._restore_from_tensors(values)

    def _write_copies(self, path: tf.Tensor) -> None:
        """Write the cut as `tf.train.Checkpoint.write` does."""
        self._save(path, {})

    def _write_copies_beside_tables(self, path: tf.Tensor, files: tf.Tensor) -> None:
        """Write the cut and the names of the table files before it, but no rows of tables."""
        self._save(path, {TABLE_FILES: files})

    def _save(self, path: tf.Tensor, others: dict[str, tf.Tensor]) -> None:
        """Write the cut and other tensors, by their keys."""
        tensors = object_identity.ObjectIdentityDictionary()
        for part, copy in zip(self._parts, self._copies, strict=True):
            with tf.device(part.source.device):
                tensors.setdefault(part.owner, {})[part.key] = copy.read_value_no_copy()
        tensors[None] = {part.key: part.source for part in self._constant} | others
        functional_saver.MultiDeviceSaver(tensors, self._savers).save(path)

    def _restore_from_files(self, path: tf.Tensor) -> None:
        """Restore as `tf.train.Checkpoint.read` does, for a path that is not known when it is
        traced. Divided tables are left out.
        """
        tensors, savers = self._restored_tensors()
        functional_saver.MultiDeviceSaver(tensors, savers).restore(path)

    def _restore_without_states(self, path: tf.Tensor) -> None:
        tensors, savers = self._restored_tensors()
        for state in self._states:
            del tensors[state]
        functional_saver.MultiDeviceSaver(tensors, savers).restore(path)

    def _restored_tensors(self) -> tuple[Any, Any]:
        """Return the tensors of a checkpoint without lookup tables, which `model()` fills, without
        divided tables, and without the accumulators of these, which earlier versions wrote whole.
        """
        tensors, _, savers, _ = self._whole._saver._gather_serialized_tensors()
        for owner, found in list(tensors.items()):
            is_left_out = isinstance(owner, ShardedTable) or getattr(owner, "is_stand_in", False)
            if is_left_out or (owner is not None and _is_lookup_table(found)):
                del tensors[owner]
        return tensors, savers

    # ------------------------------------------------------------ operations

    @property
    def largest_cut_bytes(self) -> int:
        """Return the bytes of a cut on the ps that holds most."""
        held: Counter[str] = Counter()
        for device, size in self._copy_bytes.values():
            held[device] += size
        return max(held.values(), default=0)

    @contextmanager
    def rehearse(
        self, folder: str, failed: Callable[[Any], None], beside: bool = False
    ) -> Iterator[None]:
        """Write a checkpoint before the body runs and restore it after, to undo the body.

        A slow or impossible save then shows before training stops for it. `failed` receives an
        error of the files and may raise; otherwise the values are restored from memory. `beside`:
        the body runs while the files are written; a ps then holds what the body changes twice.
        """
        path = f"{folder}/{checkpoint_policy.REHEARSAL}"
        self._cut()
        if self.tables is not None:
            self.tables.cut_for_rehearsal()
        try:
            # If the body fails, its error is reported when the files are written.
            with self._without_table_updates(), ThreadPoolExecutor(1) as writer:
                written = writer.submit(self._write_files, path)
                if not beside and written.exception() is None:
                    self._release_cut()
                yield
                self._undo_rehearsal(path, written, failed)
        finally:
            try:
                self._release_cut()
            finally:
                remove_checkpoint(path)

    def _undo_rehearsal(
        self, path: str, written: Future[None], failed: Callable[[Any], None]
    ) -> None:
        try:
            written.result()
        except tf.errors.OpError as error:
            failed(error)
            self._restore_cut()
        else:
            self._release_cut()  # values that are read need memory, too
            self._read(tf.constant(path))

    def _without_table_updates(self) -> AbstractContextManager[None]:
        """Let the rows of tables stay as they are inside: they are not written for a rehearsal."""
        if self.tables is None:
            return contextlib.nullcontext()
        return self.tables.transfer.without_updates()

    def cut(self, ledger: Ledger, most_bytes: float = math.inf) -> None:
        """Hold the current values until they are written. Training stands still meanwhile. The last
        checkpoint of a finished job has all rows of its tables. `most_bytes`: of changed rows that
        a ps can hold.
        """
        self._ledger.assign(msgspec.json.encode(ledger))
        self._cut()
        if self.tables is not None:
            self.tables.cut(ledger.finished, most_bytes)

    @property
    def is_written_beside(self) -> bool:
        """Return whether the cut has all that it needs, so that training may continue while it is
        written: all rows of a table are written from where they are.
        """
        return self.tables is None or self.tables.is_delta

    def write_cut(self, path: str, pace: WritePace | None = None) -> None:
        """Write the cut and release it. Training may continue meanwhile if `is_written_beside`;
        `pace` then has the rests between blocks of changed rows.
        """
        try:
            self._write_files(path, pace)
        finally:
            self._release_cut()

    def _release_cut(self) -> None:
        self._drop()
        if self.tables is not None:
            self.tables.release_cut()

    def _write_files(self, path: str, pace: WritePace | None = None) -> None:
        make_folder(path.rpartition("/")[0])
        if self.tables is None:
            self._write(tf.constant(path))
            return
        make_folder(f"{path}_temp")
        others = f"{path}_temp/others"
        self._write_beside_tables(tf.constant(others), tf.constant(self.tables.earlier_files()))
        self.tables.write_rows(path, others, pace)

    def on_saved(self, path: str, digest: str) -> None:
        """The last cut is in a complete checkpoint with this digest."""
        if self.tables is not None:
            self.tables.on_saved(path, digest)

    def write(self, path: str, ledger: Ledger) -> str:
        """Cut and write. Return the digest."""
        self.cut(ledger)
        self.write_cut(path)
        digest = seal_checkpoint(path).digest
        self.on_saved(path, digest)
        return digest

    def read(self, path: str) -> Ledger:
        """Restore everything; if that fails, nothing changes, but for rows of tables.

        Raise `tf.errors.OpError` or `msgspec.DecodeError`: `DataLossError` if the bytes of a
        variable are not those that were written (checksums in the index), `NotFoundError` if a file
        or variable is missing.
        """
        read = self._read if self._has_states(path) else self._read_without_states
        with self._all_or_nothing():
            read(tf.constant(path))
            if self.tables is not None:
                self.tables.read(path)
            return msgspec.json.decode(self._ledger.numpy(), type=Ledger)

    def _has_states(self, path: str) -> bool:
        """Return whether a checkpoint has the states of random numbers: older ones do not."""
        if not self._states:
            return True
        key = next((part.key for part in self._parts if part.owner is self._states[0]), "")
        # `tf.train.load_checkpoint` takes some paths in an object store for folders.
        with contextlib.suppress(tf.errors.OpError, ValueError):
            return bool(py_checkpoint_reader.NewCheckpointReader(path).has_tensor(key))
        return True

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Undo a failed restore: if the body fails, put back the values from before."""
        self._cut()
        try:
            yield
        except (tf.errors.OpError, msgspec.DecodeError):
            self._restore_cut()
            raise
        finally:
            self._drop()


def _is_lookup_table(found: Mapping[str, Any]) -> bool:
    """Return whether these are the rows of a lookup table, not the value of a variable."""
    return all(isinstance(source, tf.Tensor) for source in found.values())


def _tracked_objects(built: BuiltModel) -> dict[str, Any]:
    return {"model": built.model, "optimizer": built.optimizer, "meter": built.counters}


def _untracked_states(built: BuiltModel) -> list[Any]:
    """Return variables that TensorFlow does not find by the attributes of models: the states of
    random numbers, such as those of dropout.
    """
    whole = tf.train.Checkpoint(**_tracked_objects(built))
    tracked = {id(each) for each in tf.train.TrackableView(whole).descendants()}
    return [v for v in (built.random, *built.variables) if v is not None and id(v) not in tracked]


def _empty_tensor(dtype: tf.DType) -> tf.Tensor:
    return tf.constant([], dtype)


def _copy_variable(source: Any) -> tf.Variable:
    """Return a variable that can hold any value of this kind, on the device of its source."""
    with tf.device(source.device):
        return tf.Variable(
            _empty_tensor(source.dtype),
            shape=tf.TensorShape(None),
            trainable=False,
            dtype=source.dtype,
        )


def restore_newest(
    checkpoint: Checkpoint,
    order: Begin,
    folder: str,
    say: Callable[[Line], None],
    lost: Callable[[], list[str]],
) -> Ledger | None:
    """Restore the newest complete checkpoint. Return None if there is none; then rows of tables
    that were read ahead have their initial values again, and nothing else has changed.

    A storage that does not answer is asked again, for `STORAGE_PATIENCE_S` in all. If only some
    files cannot be read then, an older checkpoint is restored. If none can be, raise
    `StorageUnavailable`: to train from the beginning would cost the job what it has. Raise
    `tf.errors.UnavailableError` if reading fails while `lost` returns a ps.
    """
    retry = partial(_retry_storage, lost, time.monotonic() + STORAGE_PATIENCE_S)
    try:
        ledger = _restore_first_intact(checkpoint, order, folder, say, retry)
    except StorageNotReadable as error:
        raise _storage_failure(error) from error
    if ledger is None and checkpoint.tables is not None:
        checkpoint.tables.refill_tables()
    return ledger


def _restore_first_intact(
    checkpoint: Checkpoint,
    order: Begin,
    folder: str,
    say: Callable[[Line], None],
    retry: Callable[[Callable[[], Any]], Any],
) -> Ledger | None:
    """Restore the newest checkpoint that can be read. Return None if there is none, and raise
    `StorageNotReadable` if some could not be read. `retry`: calls a function that uses the storage.
    """
    unreadable: StorageNotReadable | None = None
    candidates = _checkpoints_by_age(order, folder, retry)
    candidate = next(candidates, None)
    while candidate is not None:
        path, digest = candidate
        try:
            ledger: Ledger = retry(partial(_restore_intact, checkpoint, path, digest))
            return ledger
        except DamagedCheckpoint as damage:
            why = str(damage)
        except StorageNotReadable as error:
            unreadable = error
            why = f"it cannot be read: {failure_cause.storage_message(str(error))}"
        candidate = next(candidates, None)
        say(Skipped(path=path, cause=why, instead=candidate[0] if candidate is not None else ""))
    if unreadable is not None:
        raise unreadable
    return None


class DamagedCheckpoint(Exception):
    """A checkpoint that cannot be restored; the text says why."""


def _restore_intact(checkpoint: Checkpoint, path: str, digest: str) -> Ledger:
    """Restore a checkpoint. Raise `DamagedCheckpoint` or `StorageNotReadable`."""
    held = checkpoint.tables.files if checkpoint.tables is not None else ()
    if fault := restore_fault(path, digest, held):
        raise DamagedCheckpoint(fault)
    try:
        with detect_storage_errors():
            return checkpoint.read(path)
    except StorageNotReadable:
        raise
    except (tf.errors.OpError, msgspec.DecodeError) as error:
        why = f"it is damaged: {failure_cause.storage_message(str(error))}"
        raise DamagedCheckpoint(why) from error


def _retry_storage(
    lost: Callable[[], list[str]], until_s: float, operation: Callable[[], Answer]
) -> Answer:
    """Return the result of an operation on the storage. Repeat it until a time (monotonic clock)
    while the storage does not answer; then raise its error. Raise `tf.errors.UnavailableError` if it
    fails and a ps is lost.
    """
    while True:
        try:
            return operation()
        except (StorageNotReadable, DamagedCheckpoint) as error:
            if gone := lost():
                text = f"{', '.join(gone)} is gone"
                raise tf.errors.UnavailableError(None, None, text) from error
            if isinstance(error, DamagedCheckpoint) or time.monotonic() >= until_s:
                raise
            logger.warning("StorageNotReadable", error=failure_cause.storage_message(str(error)))
            time.sleep(STORAGE_RETRY_S)


def _storage_failure(error: StorageNotReadable) -> Exception:
    """Return the failure of a generation that cannot read its checkpoints. Only missing rights are
    a failure of the job: nobody but its user can mend them.
    """
    cause = error.__cause__ if isinstance(error.__cause__, tf.errors.OpError) else error
    why, remedy = failure_cause.explain_storage_error(type(cause).__name__, str(error))
    text = f"the job's checkpoints cannot be read: {why}; {remedy}"
    if isinstance(cause, tf.errors.PermissionDeniedError | tf.errors.UnauthenticatedError):
        return failure_cause.plain_failure(text)
    return failure_cause.StorageUnavailable(text)


def _checkpoints_by_age(
    order: Begin, folder: str, retry: Callable[[Callable[[], dict[str, str]]], dict[str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield the path and digest of each checkpoint to restore from, the newest first. `retry`:
    calls a function that lists folders.

    The last ones are those that the ledger no longer names: they may have an earlier base than the
    others. Their marks are read only then, because training stands still.
    """
    newest = max(map(checkpoint_step, order.paths), default=-1)
    marked = retry(partial(committed_digests, folder, later_than=newest))
    digests = {**marked, **order.digests}
    paths = restore_candidates(order.paths, marked)
    if paths[:1] != tuple(order.paths[:1]):
        logger.warning("LedgerWasSetBack", newest=paths[0], named=order.paths)
    for path in paths:
        yield path, digests.get(path, "")
    for path, digest in retry(partial(committed_digests, folder)).items():
        if path not in paths:
            yield path, digest


def restore_earlier(
    checkpoint: Checkpoint, folder: str, ledger: Ledger, lost: Callable[[], list[str]]
) -> Ledger:
    """Restore the newest complete checkpoint in `folder`, and return its ledger with the epochs of
    `ledger`.

    Those that the earlier job's ledger has named come first. Fail the job, with the reason, if
    there is none or if it does not fit this program. A storage that does not answer is treated as
    in `restore_newest`, but no older checkpoint is taken in place of one that cannot be read.
    """
    retry = partial(_retry_storage, lost, time.monotonic() + STORAGE_PATIENCE_S)
    why = "it has no complete checkpoint"
    try:
        marked: dict[str, str] = retry(partial(committed_digests, folder))
        others = [path for path in retry(partial(checkpoints_in, folder)) if path not in marked]
        for path in (*restore_candidates((), marked), *others):
            try:
                digest = marked.get(path, "")
                earlier: Ledger = retry(partial(_restore_intact, checkpoint, path, digest))
            except DamagedCheckpoint as damage:
                why = f"{path} cannot be restored: {damage}"
                continue
            if checkpoint.tables is not None:
                checkpoint.tables.forget_files()  # another job's, which may be removed
            return _continued_ledger(earlier, folder, ledger)
    except StorageNotReadable as error:
        raise _storage_failure(error) from error
    raise failure_cause.plain_failure(f"{CONTINUE_FROM}: {folder}: {why}")


def check_same_files(found: Ledger, ledger: Ledger) -> None:
    """Fail the job if its checkpoint was made with other files than `files()` returns now."""
    if found.files is None or ledger.files is None or found.files.digest == ledger.files.digest:
        return
    raise failure_cause.plain_failure(
        f"files() returns other files than when the job began: "
        f"{format_count(len(ledger.files.lengths), 'group')} of files now, "
        f"{len(found.files.lengths)} then; sort the list, and do not add or remove files while "
        "the job trains"
    )


def _digest(ledger: Ledger) -> int:
    return ledger.files.digest if ledger.files else 0


def _continued_ledger(earlier: Ledger, folder: str, ledger: Ledger) -> Ledger:
    """Return the ledger of an earlier job with the epochs of this one. Raise a failure if it was
    trained on other data.
    """
    if (earlier.files is None) != (ledger.files is None) or _digest(earlier) != _digest(ledger):
        raise failure_cause.plain_failure(
            f"{CONTINUE_FROM}: {folder} was trained on other files than this program's"
        )
    if earlier.examples != ledger.examples:
        raise failure_cause.plain_failure(
            f"{CONTINUE_FROM}: {folder} was trained on "
            f"{format_count(earlier.examples, 'example')} an epoch, and this program has "
            f"{ledger.examples:,}"
        )
    try:
        return shard_ledger.extend_epochs(earlier, ledger.epochs)
    except ValueError as error:
        raise failure_cause.plain_failure(f"{CONTINUE_FROM}: {folder}: {error}") from None
