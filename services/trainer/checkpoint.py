"""Checkpoints: TensorFlow's own, with the shard ledger inside.

Written under n parameter servers one restores under m: every variable is whole (no partitioner). Each ps writes its own
part, in parallel. A folder `gen-<g>` per generation, so that a stale generation never touches what another has written;
a checkpoint exists once the ledger bucket names it, not when its files lie there.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import tensorflow as tf

from services.trainer.build import Built
from services.trainer.shards import Ledger


class Checkpoint:
    """What a generation writes and reads; any Keras program can restore `model` and `optimizer` from it.

    Writing is traced here, once: TensorFlow would build the same graph at each call, while training stands still.
    """

    def __init__(self, built: Built) -> None:
        self._ledger = built.meter.ledger
        self._whole = tf.train.Checkpoint(model=built.model, optimizer=built.optimizer, meter=built.meter)
        traced = tf.function(self._whole.write, input_signature=[tf.TensorSpec([], tf.string)])
        self._write = traced.get_concrete_function()

    def write(self, folder: Path, generation: int, step: int, ledger: Ledger) -> str:
        """Write all of it and return its path."""
        target = folder / f"gen-{generation}" / f"ckpt-{step}"
        target.parent.mkdir(parents=True, exist_ok=True)
        self._ledger.assign(msgspec.json.encode(ledger))
        self._write(tf.constant(str(target)))
        return str(target)

    def read(self, path: str) -> Ledger:
        """Restore all of it; raises where a variable of the model has no value in the checkpoint."""
        self._whole.read(path).assert_existing_objects_matched()
        return msgspec.json.decode(self._ledger.numpy(), type=Ledger)
