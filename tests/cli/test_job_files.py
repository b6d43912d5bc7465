"""Tests of the jobs in deploy/jobs: the allocator accepts them, and their programs are valid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.allocator.admission.validation import check_request
from services.cli import program_file
from services.cli.program_source import read_program
from services.console.job_file import complete_fields, encode_fields, parse_fields
from services.trainer.doctor.job_fit import NEXT_PS_GIB, PS_GIB, SMALL_DELTA
from shared.bus import programs
from shared.messages import JobRequested

JOBS = Path(__file__).parents[2] / "deploy" / "jobs"


@pytest.mark.parametrize("file", sorted(JOBS.glob("*.yaml")), ids=lambda f: f.name)
def test_a_job_file_is_a_valid_request_for_a_program_beside_it(file: Path) -> None:
    fields = parse_fields(file.read_text(), file.name)
    program = read_program(file.parent / fields["program"])
    program_file.check_source(program, fields.get("params", {}))
    sent = complete_fields(fields, program.reference, "r1")

    asked = check_request(encode_fields(sent, file.name))

    assert isinstance(asked, JobRequested), asked
    assert asked.job == file.stem


def test_yaml_reads_off_as_false() -> None:
    fields = parse_fields("max_staleness: off\nshuffle: off\n", "net.yaml")

    sent = complete_fields(fields, None, "r1")

    assert sent["max_staleness"] == "off" and sent["shuffle"] == {"on": False}


def loaded(path: Path) -> Any:
    program = pytest.importorskip("services.trainer.program")
    return program.load(path, programs.digest_of(path.read_bytes()))


@pytest.mark.parametrize(
    ("name", "maker", "share"),
    [("clicks", "dataset", (0.2, 0.35)), ("plays", "_between", (0.4, 0.6))],
)
def test_generated_data_is_the_same_from_every_start(
    name: str, maker: str, share: tuple[float, float]
) -> None:
    examples = getattr(loaded(JOBS / f"{name}.py"), maker)
    whole, part = ([*examples(*where).as_numpy_iterator()] for where in ((0, 500), (123, 321)))

    for (inputs, label), (again, other) in zip(whole[123:321], part, strict=True):
        assert label == other
        assert all(np.array_equal(inputs[field], again[field]) for field in inputs)
    assert share[0] < np.mean([label for _, label in whole]) < share[1]


def test_each_play_is_in_the_file_of_one_day() -> None:
    plays = loaded(JOBS / "plays.py")
    read = [[*plays.read(file).as_numpy_iterator()] for file in plays.files()[:2]]
    assert [len(each) for each in read] == [plays.A_DAY] * 2
    again = [*plays._between(0, 2 * plays.A_DAY).as_numpy_iterator()]
    assert all(
        label == other and all(inputs[name] == same[name] for name in plays.TABLES)
        for (inputs, label), (same, other) in zip([*read[0], *read[1]], again, strict=True)
    )


def test_the_tables_of_plays_exceed_one_ps_and_fit_twice_with_slots_into_the_fewest() -> None:
    plays, job = (
        loaded(JOBS / "plays.py"),
        parse_fields((JOBS / "plays.yaml").read_text(), "plays.yaml"),
    )
    tables_gib = len(plays.TABLES) * plays.ROWS * plays.WIDTH * 4 / 2**30
    ps_gib = job["resources"]["ps"]["memory_gib"]
    numbers = np.arange(plays.TRAINED_ON)

    two_gib = PS_GIB + NEXT_PS_GIB + 2 * (2 * tables_gib) / job["ps"]["min"]
    least_deltas_gib = 4 * SMALL_DELTA * (2 * tables_gib) / job["ps"]["min"]
    assert tables_gib > ps_gib > two_gib + least_deltas_gib
    assert all(ids.min() >= 0 and ids.max() < plays.ROWS for ids in plays._ids(numbers).values())


def test_characters_has_names_of_every_kind_and_no_kind_has_the_majority() -> None:
    characters = loaded(JOBS / "characters.py")
    kinds = np.bincount(characters._labels, minlength=len(characters.KINDS)) / len(
        characters._labels
    )

    assert characters.examples() > 20_000 and kinds.min() > 0 and kinds.max() < 0.5
    numbers = [number for text in characters._inputs for number in text]
    assert min(numbers) > 0, "0 is padding"
    assert max(numbers) < characters.BUCKETS
    assert (
        characters._numbers("LATIN SMALL LETTER A")[:4]
        == characters._numbers("LATIN-SMALL LETTER A")[:4]
    )


def test_diabetes_is_scaled_by_its_training_data() -> None:
    diabetes = loaded(JOBS / "diabetes.py")
    seen = diabetes._inputs[: diabetes.examples()]

    assert diabetes.examples() == 353 and len(diabetes._inputs) == 442
    assert np.allclose(seen.mean(axis=0), 0, atol=1e-5) and np.allclose(
        seen.std(axis=0), 1, atol=1e-5
    )


def test_clicks_has_a_million_parameters_and_a_row_for_each_id() -> None:
    clicks = loaded(JOBS / "clicks.py")
    model = clicks.model()
    inputs, labels = next(iter(clicks.evaluation().batch(8)))

    assert 1_000_000 < model.count_params() < 2_000_000
    assert clicks.loss(labels, model(inputs)).shape == (8,)
    assert all((inputs[name].numpy() < size).all() for name, size in clicks.SIZES.items())
