"""Building: what a program may make, and what is said of anything else. (How it trains:
`test_training`.)
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import pytest
import tensorflow as tf

from services.trainer import build
from services.trainer.program import BadProgram


def program(**functions: Any) -> Any:
    whole = {
        "model": lambda: keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)]),
        "optimizer": lambda: keras.optimizers.SGD(),
    }
    return SimpleNamespace(**{**whole, **functions})


@pytest.mark.parametrize("made", [None, "a model", keras.layers.Dense(1)])
def test_what_is_no_model_is_named(made: Any) -> None:
    with pytest.raises(BadProgram, match=r"model\(\) returned .*; a keras Model is needed"):
        build.build(program(model=lambda: made), tf.distribute.get_strategy(), 1)


def test_what_is_no_optimizer_is_named() -> None:
    with pytest.raises(BadProgram, match=r"optimizer\(\) returned .*; a keras Optimizer is needed"):
        build.build(program(optimizer=lambda: "adam"), tf.distribute.get_strategy(), 1)
