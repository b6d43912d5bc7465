"""Tests of the memory of parameter servers before a model is built on them."""

from __future__ import annotations

import keras
import pytest

from services.trainer.worker.ps_memory import PS_GIB, PsTooSmall, check_ps_memory
from services.trainer.worker.row_updates import slot_count
from shared.messages import GIB


def test_a_model_that_fits_is_not_refused() -> None:
    check_ps_memory([GIB // 10], 16 * GIB, limits_gib=[9.0, 9.0], most_ps=2)
    check_ps_memory([], 32 * GIB, limits_gib=[], most_ps=2)
    check_ps_memory([], 32 * GIB, limits_gib=[0.0, 0.0], most_ps=2)


def test_a_ps_that_cannot_hold_its_part_is_refused_with_figures() -> None:
    """Of 16 GiB, two ps hold 8 GiB each, and five 3.2 GiB."""
    with pytest.raises(PsTooSmall) as refused:
        check_ps_memory([], 16 * GIB, limits_gib=[4.0, 5.0], most_ps=6)
    text = str(refused.value)
    assert f"needs {PS_GIB + 8:.2f} GiB" in text and "has 4 GiB:" in text
    assert text.endswith("or the job 5 ps") and refused.value.other_size_fits


@pytest.mark.parametrize("whole, most_ps", [([4 * GIB], 64), ([], 1)])
def test_the_job_is_refused_if_no_size_of_it_fits(whole: list[int], most_ps: int) -> None:
    with pytest.raises(PsTooSmall) as refused:
        check_ps_memory(whole, 5 * GIB, limits_gib=[4.0], most_ps=most_ps)
    assert "give each ps" in str(refused.value) and not refused.value.other_size_fits


@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [
        (keras.optimizers.SGD(0.1), 0),
        (keras.optimizers.SGD(0.1, momentum=0.9), 1),
        (keras.optimizers.Adagrad(0.1), 1),
        (keras.optimizers.Adam(0.1), 2),
        (keras.optimizers.Adam(0.1, use_ema=True), 3),
        (keras.optimizers.Adagrad(0.1, gradient_accumulation_steps=2), 1),
        (keras.optimizers.Adam(lambda: 0.1), 0),
    ],
)
def test_slots_are_those_of_the_optimizer(
    optimizer: keras.optimizers.Optimizer, slots: int
) -> None:
    assert slot_count(optimizer) == slots
    assert not optimizer.built, "the program's own optimizer is not touched"
