"""Tests that optimizers have the same results on parameter servers and in one process.

`programs/as_in_one_process.py` does the training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from services.trainer.worker.scaling import largest_first
from tests.trainer.script import SAME_BITS, run_script

EXAMPLES, BATCH = 1408, 32
CLOSE = 2e-5  # float32, and sums in another order
ROUGH = 2e-3  # float16
CASES = {
    "plain": 1,
    "loss-scale": 1,
    "loss-scale-factor": 1,
    "mixed-float16": 1,
    "not-finite": 1,
    "ema": 1,
    "accumulation": 4,
    "accumulation-ema": 4,
    "accumulated-rows": 2,
    "ftrl-rows": 1,
    "adadelta-rows": 1,
    "accumulation-scaled": 2,
    "device-rows": 1,
    "divided": 1,
    "divided-passes": 1,
    "divided-accumulated": 2,
    "divided-loss-scale": 1,
    "divided-clipped": 1,
    "regularized": 2,
    "clipnorm": 1,
    "weight-decay-accumulated": 4,
    "schedule": 1,
    "several-optimizers": 1,
}
"""The cases, each with its number of batches per update."""


pytestmark = pytest.mark.long


def results() -> Any:
    """Train every case once, in a process of its own.

    It takes minutes, so one test checks all results.
    """
    return run_script("as_in_one_process.py", environ=SAME_BITS)


def check_one_worker_has_the_weights_and_the_state_that_one_process_has(
    told: Any, case: str
) -> None:
    found, close = told["exact"][case], ROUGH if case == "mixed-float16" else CLOSE

    assert found["weights"] < close
    assert found["state"] < close or case == "accumulation-scaled", (
        "the scale counts updates, not passes"
    )
    assert found["moved"] > 0.01, "it has trained"


def check_two_workers_that_make_updates_together_have_the_weights_of_one_process(
    told: Any, case: str
) -> None:
    close = ROUGH if case == "mixed-float16" else CLOSE
    updates = EXAMPLES // BATCH // CASES[case]
    for kind in ("in parts", "on three ps"):
        found = told[kind][case]
        assert found["weights"] < close
        assert found["state"] < close or case == "accumulation-scaled"
        assert found["scale"] == told["exact"][case]["scale"]
        assert found["updates"] == updates
        assert found["counted"] == [updates, EXAMPLES, EXAMPLES]


def check_an_update_is_counted_once_and_every_example_once(told: Any, case: str) -> None:
    found, updates = told["exact"][case], EXAMPLES // BATCH // CASES[case]

    assert found["updates"] == updates
    assert found["counted"] == [updates, EXAMPLES, EXAMPLES]


def check_the_scale_grows_and_is_halved_as_in_one_process(told: Any) -> None:
    assert told["exact"]["loss-scale"]["scale"] == 2.0**17, "two times 20 updates"
    assert told["exact"]["accumulation-scaled"]["scale"] == 2.0**17, (
        "two times 10 updates of two passes"
    )
    assert told["exact"]["not-finite"]["scale"] == 2.0**14, "one batch was not finite"


def check_the_scale_and_its_count_are_part_of_a_checkpoint(told: Any) -> None:
    keys = {
        key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")
        for key in told["exact"]["loss-scale"]["saved"]
    }

    assert {"optimizer/dynamic_scale", "optimizer/step_counter"} <= keys
    assert any(key.startswith("optimizer/inner_optimizer/") for key in keys)


def check_no_pass_has_more_examples_than_a_device_holds(told: Any) -> None:
    assert [told["exact"][case]["largest"] for case in ("plain", "device-rows")] == [BATCH, 12]
    assert told["together"]["accumulation"]["largest"] == 20


def check_two_asynchronous_workers_come_as_far_as_one_process(told: Any, case: str) -> None:
    found = told["together"][case]

    assert found["accuracy"] > found["alone"] - 0.03 and found["accuracy"] > 0.85
    updates, applied, entered = found["counted"]
    assert found["updates"] == updates and applied == entered and applied % EXAMPLES == 0


def check_variables_go_largest_first_in_whatever_order_they_are_created(told: Any) -> None:
    found = told["placed"]
    sizes = found["sizes"]
    best = [0, 0, 0]
    for size, ps in zip(sizes, largest_first(sizes, 3), strict=True):
        best[ps] += size

    assert found["made"] == 2, "the second model has a variable more than the first"
    assert sorted(found["model"]) == sorted(best)
    assert [slots > 0 for slots in found["optimizer"]] == [held > 0 for held in found["model"]]


CHECKS: tuple[tuple[Callable[..., None], tuple[str, ...]], ...] = (
    (check_one_worker_has_the_weights_and_the_state_that_one_process_has, tuple(CASES)),
    (
        check_two_workers_that_make_updates_together_have_the_weights_of_one_process,
        tuple([case for case in CASES if case != "regularized"]),
    ),
    (check_an_update_is_counted_once_and_every_example_once, tuple(CASES)),
    (
        check_two_asynchronous_workers_come_as_far_as_one_process,
        ("loss-scale", "ema", "accumulation"),
    ),
    (check_the_scale_grows_and_is_halved_as_in_one_process, ()),
    (check_the_scale_and_its_count_are_part_of_a_checkpoint, ()),
    (check_no_pass_has_more_examples_than_a_device_holds, ()),
    (check_variables_go_largest_first_in_whatever_order_they_are_created, ()),
)


def test_optimizers_give_the_same_result_on_parameter_servers_and_in_one_process() -> None:
    told, faults = results(), []
    for check, cases in CHECKS:
        for arguments in [(case,) for case in cases] or [()]:
            try:
                check(told, *arguments)
            except AssertionError as error:
                faults.append(f"{check.__name__}{arguments}: {error}")
    assert not faults, "\n\n".join(faults)
