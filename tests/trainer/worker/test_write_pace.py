"""Tests of the rests between the blocks of a checkpoint that is written beside training."""

from __future__ import annotations

import threading
import time

from services.trainer.worker.write_pace import REST_RATIO, WritePace


def rest_s(pace: WritePace, busy_s: float, blocks_left: int) -> float:
    began_s = time.monotonic()
    pace.rest(busy_s, blocks_left)
    return time.monotonic() - began_s


def test_a_rest_is_a_multiple_of_the_time_of_a_block() -> None:
    assert rest_s(WritePace(60.0), 0.02, 9) >= REST_RATIO * 0.02
    assert rest_s(WritePace(60.0), 30.0, 0) < 1.0, "nothing follows the last block"


def test_all_rests_together_have_a_limit() -> None:
    pace = WritePace(0.1)
    began_s = time.monotonic()
    for left in reversed(range(10)):
        pace.rest(60.0, left)
    assert 0.1 <= time.monotonic() - began_s < 30.0


def test_a_rest_ends_when_training_waits_for_the_write() -> None:
    pace = WritePace(60.0)
    timer = threading.Timer(0.05, pace.end_rests)
    timer.start()
    assert rest_s(pace, 20.0, 1) < 30.0
    timer.join()
    assert rest_s(pace, 20.0, 1) < 1.0
