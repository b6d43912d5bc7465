"""Tests of the figures of a killed ps, on short reports."""

from __future__ import annotations

import pytest

from shared.messages import ProgressReported
from tests.bench.lost_ps import loss_of


def report(at_s: float, samples: int) -> ProgressReported:
    return ProgressReported(
        job="a",
        uid=1,
        generation=1,
        step=samples // 10,
        epoch=0,
        samples=samples,
        total_samples=10_000,
        samples_per_second=100.0,
        reported_s=at_s,
    )


def test_what_is_repeated_is_trained_between_the_checkpoint_and_the_kill() -> None:
    reports = [report(1.0 * n, 100 * n) for n in range(10)]
    loss = loss_of(reports, killed_s=9.5, restored=650, back_s=29.5)
    assert (loss.speed, loss.back_s) == (100.0, 20.0)
    assert loss.repeated_s == pytest.approx(3.0)
