"""Checkpoints: TensorFlow's own, with the shard ledger inside.

Written under n parameter servers one restores under m: every variable is whole (no partitioner).
Each ps writes its own part, in parallel. A folder `gen-<g>` per generation, so that a stale
generation never touches what another has written; a checkpoint exists once the ledger bucket names
it, not when its files lie there.

First all is cut, then written. A cut is one value of every variable as of one moment: on each ps a
second variable beside each takes the first one's value. Nothing is copied for it, for TensorFlow
shares what is assigned and copies before it changes what is shared (that a value once read stays as
it was read is promised by `ReadVariableOp`). So a cut takes milliseconds whatever the model's size,
and what lies in it can be written while training goes on; until then memory holds, of everything
that training changes meanwhile, both values.

From which checkpoint a generation goes on: the newest that is whole. Edge.

What is torn or missing is said and skipped, and the next older one that the ledger names is tried.
Model and ledger of examples come from the same one, so whichever it is, every example still counts
once; only work is done again.

A bus that lost its last minute has an old ledger: what it names may be gone, and newer ones lie in
the job's folder. A mark beside each says that the ledger has named it once
(`shared/checkpoints.py`); those come first.

Begin a job with the last checkpoint of a finished one (`checkpoint.continue_from`). Edge.

Model, optimizer and the ledger of examples come from the earlier job. Its epochs count, so the new
job trains only those that it asks for in addition.

The files of checkpoints, wherever TensorFlow can write: a folder, a shared volume, an object
store by its URL. Edge.

A digest pins every byte of a checkpoint without reading it again: TensorFlow computes a checksum
(CRC-32C) of each variable's bytes while it writes, on the ps, and keeps them in the index; the
digest is over the index and the names and sizes of the other files. So whole files with the digest
of old, and checksums that fit while they are restored, are the very bytes that were written; and
neither saving nor restoring waits for a second look at all of them.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, NamedTuple

import msgspec
import structlog
import tensorflow as tf
from tensorflow.python.checkpoint import functional_saver
from tensorflow.python.trackable import trackable_utils
from tensorflow.python.util import object_identity

from services.trainer import checkpoint_policy
from services.trainer.protocol import Begin, Line, Skipped
from services.trainer.worker import failure_cause, shard_ledger
from services.trainer.worker.shard_ledger import Ledger
from services.trainer.worker.training_step import Built
from shared import checkpoints
from shared.checkpoints import COMMITTED, INDEX, CommitMark, restore_candidates
from shared.text import format_count

PATH = [tf.TensorSpec([], tf.string)]


class Part(NamedTuple):
    """One tensor of a checkpoint: whose, under which key, how to get it. No owner: it is
    constant.
    """

    owner: Any
    key: str
    source: Any


class Checkpoint:
    """What a generation writes and reads; any Keras program can restore `model` and `optimizer`
    from it.

    Everything is traced once: TensorFlow would build the same graph at each call, while training
    stands still.
    """

    def __init__(self, built: Built) -> None:
        self._ledger = built.meter.ledger
        self._whole = tf.train.Checkpoint(
            model=built.model, optimizer=built.optimizer, meter=built.meter
        )
        tensors, _, self._savers, _ = self._whole._saver._gather_serialized_tensors()
        parts = [
            Part(owner, key, source)
            for owner, found in tensors.items()
            for key, source in found.items()
        ]
        self._constant = [part for part in parts if part.owner is None]
        self._parts = [part for part in parts if part.owner is not None]
        self._copies = [_empty(part.source) for part in self._parts]
        self._held: dict[str, tuple[str, int]] = {}
        self._cut = tf.function(self._taken, input_signature=[]).get_concrete_function()
        self._drop = tf.function(self._dropped, input_signature=[]).get_concrete_function()
        self._back = tf.function(self._put_back, input_signature=[])
        self._write = tf.function(self._written, input_signature=PATH)
        self._read = tf.function(self._restored, input_signature=PATH)

    # ------------------------------------------------------------ what is traced

    def _taken(self) -> None:
        for part, copy in zip(self._parts, self._copies, strict=True):
            with tf.device(part.source.device):
                value = part.source.tensor
                copy.assign(value, read_value=False)
            self._held[part.key] = (
                part.source.device,
                (value.shape.num_elements() or 0) * (value.dtype.size or 8),
            )

    def _dropped(self) -> None:
        for part, copy in zip(self._parts, self._copies, strict=True):
            with tf.device(part.source.device):
                copy.assign(_nothing(part.source.dtype), read_value=False)

    def _put_back(self) -> None:
        """As if it had been read from files."""
        found = object_identity.ObjectIdentityDictionary()
        for part, copy in zip(self._parts, self._copies, strict=True):
            with tf.device(part.source.device):
                found.setdefault(part.owner, {})[trackable_utils.extract_local_name(part.key)] = (
                    copy.read_value()
                )
        for owner, values in found.items():
            owner._restore_from_tensors(values)

    def _written(self, path: tf.Tensor) -> None:
        """As `tf.train.Checkpoint.write`, of the cut."""
        tensors = object_identity.ObjectIdentityDictionary()
        for part, copy in zip(self._parts, self._copies, strict=True):
            with tf.device(part.source.device):
                tensors.setdefault(part.owner, {})[part.key] = copy.read_value_no_copy()
        tensors[None] = {part.key: part.source for part in self._constant}
        functional_saver.MultiDeviceSaver(tensors, self._savers).save(path)

    def _restored(self, path: tf.Tensor) -> None:
        """As `tf.train.Checkpoint.read`, for a path that is not known yet."""
        tensors, _, savers, _ = self._whole._saver._gather_serialized_tensors()
        functional_saver.MultiDeviceSaver(tensors, savers).restore(path)

    # ------------------------------------------------------------ what is done

    @property
    def largest(self) -> int:
        """Bytes of a cut on that ps that has most of it."""
        held: Counter[str] = Counter()
        for device, size in self._held.values():
            held[device] += size
        return max(held.values(), default=0)

    @contextmanager
    def rehearsed(self, folder: str, failed: Callable[[Any], None]) -> Iterator[None]:
        """Write before and read back after, so that nothing done in between remains.

        And so that what is slow or impossible here shows itself before training stops for it.
        `failed` hears of an error of the files, and may raise; otherwise there is another way back.
        """
        path = f"{folder}/rehearsal"
        self._cut()
        try:
            self.write_cut(path)
        except tf.errors.OpError as error:
            failed(error)
            self._cut()
            yield
            self._back()
            self._drop()
            return
        yield
        with self._wholly():
            self._read(tf.constant(path))
        remove(path)

    def cut(self, ledger: Ledger) -> None:
        """Hold all of it as it is now, until it is written. Training stands still meanwhile."""
        self._ledger.assign(msgspec.json.encode(ledger))
        self._cut()

    def write_cut(self, path: str) -> None:
        """Write what was cut, and let go of it. Training may go on meanwhile."""
        try:
            make_folder(path.rpartition("/")[0])
            self._write(tf.constant(path))
        finally:
            self._drop()

    def write(self, path: str, ledger: Ledger) -> None:
        """Both at once."""
        self.cut(ledger)
        self.write_cut(path)

    def read(self, path: str) -> Ledger:
        """Restore all of it; where that fails, everything is as it was before.

        Raises `tf.errors.OpError`: `DataLossError` where the bytes of a variable are not those that
        were written (their checksums stand in the index), `NotFoundError` where a file or a
        variable is missing; and `msgspec.DecodeError`.
        """
        with self._wholly():
            self._read(tf.constant(path))
            return msgspec.json.decode(self._ledger.numpy(), type=Ledger)

    @contextmanager
    def _wholly(self) -> Iterator[None]:
        """Restore in here: where that fails, everything is as it was before."""
        self._cut()
        try:
            yield
        except (tf.errors.OpError, msgspec.DecodeError):
            self._back()
            raise
        finally:
            self._drop()


def _nothing(dtype: tf.DType) -> tf.Tensor:
    return tf.constant([], dtype)


def _empty(source: Any) -> tf.Variable:
    """A variable that can hold any value of this kind, where its source lies."""
    with tf.device(source.device):
        return tf.Variable(
            _nothing(source.dtype), shape=tf.TensorShape(None), trainable=False, dtype=source.dtype
        )


logger = structlog.get_logger()


def restored(
    checkpoint: Checkpoint,
    order: Begin,
    folder: str,
    say: Callable[[Line], None],
    lost: Callable[[], list[str]],
) -> Ledger | None:
    """None where there is none, or none is left: then everything is as it was. Raises where one of
    the ps is `lost`.
    """
    marked = committed_in(folder)
    digests, paths = {**marked, **order.digests}, restore_candidates(order.paths, marked)
    if paths[:1] != order.paths[:1]:
        logger.warning("LedgerWasSetBack", newest=paths[0], named=order.paths)
    for path, instead in zip_longest(paths, paths[1:], fillvalue=""):
        why = wrong(path, digests.get(path, ""))
        if not why:
            try:
                return checkpoint.read(path)
            except (tf.errors.OpError, msgspec.DecodeError) as error:
                if lost():
                    raise
                why = f"it is torn: {failure_cause.said(str(error))}"
        say(Skipped(path=path, cause=why, instead=instead))
    return None


FIELD = "checkpoint.continue_from"


def restore_earlier(checkpoint: Checkpoint, folder: str, ledger: Ledger) -> Ledger:
    """Restore the newest complete checkpoint in `folder`, and return its ledger with the epochs of
    `ledger`.

    Those that the earlier job's ledger has named come first.

    Fails the job, with the reason, if there is none or if it does not fit this program.
    """
    why = "it has no complete checkpoint"
    marked, found = committed_in(folder), checkpoints_in(folder)
    for path in (*restore_candidates((), marked), *(path for path in found if path not in marked)):
        fault = wrong(path, marked.get(path, ""))
        if fault:
            why = f"{path} cannot be restored: {fault}"
            continue
        try:
            earlier = checkpoint.read(path)
        except (tf.errors.OpError, msgspec.DecodeError) as error:
            why = f"{path} cannot be restored: {failure_cause.said(str(error))}"
            continue
        return _fit_ledger(earlier, folder, ledger)
    raise failure_cause.plainly(f"{FIELD}: {folder}: {why}")


def _fit_ledger(earlier: Ledger, folder: str, ledger: Ledger) -> Ledger:
    if earlier.examples != ledger.examples:
        raise failure_cause.plainly(
            f"{FIELD}: {folder} was trained on {format_count(earlier.examples, 'example')} an epoch, and this program has "
            f"{ledger.examples:,}"
        )
    try:
        return shard_ledger.extend(earlier, ledger.epochs)
    except ValueError as error:
        raise failure_cause.plainly(f"{FIELD}: {folder}: {error}") from None


gfile = tf.io.gfile


class Seal(NamedTuple):
    """What the ledger keeps of a checkpoint: `sha256-<hex>`, and its size in bytes."""

    digest: str
    bytes: int


def seal(path: str) -> Seal:
    """Of a checkpoint that is whole; raises `tf.errors.OpError` where it is not there."""
    with gfile.GFile(path + INDEX, "rb") as index:
        body = index.read()
    folder = path.rpartition("/")[0]
    counted = [name for name in _parts(path) if checkpoints.is_in_digest(name)]
    sizes = [(name, int(gfile.stat(f"{folder}/{name}").length)) for name in counted]
    return Seal(
        checkpoints.checkpoint_digest(body, sizes), len(body) + sum(size for _, size in sizes)
    )


def wrong(path: str, digest: str) -> str:
    """Why a checkpoint is not the one with this digest ("": none is known); empty where nothing is
    wrong so far.
    """
    try:
        found = seal(path)
    except tf.errors.NotFoundError:
        return "it is missing"
    except tf.errors.OpError as error:
        return f"it cannot be read: {error.message}"
    return (
        "it is torn: its files are not those that were written"
        if digest not in ("", found.digest)
        else ""
    )


def checkpoints_in(folder: str) -> list[str]:
    """Return the paths of all checkpoints in a job's folder that have an index, the newest
    first.
    """
    found = []
    for generation in _listed(folder):
        if checkpoint_policy.generation(generation) is not None:
            names = _listed(f"{folder}/{generation}")
            found += [
                f"{folder}/{generation}/{name.removesuffix(INDEX)}"
                for name in names
                if name.endswith(INDEX)
            ]
    ages = {path: age for path in found if (age := checkpoint_policy.age(path)) is not None}
    return sorted(ages, key=lambda path: ages[path], reverse=True)


def mark_committed(path: str, committed: CommitMark) -> None:
    """Write beside a checkpoint that the ledger has named it, unless that is written or the
    checkpoint is gone.
    """
    if gfile.exists(path + INDEX) and not gfile.exists(path + COMMITTED):
        _write(path + COMMITTED, msgspec.json.encode(committed))


def committed_in(folder: str) -> dict[str, str]:
    """Return the digests of all checkpoints in a job's folder that the ledger has named at some
    time, by path.

    A mark that was not written to its end counts as none.
    """
    digests = {}
    for path in checkpoints_in(folder):
        with (
            contextlib.suppress(tf.errors.OpError, msgspec.DecodeError),
            gfile.GFile(path + COMMITTED, "rb") as file,
        ):
            digests[path] = msgspec.json.decode(file.read(), type=CommitMark).digest
    return digests


def keep_job(folder: str, request: bytes, program: str) -> None:
    """Write the job's request and program beside its checkpoints, unless they are there; `program`:
    a file here.
    """
    if gfile.exists(f"{folder}/{checkpoints.REQUEST}"):
        return
    make_folder(f"{folder}/{checkpoints.JOB}")
    with gfile.GFile(program, "rb") as file:
        _write(f"{folder}/{checkpoints.PROGRAM}", file.read())
    _write(f"{folder}/{checkpoints.REQUEST}", request)


def _write(path: str, body: bytes) -> None:
    with gfile.GFile(path, "wb") as file:
        file.write(body)


def make_folder(path: str) -> None:
    gfile.makedirs(path)


def remove(path: str) -> None:
    """All files of a checkpoint, also of one that is only begun; what cannot be removed stays."""
    with contextlib.suppress(tf.errors.OpError):
        for name in _parts(path):
            _remove(f"{path.rpartition('/')[0]}/{name}")


def prune(folder: str, kept: Sequence[str]) -> None:
    """Remove what `retention` says of all that lies in the generations' folders, and the folders
    that this empties.
    """
    for generation in _listed(folder):
        number = checkpoint_policy.generation(generation)
        if number is None:
            continue
        inside = f"{folder}/{generation}"
        for name in _listed(inside):
            if checkpoint_policy.goes(number, name, kept):
                with contextlib.suppress(tf.errors.OpError):
                    _remove(f"{inside}/{name}")
        if checkpoint_policy.over(number, kept) and not _listed(inside):
            with contextlib.suppress(tf.errors.OpError):
                gfile.rmtree(inside)


def _parts(path: str) -> Iterator[str]:
    """The names of a checkpoint's files, and of the folder in which they are begun."""
    folder, _, name = path.rpartition("/")
    return (
        found
        for found in _listed(folder)
        if found.startswith(f"{name}.") or found == f"{name}_temp"
    )


def _listed(folder: str) -> list[str]:
    """What lies in a folder; some file systems put a stroke behind a folder's name."""
    try:
        return [name.rstrip("/") for name in gfile.listdir(folder)]
    except tf.errors.OpError:
        return []


def _remove(path: str) -> None:
    if gfile.isdir(path):
        gfile.rmtree(path)
    else:
        gfile.remove(path)
