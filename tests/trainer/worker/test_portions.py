"""Tests of portions: how many batches a worker is given at a time, and how many it stages."""

from __future__ import annotations

import math
from typing import Any

import pytest

from services.trainer.worker.example_order import ExampleOrder
from services.trainer.worker.input_pipeline import DataPlan
from services.trainer.worker.portions import (
    FEWEST_STAGED,
    MOST_STAGED,
    STAGED_BYTES,
    USUAL_STAGED,
    PortionSize,
    batches_to_stage,
    staged_batches,
)

BATCH = 16
PLAN = DataPlan(ExampleOrder(640), BATCH)


@pytest.mark.parametrize(
    ("batch_s", "fields", "is_end", "staged"),
    [
        (0.001, {}, False, MOST_STAGED),
        (0.1, {}, False, 10),
        (2.0, {}, False, USUAL_STAGED),
        (math.inf, {}, False, USUAL_STAGED),
        (0.001, {}, True, USUAL_STAGED),
        (0.001, {"has_fixed_size": False}, False, USUAL_STAGED),
        (0.001, {"example_bytes": STAGED_BYTES // BATCH // 5}, False, 5),
        (0.001, {"example_bytes": STAGED_BYTES}, False, FEWEST_STAGED),
        (0.001, {"accumulated": 50}, False, 100),
    ],
)
def test_quick_updates_have_many_batches_staged_that_fit(
    batch_s: float, fields: dict[str, Any], is_end: bool, staged: int
) -> None:
    assert staged_batches(PLAN._replace(**fields), batch_s, is_end) == staged


@pytest.mark.parametrize(
    ("ready", "batch_s", "read_s", "asked"),
    [
        (0, math.inf, 0.0, 1),
        (10, math.inf, 0.0, 10),
        (10, 0.02, 0.001, 10),
        (30, 0.02, 0.001, 16),
        (16, 0.04, 0.04, 16),
        (16, 0.04, 0.05, 5),
        (0, 0.04, 0.05, 5),
        (0, 0.01, 1.0, 1),
        (0, 0.001, 0.01, 16),
    ],
)
def test_a_call_reads_while_the_worker_has_work_or_for_a_while_if_reading_is_slower(
    ready: int, batch_s: float, read_s: float, asked: int
) -> None:
    assert batches_to_stage(ready, 16, batch_s, read_s) == asked


CALL_AND_BATCH = [
    (0, 0, 1_000, 200_000),
    (300, 0, 1_000, 200_000),
    (250, 1, 1_000, 4_000),
    (0, 1, 100, 200),
    (0, 300, 1, 2),
    (6_000, 0, 1_000, 200_000),
    (0, 6_000, 1, 1),
    (3_000, 500, 10, 10),
]
CASES = [
    "quick",
    "a slow call",
    "a slow call and batches",
    "quick batches",
    "slow batches",
    "a very slow call",
    "very slow batches",
    "both are slow",
]


def read_portions(size: PortionSize, call_ms: float, batch_ms: float, portions: int) -> list[int]:
    """Read portions, two of which are requested at a time. Return the time in ms of each."""
    waiting, times = [size.batches], []
    for _ in range(portions):
        waiting.append(size.batches)
        asked = waiting.pop(0)
        times.append(int(call_ms + batch_ms * asked))
        size.record_read(asked, asked, times[-1])
    return times


@pytest.mark.parametrize(("call_ms", "batch_ms", "least", "most"), CALL_AND_BATCH, ids=CASES)
def test_a_portion_has_so_many_batches_that_its_call_costs_little(
    call_ms: int, batch_ms: int, least: int, most: int
) -> None:
    size = PortionSize()
    assert size.batches == 1, "training begins soon"
    times = read_portions(size, call_ms, batch_ms, 60)
    assert least <= size.batches <= most
    assert max(times) <= max(20_000, 2 * (call_ms + batch_ms))


def test_portions_become_shorter_while_reading_is_slow_and_longer_after_that() -> None:
    size = PortionSize()
    read_portions(size, 20, 2, 20)
    usual = size.batches
    read_portions(size, 20, 2_000, 20)
    assert size.batches <= 2
    read_portions(size, 20, 2, 40)
    assert size.batches >= usual / 4


def test_a_portion_that_had_to_be_shorter_shows_its_costs_too() -> None:
    """For example, memory or a window of the order ends it, or it must have whole updates."""
    size = PortionSize()
    for _ in range(20):
        size.record_read(size.batches, min(size.batches, 37), 50)
    assert size.batches > 37
    for _ in range(20):
        given = min(size.batches, 37)
        size.record_read(size.batches, given, 1_600 * given)
    assert size.batches <= 3

    updates_of_eight = PortionSize()
    for _ in range(20):
        asked = updates_of_eight.batches
        updates_of_eight.record_read(asked, max(asked // 8, 1) * 8, 100 + asked)
    assert updates_of_eight.batches >= 500
