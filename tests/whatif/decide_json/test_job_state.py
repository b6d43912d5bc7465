"""Tests of the speeds, losses and progress of a document.

They change a job as the reports of trainers would.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.allocator.state.job import Job
from services.allocator.state.observations import CURVE_KEPT
from tests.whatif.decide_json.documents import ask, current, desk, job, node

NAN = float("nan")


def told(*says: dict[str, Any]) -> Job:
    """Return the job after these documents, one minute apart."""
    at = desk("static")
    (first,) = ask(at, 0, [node()], job())
    for number, said in enumerate(says, start=1):
        ask(at, 60.0 * number, [node()], job(current=current(first), **said))
    return at.mirror.state.jobs["default.one"]


def speeds(of: Job) -> dict[tuple[int, int, int], float]:
    return {(o.ps, o.workers, o.batch): o.samples_per_second for o in of.observed}


def test_speeds_are_kept_by_size_and_the_newest_counts() -> None:
    one = {"ps": 1, "workers": 1, "batch": 64, "samples_per_second": 100.0, "nodes": 1}
    two = {"ps": 1, "workers": 2, "batch": 64, "samples_per_second": 150.0, "nodes": ["n1", "n2"]}
    faster = one | {"samples_per_second": 110.0}
    assert speeds(told({"observed": [one, two]}, {"observed": [faster]})) == {
        (1, 1, 64): 110.0,
        (1, 2, 64): 150.0,
    }


def test_repeated_sizes_are_averaged_and_step_times_become_speeds() -> None:
    said = [
        {"ps": 1, "workers": 1, "step_s": 0.5},
        {"ps": 1, "workers": 1, "samples_per_second": 64.0},
    ]
    assert speeds(told({"observed": said})) == {(1, 1, 64): 96.0}


@pytest.mark.parametrize("speed", [0.0, -5.0, NAN, None])
def test_an_impossible_speed_is_ignored(speed: float | None) -> None:
    assert told({"observed": [{"ps": 1, "workers": 1, "samples_per_second": speed}]}).observed == ()


def test_each_progress_gives_a_report_and_an_observation() -> None:
    said = {"samples": 640, "total_samples": 6400, "loss": [[0, 2.0], [640, 1.5]]}
    speed = [{"ps": 1, "workers": 1, "samples_per_second": 10.0}]
    one = told(
        {"observed": speed, "progress": said},
        {"progress": said},
        {"progress": said | {"samples": 1280}},
    )
    assert one.progress is not None
    assert (
        one.progress.samples,
        one.progress.total_samples,
        one.progress.step,
        one.progress.loss,
    ) == (
        1280,
        6400,
        20,
        1.5,
    )
    assert [
        (reading.at_s, reading.samples, reading.samples_per_second) for reading in one.recent
    ] == [
        (60.0, 640, 10.0),
        (180.0, 1280, 10.0),
    ]


@pytest.mark.parametrize(
    "said",
    [{"samples": 5}, {"samples": NAN, "total_samples": 9}, {"samples": 5, "total_samples": -1}],
)
def test_without_known_work_there_is_no_report(said: dict[str, Any]) -> None:
    assert told({"progress": said}).progress is None


def test_the_loss_curve_is_extended_and_bounded() -> None:
    first = {"loss": [[0, 3.0], [100, 2.0], [200, NAN], [300, None]]}
    one = told({"progress": first}, {"progress": {"loss": [[100, 2.5], [400, 1.0]]}})
    assert [(point.samples, point.loss) for point in one.curve] == [
        (0, 3.0),
        (100, 2.5),
        (400, 1.0),
    ]
    long = told({"progress": {"loss": [[number, 1.0] for number in range(1000)]}})
    assert len(long.curve) <= CURVE_KEPT and (long.curve[0].samples, long.curve[-1].samples) == (
        0,
        999,
    )


@pytest.mark.parametrize(
    ("said", "known"), [(120.5, 120.5), (NAN, None), (-1.0, None), (None, None)]
)
def test_gradient_noise_is_passed_on(said: float | None, known: float | None) -> None:
    report = told({"progress": {"samples": 1, "total_samples": 2, "gradient_noise": said}}).progress
    assert report is not None and report.gradient_noise == known


def test_a_pause_and_a_profile() -> None:
    profile = {"parameters": 1e6, "bytes": 4e6, "flops_per_sample": 2e9}
    one = told(
        {"pause_s": 12.5, "progress": {"samples": 1, "total_samples": 2, "profile": profile}}
    )
    assert one.pauses == (12.5,) and one.progress is not None and one.progress.profile is not None
    known = msgspec.structs.asdict(one.progress.profile)
    assert (known["parameters"], known["bytes"], known["variables"]) == (
        1_000_000,
        4_000_000,
        1_000_000,
    )
