"""Checkpoints: TensorFlow's own, with the shard ledger inside.

Written under n parameter servers one restores under m: every variable is whole (no partitioner). Each ps writes its own
part, in parallel. A folder `gen-<g>` per generation, so that a stale generation never touches what another has written;
a checkpoint exists once the ledger bucket names it, not when its files lie there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import tensorflow as tf

from services.trainer.build import Built
from services.trainer.shards import Ledger


class LedgerState(tf.train.experimental.PythonState):  # type: ignore[misc]
    """The shard ledger as a part of the checkpoint."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger

    def serialize(self) -> str:
        return msgspec.json.encode(self.ledger).decode()

    def deserialize(self, string_value: str) -> None:
        self.ledger = msgspec.json.decode(string_value, type=Ledger)


def of(built: Built, ledger: LedgerState) -> Any:
    """What a checkpoint consists of; any Keras program can restore `model` and `optimizer` from it."""
    return tf.train.Checkpoint(model=built.model, optimizer=built.optimizer, meter=built.meter, ledger=ledger)


def write(checkpoint: Any, folder: Path, generation: int, step: int) -> str:
    """Write it whole and return its path."""
    target = folder / f"gen-{generation}" / f"ckpt-{step}"
    target.parent.mkdir(parents=True, exist_ok=True)
    return str(checkpoint.write(str(target)))


def read(checkpoint: Any, path: str) -> None:
    """Restore all of it; raises where a variable of the model has no value in the checkpoint."""
    checkpoint.read(path).assert_existing_objects_matched()
