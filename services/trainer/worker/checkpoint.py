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

Files lie wherever TensorFlow can write: a folder, a shared volume, an object store by its URL. A
digest pins every byte without reading it again: TensorFlow computes a checksum (CRC-32C) of each
variable's bytes while it writes, on the ps, and keeps them in the index. The digest covers the
index and the names and sizes of the other files. So files with the same digest, whose checksums
hold while they are restored, are the bytes that were written.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, NamedTuple

import msgspec
import structlog
import tensorflow as tf
from tensorflow.python.checkpoint import functional_saver
from tensorflow.python.trackable import trackable_utils
from tensorflow.python.training import py_checkpoint_reader
from tensorflow.python.util import object_identity

from services.trainer import checkpoint_policy
from services.trainer.protocol import Begin, Line, Skipped
from services.trainer.worker import failure_cause, shard_ledger
from services.trainer.worker.shard_ledger import Ledger
from services.trainer.worker.sharded_table import ShardedTable
from services.trainer.worker.training_step import BuiltModel
from shared import checkpoints
from shared.checkpoints import COMMITTED, INDEX, CommitMark, restore_candidates
from shared.text import format_count

PATH_SIGNATURE = [tf.TensorSpec([], tf.string)]
logger = structlog.get_logger()
CONTINUE_FROM = "checkpoint.continue_from"
gfile = tf.io.gfile


class CheckpointTensor(NamedTuple):
    """One tensor of a checkpoint: its owner, key and source. Without an owner it is constant.
    `part`: the rows that these are of a divided table, as TensorFlow writes slices; "": all.
    """

    owner: Any
    key: str
    source: Any
    part: str = ""


