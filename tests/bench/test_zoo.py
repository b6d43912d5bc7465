"""Tests when the result of a job equals that of one process, and of the table of results."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from tests.bench.zoo import Reference, Row, Run, result, table

REFERENCE = Reference(
    untrained=0.1, metrics=(0.95, 0.96, 0.955, 0.96, 0.955), spoilt=0.4, seconds=60.0
)
INSIDE = Run(metric=0.951, sizes=(1,), exact=True, seconds=50.0)
RESIZED = replace(INSIDE, sizes=(1, 2, 1, 2, 1))


def test_the_band_holds_a_further_run_with_99_percent() -> None:
    """t(0.995, 4) = 4.604; the standard deviation is 0.00418."""
    assert REFERENCE.half_band == pytest.approx(4.604 * 0.00418 * (1 + 1 / 5) ** 0.5, rel=0.01)
    assert REFERENCE.contains(0.94) and not REFERENCE.contains(0.93)


def test_runs_that_are_all_the_same_have_a_band_of_one_percent_of_what_was_learned() -> None:
    same = replace(REFERENCE, metrics=(1.0,) * 5)
    assert same.half_band == pytest.approx(0.009)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (Row(reference=REFERENCE, static=INSIDE, resized=RESIZED), "equal"),
        (
            Row(reference=REFERENCE, static=replace(INSIDE, metric=0.41), resized=RESIZED),
            "static outside",
        ),
        (
            Row(reference=REFERENCE, static=INSIDE, resized=replace(RESIZED, sizes=(1, 2, 1))),
            "not resized four times",
        ),
        (
            Row(reference=REFERENCE, static=replace(INSIDE, exact=False), resized=RESIZED),
            "static not exactly once",
        ),
        (
            Row(reference=replace(REFERENCE, spoilt=0.95), static=INSIDE, resized=RESIZED),
            "the feature makes no difference",
        ),
        (
            Row(
                reference=replace(REFERENCE, metrics=(0.7, 0.9, 0.8, 0.95, 0.6), spoilt=0.1),
                static=replace(INSIDE, metric=0.8),
                resized=replace(RESIZED, metric=0.8),
            ),
            "band too wide",
        ),
        (Row(reference=REFERENCE, refused="train_step() is not known"), "refused: train_step()"),
    ],
)
def test_a_row_is_equal_or_says_what_is_not(row: Row, complaint: str) -> None:
    heading, line = table({"convnet": row})

    assert heading.startswith("program") and line.startswith("convnet")
    assert complaint in line
    assert row.equal is (complaint == "equal")


def test_the_result_is_json_and_names_each_program_once() -> None:
    rows = {
        "convnet": Row(reference=REFERENCE, static=INSIDE, resized=RESIZED),
        "gan": Row(reference=REFERENCE, static=INSIDE, refused="it stopped"),
        "dqn": Row(reference=REFERENCE, static=INSIDE, resized=replace(RESIZED, metric=0.1)),
    }
    found = json.loads(json.dumps(result(rows, 12.0)))

    assert found["equal"] == ["convnet"] and found["refused"] == {"gan": "it stopped"}
    assert found["unequal"] == {"dqn": ["resized outside"]}
    assert found["figures"]["convnet"]["resized_gap"] == pytest.approx(-0.005)
