"""Tests that a checkpoint of n parameter servers is restored under m, to the last bit."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from services.trainer import program
from tests.trainer.script import PROGRAMS, run_script

UNDER = [1, 2, 4, 3, 1]


def run(ps: int, before: str, folder: Path) -> Any:
    return run_script("across.py", str(ps), before, str(folder))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return the outputs of a training that goes from 1 ps to 2, 4, 3 and 1, each in a process."""
    folder, before, said = tmp_path_factory.mktemp("across"), "-", []
    for ps in UNDER:
        said.append(run(ps, before, folder))
        before = said[-1]["path"]
    return said


@pytest.mark.parametrize(
    "at", range(1, len(UNDER)), ids=[f"{n}-to-{m}" for n, m in pairwise(UNDER)]
)
def test_a_checkpoint_of_n_ps_is_restored_bit_equal_on_m_ps(told: list[Any], at: int) -> None:
    assert told[at]["restored"] == told[at - 1]["written"]


def test_training_changes_weights_slots_and_meter_so_that_equality_means_something(
    told: list[Any],
) -> None:
    for said in told:
        changed = {
            name for name, value in said["written"].items() if value != said["restored"][name]
        }
        assert {"model/0", "meter/applied", "meter/step"} <= changed
        assert sum(name.endswith("momentum") or "velocity" in name for name in changed) >= 4


def test_the_ledger_is_restored_with_the_model(told: list[Any]) -> None:
    assert [said["applied"] for said in told] == [48, 96, 144, 192, 240]
    assert [said["meter"] for said in told] == [48, 96, 144, 192, 240]


def test_every_ps_holds_a_variable(told: list[Any]) -> None:
    for ps, said in zip(UNDER, told, strict=True):
        assert {
            place for name, place in said["places"].items() if name.startswith("model/")
        } == set(range(ps))


def test_slots_are_on_the_ps_of_their_variable(told: list[Any]) -> None:
    """The first variable is the count and has no slot. Each of the others has Adam's two.

    The optimizer's first two variables are its iterations and its rate.
    """
    for said in told:
        weights = [ps for name, ps in said["places"].items() if name.startswith("model/")][1:]
        slots = [ps for name, ps in said["places"].items() if name.startswith("optimizer/")][2:]
        assert slots == [ps for weight in weights for ps in (weight, weight)]


def test_a_checkpoint_can_be_restored_without_weir(told: list[Any]) -> None:
    path = PROGRAMS / "counting.py"
    counting = program.load(path, program.program_digest(path.read_bytes()))
    model, optimizer = counting.model(), counting.optimizer()
    optimizer.build(model.trainable_variables)
    whole = tf.train.Checkpoint(model=model, optimizer=optimizer)
    whole.read(told[-1]["path"]).assert_existing_objects_matched().expect_partial()
    digests = [
        hashlib.sha256(v.numpy().tobytes()).hexdigest()
        for v in [*model.variables, *optimizer.variables]
    ]
    assert digests == [
        value for name, value in told[-1]["written"].items() if not name.startswith("meter/")
    ]
