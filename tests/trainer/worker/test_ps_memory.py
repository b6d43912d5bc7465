"""Tests of the memory of parameter servers before a model is built on them."""

from __future__ import annotations

import keras
import pytest

from services.trainer.worker.ps_memory import GIB, PS_GIB, PsTooSmall, check_ps_memory
from services.trainer.worker.row_updates import slot_count


def test_a_model_that_fits_is_not_refused() -> None:
    check_ps_memory([GIB // 10], 8 * GIB, GIB // 10, slots=1, limits_gib=[9.0, 9.0])
    check_ps_memory([], 8 * GIB, 0, slots=3, limits_gib=[])
    check_ps_memory([], 8 * GIB, 0, slots=3, limits_gib=[0.0, 0.0])


def test_a_ps_that_cannot_hold_its_part_is_refused_with_figures() -> None:
    """Of 8 GiB with a slot of that size, two ps hold 8 GiB each, and five 3.2 GiB."""
    with pytest.raises(PsTooSmall) as refused:
        check_ps_memory([], 8 * GIB, 0, slots=1, limits_gib=[4.0, 5.0])
    needs = f"needs {PS_GIB + 8:.2f} GiB"
    assert needs in str(refused.value) and "has 4:" in str(refused.value)
    assert str(refused.value).endswith("or 5 ps")


def test_no_number_of_ps_helps_if_a_variable_is_too_large() -> None:
    with pytest.raises(PsTooSmall) as refused:
        check_ps_memory([4 * GIB], GIB, 0, slots=0, limits_gib=[4.0])
    assert str(refused.value).endswith("GiB for each ps")


@pytest.mark.parametrize(
    ("optimizer", "slots"),
    [
        (keras.optimizers.SGD(0.1), 0),
        (keras.optimizers.SGD(0.1, momentum=0.9), 1),
        (keras.optimizers.Adagrad(0.1), 1),
        (keras.optimizers.Adam(0.1), 2),
        (keras.optimizers.Adam(0.1, use_ema=True), 3),
    ],
)
def test_slots_are_those_of_the_optimizer(
    optimizer: keras.optimizers.Optimizer, slots: int
) -> None:
    assert slot_count(optimizer) == slots
    assert not optimizer.built, "the program's own optimizer is not touched"
