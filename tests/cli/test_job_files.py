"""The jobs that come with Weir are ones that the allocator accepts, and their programs are what a trainer wants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.allocator.requests.validate import check
from services.cli import store
from services.cli.request_file import completed, encoded, parse
from shared.messages import JobRequested

JOBS = Path(__file__).parents[2] / "deploy" / "jobs"


@pytest.mark.parametrize("file", sorted(JOBS.glob("*.yaml")), ids=lambda f: f.name)
def test_a_job_file_is_a_valid_request_for_a_program_beside_it(file: Path) -> None:
    fields = parse(file.read_text(), file.name)
    program = store.read(file.parent / fields["program"])
    sent = completed(fields, {"name": fields["program"], "digest": store.digest(program)}, "r1")

    asked = check(encoded(sent, file.name))

    assert isinstance(asked, JobRequested), asked
    assert asked.job == file.stem


def loaded(path: Path) -> Any:
    program = pytest.importorskip("services.trainer.program")
    return program.load(path, program.digest_of(path.read_bytes()))


def test_clicks_are_the_same_wherever_one_begins_to_read() -> None:
    clicks = loaded(JOBS / "clicks.py")
    whole, part = ([*clicks.dataset(*where).as_numpy_iterator()] for where in ((0, 500), (123, 321)))

    for (inputs, label), (again, other) in zip(whole[123:321], part, strict=True):
        assert label == other
        assert all(np.array_equal(inputs[name], again[name]) for name in inputs)
    assert 0.2 < np.mean([label for _, label in whole]) < 0.35


def test_clicks_has_a_million_parameters_and_a_row_of_each_id() -> None:
    clicks = loaded(JOBS / "clicks.py")
    model = clicks.model()
    inputs, labels = next(iter(clicks.evaluation().batch(8)))

    assert 1_000_000 < model.count_params() < 2_000_000
    assert clicks.loss(labels, model(inputs)).shape == (8,)
    assert all((inputs[name].numpy() < size).all() for name, size in clicks.SIZES.items())
