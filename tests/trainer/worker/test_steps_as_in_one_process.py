"""Tests that training steps have the same results on parameter servers and in one process.

`programs/steps_as_in_one_process.py` does the training.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainer.script import PROGRAMS, SAME_BITS, run_script

SCRIPT = "steps_as_in_one_process.py"
EXAMPLES, BATCH = 1408, 32
CLOSE = 1e-4  # float32, and sums in another order
RATHER_CLOSE = 1e-2
"""In the losses of single outputs, Keras gives the last, smaller batch the weight of the others."""
CASES = (
    "weights",
    "mask",
    "dropout",
    "lookup",
    "compiled",
    "compiled-passes",
    "compiled-outputs",
    "compute-loss",
    "train-step",
    "several-models",
    "not-trainable",
    "scaled-loss",
)
DIFFER_IN_PARTS = ("dropout", "mask")
"""Batch normalisation, dropout and masks work within each part of an update."""
IN_TURN = ("compute-loss", "several-models")
"""Their updates cannot be computed in parts: workers make whole updates in turn."""
AT_IMPORT = ("dropout", "compiled-outputs", "several-models", "scaled-loss")
ACCUMULATED = {"compiled-passes": 2}
"""Batches per update, if not one."""


@pytest.fixture(scope="module")
def told() -> Any:
    """Train every case once, in a process of its own, which contains a cluster."""
    return run_script(SCRIPT, environ=SAME_BITS)


@pytest.mark.parametrize("case", CASES)
def test_weights_and_optimizers_are_those_of_one_process(told: Any, case: str) -> None:
    assert told[case]["weights"] < CLOSE
    assert told[case]["state"] < CLOSE


@pytest.mark.parametrize("case", [case for case in CASES if case not in DIFFER_IN_PARTS])
def test_updates_of_two_workers_together_give_the_weights_of_one_process(
    told: Any, case: str
) -> None:
    found = told[f"{case} together"]

    assert found["weights"] < CLOSE and found["state"] < CLOSE
    ours, theirs = found["loss"]
    assert ours == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize("case", CASES)
def test_an_update_of_two_workers_counts_once_with_all_its_examples(told: Any, case: str) -> None:
    found = told[f"{case} together"]

    assert found["counted"] == told[case]["counted"]
    assert found["lanes"] == ("WholeUpdateLanes" if case in IN_TURN else "GlobalBatchLanes")


@pytest.mark.parametrize("case", AT_IMPORT)
def test_models_made_at_import_train_as_those_of_one_process(told: Any, case: str) -> None:
    found = told[f"{case} at import"]

    assert found["weights"] < CLOSE and found["state"] < CLOSE
    assert found["counted"] == [EXAMPLES // BATCH, EXAMPLES, EXAMPLES]
    assert found["metrics"][0] == pytest.approx(told[case]["metrics"][0], rel=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_an_update_counts_once_with_all_its_examples(told: Any, case: str) -> None:
    updates = EXAMPLES // BATCH // ACCUMULATED.get(case, 1)

    assert told[case]["updates"] == updates
    assert told[case]["counted"] == [updates, EXAMPLES, EXAMPLES]


@pytest.mark.parametrize("case", CASES)
def test_the_reported_loss_is_that_of_one_process(told: Any, case: str) -> None:
    ours, theirs = told[case]["loss"]

    assert ours == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize("case", ["weights", "compiled", "compiled-outputs", "compute-loss"])
def test_the_evaluation_gives_what_model_evaluate_gives(told: Any, case: str) -> None:
    ours, theirs = told[case]["metrics"]

    assert ours.keys() >= theirs.keys()
    assert {name: ours[name] for name in theirs} == pytest.approx(theirs, rel=RATHER_CLOSE)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("condition", "the training step applies gradients inside of a condition"),
        ("table", "the training step uses a lookup table that can change"),
        ("variable", "the training step uses a variable that belongs to none of the models"),
    ],
)
def test_what_cannot_be_on_parameter_servers_is_refused_with_its_line(
    told: Any, what: str, why: str
) -> None:
    said, line = told["refused"][what]

    assert said.startswith(why)
    used = {
        "condition": "def seldom_step(",
        "table": "table.lookup(words)",
        "variable": "outputs * outside",
    }[what]
    assert used in (PROGRAMS / SCRIPT).read_text().splitlines()[line - 1]


@pytest.mark.parametrize("case", ["dropout", "lookup"])
def test_a_checkpoint_has_all_variables_and_one_without_random_states_is_read(
    told: Any, case: str
) -> None:
    restored, from_older, every = told["restored"][case]

    assert restored == every
    assert from_older == [name for name in every if "seed_generator" not in name]