class Checkpoint:
    """The values that a generation writes and reads; any Keras program can restore `model` and
    `optimizer`.

    Everything is traced once. Otherwise TensorFlow would build the same graph at each call, while
    training stands still.
    """

    def __init__(self, built: BuiltModel) -> None:
        self._ledger = built.counters.ledger
        self._states = _untracked_states(built)
        self._whole = tf.train.Checkpoint(**_tracked_objects(built), states=self._states)
        tensors, _, self._savers, _ = self._whole._saver._gather_serialized_tensors()
        self._constant: list[CheckpointTensor] = []
        self._parts: list[CheckpointTensor] = []
        for owner, found in tensors.items():
            parts = self._constant if owner is None or _is_table(found) else self._parts
            for key, source in found.items():
                parts += _tensors_of(owner, key, source)
        self._copies = [_copy_variable(part.source) for part in self._parts]
        self._copy_bytes: dict[str, tuple[str, int]] = {}
        self._cut = tf.function(self._assign_copies, input_signature=[]).get_concrete_function()
        self._drop = tf.function(self._clear_copies, input_signature=[]).get_concrete_function()
        self._restore_cut = tf.function(self._restore_from_copies, input_signature=[])
        self._write = tf.function(self._write_copies, input_signature=PATH_SIGNATURE)
        self._read = tf.function(self._restore_from_files, input_signature=PATH_SIGNATURE)
        self._read_without_states = tf.function(
            self._restore_without_states, input_signature=PATH_SIGNATURE
        )

    # ------------------------------------------------------------ traced functions

    def _assign_copies(self) -> None:
        for part, copy in zip(self._parts, self._copies, strict=True):
            with tf.device(part.source.device):
                value = part.source.tensor
                copy.assign(value, read_value=False)
            self._copy_bytes[part.key + part.part] = (
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
                value = copy.read_value()
                if part.part:
                    part.owner.assign_slice(part.part, value)
                else:
                    name = trackable_utils.extract_local_name(part.key)
                    found.setdefault(part.owner, {})[name] = value
        for owner, values in found.items():
            owner._restore_from_tensors(values)

    def _write_copies(self, path: tf.Tensor) -> None:
        """Write the cut as `tf.train.Checkpoint.write` does."""
        tensors = object_identity.ObjectIdentityDictionary()
        for part, copy in zip(self._parts, self._copies, strict=True):
            with tf.device(part.source.device):
                value = copy.read_value_no_copy()
                found = tensors.setdefault(part.owner, {})
                if part.part:
                    found.setdefault(part.key, {})[part.part] = value
                else:
                    found[part.key] = value
        tensors[None] = {part.key: part.source for part in self._constant}
        functional_saver.MultiDeviceSaver(tensors, self._savers).save(path)

    def _restore_from_files(self, path: tf.Tensor) -> None:
        """Restore as `tf.train.Checkpoint.read` does, for a path that is not known when it is
        traced.
        """
        tensors, savers = self._restored_tensors()
        functional_saver.MultiDeviceSaver(tensors, savers).restore(path)
        self._restore_tables(path)

    def _restore_tables(self, path: tf.Tensor) -> None:
        """Restore the rows of divided tables: each ps reads those that it has."""
        for part in self._parts:
            if part.part:
                with tf.device(part.source.device):
                    dtypes = [part.source.dtype]
                    rows = tf.raw_ops.RestoreV2(
                        prefix=path,
                        tensor_names=[part.key],
                        shape_and_slices=[part.part],
                        dtypes=dtypes,
                    )
                    part.owner.assign_slice(part.part, rows[0])

    def _restore_without_states(self, path: tf.Tensor) -> None:
        self._restore_tables(path)
        tensors, savers = self._restored_tensors()
        for state in self._states:
            del tensors[state]
        functional_saver.MultiDeviceSaver(tensors, savers).restore(path)

    def _restored_tensors(self) -> tuple[Any, Any]:
        """Return the tensors of a checkpoint without lookup tables: `model()` fills these."""
        tensors, _, savers, _ = self._whole._saver._gather_serialized_tensors()
        for owner, found in list(tensors.items()):
            if owner is not None and (_is_table(found) or isinstance(owner, ShardedTable)):
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
    def rehearse(self, folder: str, failed: Callable[[Any], None]) -> Iterator[None]:
        """Write a checkpoint before the body runs and restore it after, to undo the body.

        A slow or impossible save then shows before training stops for it. `failed` receives an
        error of the files and may raise; otherwise the values are restored from memory.
        """
        path = f"{folder}/rehearsal"
        self._cut()
        try:
            self.write_cut(path)
        except tf.errors.OpError as error:
            failed(error)
            self._cut()
            yield
            self._restore_cut()
            self._drop()
            return
        yield
        with self._all_or_nothing():
            self._read(tf.constant(path))
        remove_checkpoint(path)

    def cut(self, ledger: Ledger) -> None:
        """Hold the current values until they are written. Training stands still meanwhile."""
        self._ledger.assign(msgspec.json.encode(ledger))
        self._cut()

    def write_cut(self, path: str) -> None:
        """Write the cut and release it. Training may continue meanwhile."""
        try:
            make_folder(path.rpartition("/")[0])
            self._write(tf.constant(path))
        finally:
            self._drop()

    def write(self, path: str, ledger: Ledger) -> None:
        """Cut and write."""
        self.cut(ledger)
        self.write_cut(path)

    def read(self, path: str) -> Ledger:
        """Restore everything; if that fails, nothing changes.

        Raise `tf.errors.OpError` or `msgspec.DecodeError`: `DataLossError` if the bytes of a
        variable are not those that were written (checksums in the index), `NotFoundError` if a file
        or variable is missing.
        """
        read = self._read if self._has_states(path) else self._read_without_states
        with self._all_or_nothing():
            read(tf.constant(path))
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


def _tensors_of(owner: Any, key: str, source: Any) -> list[CheckpointTensor]:
    if not isinstance(source, dict):
        return [CheckpointTensor(owner, key, source)]
    return [CheckpointTensor(owner, key, each, part) for part, each in source.items()]


def _is_table(found: Mapping[str, Any]) -> bool:
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
    """Restore the newest complete checkpoint. Return None if there is none; then nothing changes.

    If reading fails while `lost` returns a ps, raise the error.
    """
    marked = committed_digests(folder)
    digests, paths = {**marked, **order.digests}, restore_candidates(order.paths, marked)
    if paths[:1] != order.paths[:1]:
        logger.warning("LedgerWasSetBack", newest=paths[0], named=order.paths)
    for path, instead in zip_longest(paths, paths[1:], fillvalue=""):
        why = checkpoint_fault(path, digests.get(path, ""))
        if not why:
            try:
                return checkpoint.read(path)
            except (tf.errors.OpError, msgspec.DecodeError) as error:
                if lost():
                    raise
                why = f"it is damaged: {failure_cause.storage_message(str(error))}"
        say(Skipped(path=path, cause=why, instead=instead))
    return None


def restore_earlier(checkpoint: Checkpoint, folder: str, ledger: Ledger) -> Ledger:
    """Restore the newest complete checkpoint in `folder`, and return its ledger with the epochs of
    `ledger`.

    Those that the earlier job's ledger has named come first. Fail the job, with the reason, if
    there is none or if it does not fit this program.
    """
    why = "it has no complete checkpoint"
    marked, found = committed_digests(folder), checkpoints_in(folder)
    for path in (*restore_candidates((), marked), *(path for path in found if path not in marked)):
        fault = checkpoint_fault(path, marked.get(path, ""))
        if fault:
            why = f"{path} cannot be restored: {fault}"
            continue
        try:
            earlier = checkpoint.read(path)
        except (tf.errors.OpError, msgspec.DecodeError) as error:
            why = f"{path} cannot be restored: {failure_cause.storage_message(str(error))}"
            continue
        return _continued_ledger(earlier, folder, ledger)
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
    found.
    """
    try:
        found = seal_checkpoint(path)
    except tf.errors.NotFoundError:
        return "it is missing"
    except tf.errors.OpError as error:
        return f"it cannot be read: {error.message}"
    if digest in ("", found.digest):
        return ""
    return "it is damaged: its files are not those that were written"


def checkpoints_in(folder: str) -> list[str]:
    """Return the paths of all checkpoints in a job's folder that have an index, the newest
    first.
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
    """Write a mark beside a checkpoint that the ledger has named, unless it exists or the
    checkpoint is gone.
    """
    if gfile.exists(path + INDEX) and not gfile.exists(path + COMMITTED):
        _write_file(path + COMMITTED, msgspec.json.encode(committed))


def committed_digests(folder: str) -> dict[str, str]:
    """Return the digests of all checkpoints in a job's folder that the ledger has ever named, by
    path.

    An incomplete mark counts as none.
    """
    digests = {}
    for path in checkpoints_in(folder):
        with (
            contextlib.suppress(tf.errors.OpError, msgspec.DecodeError),
            gfile.GFile(path + COMMITTED, "rb") as file,
        ):
            digests[path] = msgspec.json.decode(file.read(), type=CommitMark).digest
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


def prune_checkpoints(folder: str, kept: Sequence[str]) -> None:
    """Remove obsolete checkpoints from the generations' folders, and the folders that become
    empty.
    """
    for generation in _list_folder(folder):
        number = checkpoint_policy.generation_of_folder(generation)
        if number is None:
            continue
        inside = f"{folder}/{generation}"
        for name in _list_folder(inside):
            if checkpoint_policy.is_obsolete(number, name, kept):
                with contextlib.suppress(tf.errors.OpError):
                    _remove_path(f"{inside}/{name}")
        if checkpoint_policy.is_generation_closed(number, kept) and not _list_folder(inside):
            with contextlib.suppress(tf.errors.OpError):
                gfile.rmtree(inside)


def _file_names(path: str) -> Iterator[str]:
    """Return the names of a checkpoint's files and of its temporary folder."""
    folder, _, name = path.rpartition("/")
    return (
        found
        for found in _list_folder(folder)
        if found.startswith(f"{name}.") or found == f"{name}_temp"
    )


def _list_folder(folder: str) -> list[str]:
    """Return the names in a folder; some file systems append a slash to folders."""
    try:
        return [name.rstrip("/") for name in gfile.listdir(folder)]
    except tf.errors.OpError:
        return []


def _remove_path(path: str) -> None:
    if gfile.isdir(path):
        gfile.rmtree(path)
    else:
        gfile.remove(path)
