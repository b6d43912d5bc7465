"""`counting.py`, but an update takes three batches, and a device holds five examples at once."""

import keras

from tests.trainer.programs.counting import dataset, examples, loss, model

__all__ = ["dataset", "examples", "loss", "model", "optimizer"]


def optimizer():
    return keras.optimizers.Adam(1e-3, gradient_accumulation_steps=3)
