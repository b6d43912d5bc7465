"""Checkpoints: TensorFlow's own, with the shard ledger inside.

Written under n parameter servers one restores under m: every variable is whole (no partitioner). Each ps writes its own
part, in parallel. A folder `gen-<g>` per generation, so that a stale generation never touches what another has written;
a checkpoint exists once the ledger bucket names it, not when its files lie there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import tensorflow as tf
from tensorflow.python.checkpoint import functional_saver

from services.trainer.build import Built
from services.trainer.shards import Ledger

PATH = [tf.TensorSpec([], tf.string)]


class Checkpoint:
    """What a generation writes and reads; any Keras program can restore `model` and `optimizer` from it.

    Both ways are traced once: TensorFlow would build the same graph at each call, while training stands still.
    """

    def __init__(self, built: Built) -> None:
        self._ledger = built.meter.ledger
        self._whole = tf.train.Checkpoint(model=built.model, optimizer=built.optimizer, meter=built.meter)
        self._write = tf.function(self._whole.write, input_signature=PATH)
        self._read = tf.function(self._restored, input_signature=PATH)

    def _restored(self, path: tf.Tensor) -> None:
        """As `tf.train.Checkpoint.read`, for a path that is not known yet."""
        tensors, _, savers, _ = self._whole._saver._gather_serialized_tensors()
        functional_saver.MultiDeviceSaver(tensors, savers).restore(path)

    @contextmanager
    def rehearsed(self, folder: Path) -> Iterator[None]:
        """Write before and read back after, so that nothing done in between remains.

        And so that what is slow or impossible here shows itself before training stops for it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "rehearsal"
        self._write(tf.constant(str(path)))
        yield
        self._read(tf.constant(str(path)))
        for part in folder.glob(f"{path.name}.*"):
            part.unlink()

    def write(self, folder: Path, step: int, ledger: Ledger) -> str:
        """Write all of it and return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = str(folder / f"ckpt-{step}")
        self._ledger.assign(msgspec.json.encode(ledger))
        self._write(tf.constant(path))
        return path

    def read(self, path: str) -> Ledger:
        """Restore all of it; raises `tf.errors.NotFoundError` where a variable has no value in the checkpoint."""
        self._read(tf.constant(path))
        return msgspec.json.decode(self._ledger.numpy(), type=Ledger)
