"""What a chief's reports become in TensorBoard: every number is one that was reported."""

from __future__ import annotations

from typing import Any

import pytest

from services.trainer import marks
from services.trainer.marks import Gathered, Size
from services.trainer.orders import Progress, Resumed

SIZE = Size(generation=3, ps=2, workers=4, batch=32)


def report(samples: int, loss: float | None = 0.5, **fields: Any) -> Progress:
    about: dict[str, Any] = {
        "step": samples // 10,
        "epoch": 1,
        "total_samples": 10_000,
        "samples_per_second": 1.0,
    }
    return Progress(samples=samples, loss=loss, **(about | fields))


def resumed(**fields: Any) -> Resumed:
    about: dict[str, Any] = {
        "step": 10,
        "samples": 12_800,
        "pause_s": 0.621,
        "restore_s": 0.254,
        "first_step_s": 0.112,
    }
    return Resumed(**(about | fields))


def after(*reports: Progress, samples: int = 0) -> Gathered:
    so_far = marks.begun(samples, 100.0)
    for word in reports:
        so_far = marks.gathered(so_far, word)
    return so_far


def test_the_loss_of_a_point_is_the_mean_over_all_its_examples() -> None:
    last = report(400, 2.0)
    found = marks.numbers(after(report(100, 6.0), last), last, SIZE, 102.0)

    assert found["loss"] == (100 * 6.0 + 300 * 2.0) / 400
    assert found["examples_per_second"] == 400 / 2.0
    assert (found["epoch"], found["update"]) == (1, 40)
    assert (found["tasks/ps"], found["tasks/workers"], found["tasks/batch"]) == (2, 4, 32)


@pytest.mark.parametrize("loss", [None, float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_left_out(loss: float | None) -> None:
    last = report(400, loss)

    assert marks.numbers(after(report(100, 6.0), last), last, SIZE, 102.0)["loss"] == 6.0
    assert "loss" not in marks.numbers(after(last), last, SIZE, 102.0)


def test_examples_from_before_this_generation_are_not_its_own() -> None:
    last = report(1400)
    assert (
        marks.numbers(after(last, samples=1000), last, SIZE, 104.0)["examples_per_second"] == 100.0
    )


def test_the_next_point_begins_behind_the_last() -> None:
    first, second = report(400, 2.0), report(500, 1.0)
    so_far = marks.after(after(first), first, 102.0)
    found = marks.numbers(marks.gathered(so_far, second), second, SIZE, 103.0)

    assert (found["loss"], found["examples_per_second"]) == (1.0, 100.0)


def test_of_a_blink_no_speed_is_told() -> None:
    last = report(16)
    assert "examples_per_second" not in marks.numbers(after(last), last, SIZE, 100.01)


def test_points_lie_close_at_first_and_apart_after_days() -> None:
    young, old = after(), Gathered(began_s=0.0, since_s=604_800.0, since=0)

    assert not marks.is_due(young, 100.4)
    assert marks.is_due(young, 100.5)
    assert not marks.is_due(old, 604_800.0 + 600)
    assert marks.is_due(old, 604_800.0 + 1_300)


def test_a_week_is_a_few_thousand_points() -> None:
    so_far, points, now = Gathered(began_s=0.0, since_s=0.0, since=0), 0, 0.0
    while now < 604_800:
        now += 1.0
        if marks.is_due(so_far, now):
            so_far, points = Gathered(began_s=0.0, since_s=now, since=0), points + 1
    assert 1_000 < points < 5_000


def test_a_pause_is_told_in_words_and_numbers() -> None:
    assert marks.told(resumed(), SIZE) == (
        "**generation 3** (2 ps, 4 workers, batch 32) trains from example 12,800 on, "
        "after a pause of **0.62 s** (of it restore 0.25 s, first step 0.11 s)."
    )
    assert marks.beginning(resumed(learning_rate=0.1), SIZE) == {
        "tasks/ps": 2,
        "tasks/workers": 4,
        "tasks/batch": 32,
        "learning_rate": 0.1,
        "pause/seconds": 0.621,
    }


def test_a_start_is_no_pause() -> None:
    start = resumed(pause_s=None, samples=32)

    assert marks.told(start, Size(1, 1, 1, 16)) == (
        "**generation 1** (1 ps, 1 worker, batch 16) trains from example 32 on."
    )
    assert "pause/seconds" not in marks.beginning(start, SIZE)
