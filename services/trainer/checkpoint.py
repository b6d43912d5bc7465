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
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import tensorflow as tf
from tensorflow.python.checkpoint import functional_saver
from tensorflow.python.trackable import trackable_utils
from tensorflow.python.util import object_identity

from services.trainer import files
from services.trainer.build import Built
from services.trainer.shards import Ledger

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
        files.remove(path)

    def cut(self, ledger: Ledger) -> None:
        """Hold all of it as it is now, until it is written. Training stands still meanwhile."""
        self._ledger.assign(msgspec.json.encode(ledger))
        self._cut()

    def write_cut(self, path: str) -> None:
        """Write what was cut, and let go of it. Training may go on meanwhile."""
        try:
            files.make_folder(path.rpartition("/")[0])
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
