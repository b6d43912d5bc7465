"""What a chief says of a pause. (How it trains: `test_training`.)"""

from __future__ import annotations

import pytest
import tensorflow as tf

from services.trainer.build import Meter
from services.trainer.chief import last_applied_s, paused_s
from services.trainer.orders import Begin


@pytest.mark.parametrize(
    ("last_s", "first_s", "off_s", "paused"),
    [
        (1000.0, 1000.8, 0.0, pytest.approx(0.8)),
        (1000.0, 1609.5, 600.0, pytest.approx(9.5)),  # the whole cluster was off meanwhile
        (0.0, 1000.8, 0.0, None),  # nothing ran before
        (
            1000.0,
            0.0,
            0.0,
            None,
        ),  # nothing was left to apply, or a lane broke before it had: no end to measure
        (1000.0, 999.9, 0.0, 0.0),  # clocks of two machines
    ],
)
def test_a_pause_lasts_from_the_last_update_to_the_first_and_else_is_not_known(
    last_s: float, first_s: float, off_s: float, paused: float | None
) -> None:
    assert paused_s(last_s, first_s, off_s) == paused


@pytest.mark.parametrize(
    ("restored_s", "restored_step", "reported", "last_s"),
    [
        (1000.0, 50, (50, 1000.2), 1000.0),  # a hand-over: the ps' own clock
        (1000.0, 50, (90, 1118.0), 1118.0),  # 40 updates were lost with a node
        (0.0, 0, (90, 1118.0), 1118.0),  # all were: there was no checkpoint
        (1000.0, 50, (90, 0.0), 1000.0),  # an older chief did not say when
        (0.0, 0, (0, 0.0), 0.0),  # nothing ran before
    ],
)
def test_the_last_update_before_may_be_one_that_is_in_no_checkpoint(
    restored_s: float, restored_step: int, reported: tuple[int, float], last_s: float
) -> None:
    order = Begin(applied_step=reported[0], applied_s=reported[1])
    assert last_applied_s(restored_s, restored_step, order) == last_s


def test_when_the_first_update_was_is_read_once_by_every_update() -> None:
    """Two reads of one step have no order. Of two updates at a time, the later could see the
    other's write by the read that asks whether there was one, and by the read of what it was the
    nothing before it, and write that nothing back.
    """
    meter = Meter()
    traced = tf.function(meter.count).get_concrete_function(tf.TensorSpec([], tf.int64))
    handle = next(t for v, t in traced.graph.captures if v is meter.first_s.handle)

    reads = [
        op
        for op in traced.graph.get_operations()
        if op.type == "ReadVariableOp" and op.inputs[0] is handle
    ]

    assert len(reads) == 1


def test_the_first_update_stays_the_first() -> None:
    meter = Meter()
    meter.count(tf.constant(32, tf.int64))
    first_s = float(meter.first_s)
    meter.count(tf.constant(32, tf.int64))

    assert float(meter.first_s) == first_s > 0.0 and float(meter.last_s) >= first_s
