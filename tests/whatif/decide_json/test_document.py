"""Tests of a request from an external simulator: optional fields and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from services.whatif.decide_json.document import read_request, reasons_against
from shared.messages import Resources, Span


def test_almost_every_field_is_optional() -> None:
    asked = read_request("job_1", {"workers": 3})
    assert (asked.job, asked.epochs) == ("job_1", 1)
    assert asked.ps == Span(start=0, min=0, max=0) and asked.workers == Span(start=3, min=3, max=3)
    assert asked.resources is not None and asked.resources.chief == Resources()


def test_a_chief_has_the_requested_resources() -> None:
    asked = read_request("a", {"resources": {"chief": {"cpu": 1}, "worker": {"gpu": 1.0}}})
    assert asked.resources is not None
    assert (asked.resources.chief.cpu, asked.resources.worker) == (1.0, Resources(gpu=1))


def test_integral_floats_are_integers() -> None:
    asked = read_request(
        "a", {"batch": {"start": 64.0, "min": 32.0, "max": 128.0}, "workers": 2.0, "ps": 1.0}
    )
    assert (
        asked.batch == Span(start=64, min=32, max=128)
        and asked.workers.start == 2
        and asked.ps.start == 1
    )


def test_jobs_of_unknown_programs_are_different_programs() -> None:
    assert read_request("a", {}).program.digest != read_request("b", {}).program.digest


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            {"ps": {"start": 2, "min": 3, "max": 4}},
            ["ps: 0 <= min 3 <= start 2 <= max 4 does not hold"],
        ),
        ({"ps": {"start": 2}}, ["ps: needs start, min and max, whole numbers of at least 0"]),
        ({"batch": 1.5}, ["batch: Expected `{start, min, max}`"]),
        (
            {"priority": "high", "policy": "best"},
            ["priority: Expected `int`, got 'high'", "policy: 'best' is not known"],
        ),
        (
            {"resources": {"worker": {"cpus": 1}}},
            ["resources.worker.cpus: no such field; did you mean 'cpu'?"],
        ),
    ],
)
def test_every_error_in_a_request_is_listed(fields: dict[str, Any], why: list[str]) -> None:
    told = list(reasons_against("a", fields))
    assert len(told) == len(why) and all(
        one.startswith(expected) for one, expected in zip(told, why, strict=True)
    )


def test_a_batch_may_need_more_than_one_device() -> None:
    assert list(reasons_against("a", {"batch": 256, "device_batch_max": 64, "workers": 4})) == []
