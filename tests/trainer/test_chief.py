"""What a chief says of a pause. (How it trains: `test_training`.)"""

from __future__ import annotations

import pytest
import tensorflow as tf

from services.trainer.build import Meter
from services.trainer.chief import paused_s


@pytest.mark.parametrize(
    ("last_s", "first_s", "off_s", "paused"),
    [
        (1000.0, 1000.8, 0.0, pytest.approx(0.8)),
        (1000.0, 1609.5, 600.0, pytest.approx(9.5)),  # the whole cluster was off meanwhile
        (0.0, 1000.8, 0.0, None),  # nothing ran before
        (1000.0, 0.0, 0.0, None),  # nothing was left to apply, or a lane broke before it had: no end to measure
        (1000.0, 999.9, 0.0, 0.0),  # clocks of two machines
    ],
)
def test_a_pause_lasts_from_the_last_update_to_the_first_and_else_is_not_known(
    last_s: float, first_s: float, off_s: float, paused: float | None
) -> None:
    assert paused_s(last_s, first_s, off_s) == paused


def test_when_the_first_update_was_is_read_once_by_every_update() -> None:
    """Two reads of one step have no order. Of two updates at a time, the later could see the other's write by the read
    that asks whether there was one, and by the read of what it was the nothing before it, and write that nothing back.
    """
    meter = Meter()
    traced = tf.function(meter.count).get_concrete_function(tf.TensorSpec([], tf.int64))
    handle = next(t for v, t in traced.graph.captures if v is meter.first_s.handle)

    reads = [op for op in traced.graph.get_operations() if op.type == "ReadVariableOp" and op.inputs[0] is handle]

    assert len(reads) == 1


def test_the_first_update_stays_the_first() -> None:
    meter = Meter()
    meter.count(tf.constant(32, tf.int64))
    first_s = float(meter.first_s)
    meter.count(tf.constant(32, tf.int64))

    assert float(meter.first_s) == first_s > 0.0 and float(meter.last_s) >= first_s
