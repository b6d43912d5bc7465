"""Tests of a job's events for TensorBoard, read back by another process.

They are in a folder, or at a URL that TensorFlow can open. Every number is one that a chief has
reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.trainer.pod.children import ForkServer
from services.trainer.protocol import Finished, Progress, Resumed
from services.trainer.worker import tensorboard_events
from services.trainer.worker.tensorboard_events import GenerationSize, OpenPoint
from tests.trainer.cradle import PLAIN, Cradle
from tests.trainer.script import run_script


def told(*words: str) -> Any:
    return run_script("events.py", *words)


def curve(events: list[dict[str, Any]], tag: str) -> list[tuple[int, Any]]:
    return [(event["step"], event["values"][tag]) for event in events if tag in event["values"]]


@pytest.fixture(scope="module", params=["folder", "ram://store/job"])
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return told(
        "write", request.param if "://" in request.param else str(tmp_path_factory.mktemp("job"))
    )


def test_two_generations_write_two_event_files_in_order(story: Any) -> None:
    files = list(dict.fromkeys(event["file"] for event in story["events"]))

    assert [name.split(".")[:4] for name in files] == [
        ["events", "out", "tfevents", "0000000001"],
        ["events", "out", "tfevents", "0000000002"],
    ]
    assert story["complaints"] == []
    for name in files:
        first = next(event for event in story["events"] if event["file"] == name)
        assert first["version"] == "brain.Event:2"
    times = [event["at_s"] for event in story["events"]]
    assert times == sorted(times)


def test_rolled_back_points_are_removed(story: Any) -> None:
    """TensorBoard drops points at or after the first step of a session: here 80 and 96, not 64."""
    assert [event["step"] for event in story["events"] if event["starts"]] == [1, 65]


def test_curves_continue_over_examples(story: Any) -> None:
    assert curve(story["events"], "update") == [(32, 2), (64, 4), (96, 6), (80, 5), (128, 8)]
    assert {loss for _, loss in curve(story["events"], "loss")} == {2.0}
    assert dict(curve(story["events"], "tasks/workers")) == {
        16: 1,
        32: 1,
        64: 1,
        96: 1,
        80: 2,
        128: 2,
    }


def test_a_pause_is_a_scalar_and_a_text(story: Any) -> None:
    assert curve(story["events"], "pause/seconds") == [(80, 0.5)]
    (_, begun), (at, paused) = curve(story["events"], "pause/marks")
    assert at == 80 and "generation 2" in paused and "pause of **0.50 s**" in paused
    assert "generation 1" in begun and "pause" not in begun
    assert {"scalars", "text"} == {
        plugin for event in story["events"] for plugin in event["plugins"]
    }


def test_unwritable_events_are_logged_once(tmp_path: Path) -> None:
    (tmp_path / "summaries").write_text("no folder can be where a file is")
    found = told("write", str(tmp_path))

    assert found["events"] == [] and len(found["complaints"]) == 2  # one from each generation
    assert "training continues" in found["complaints"][0]
    assert str(tmp_path / "summaries") in found["complaints"][0]


@pytest.fixture
def fork_server() -> Iterator[ForkServer]:
    made = ForkServer("chief")
    yield made
    made.close()


def mean_loss(reports: list[Progress], after: int) -> float:
    """Return the mean loss over the examples that were reported after the first `after`."""
    lost, examples, newest = 0.0, 0, 0
    for report in reports:
        if report.samples > max(after, newest) and report.loss is not None:
            lost += report.loss * (report.samples - newest)
            examples += report.samples - newest
        newest = report.samples
    return lost / examples


async def test_a_chief_writes_its_reports_beside_its_checkpoints(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    cradle = Cradle(fork_server, tmp_path)
    await cradle.lives(PLAIN)
    reports = [word for word in cradle.said["chief"] if isinstance(word, Progress)]
    (resumed,) = (word for word in cradle.said["chief"] if isinstance(word, Resumed))
    events = told(str(tmp_path / "checkpoints"))["events"]

    assert isinstance(cradle.said["chief"][-1], Finished), cradle.said
    assert curve(events, "update")[-1] == (reports[-1].samples, reports[-1].step) == (64, 4)
    before = [samples for samples, _ in curve(events, "loss")[:-1]]
    assert curve(events, "loss")[-1][1] == pytest.approx(mean_loss(reports, max(before, default=0)))
    assert [step for step, _ in curve(events, "pause/marks")] == [resumed.samples]


def test_tensorboards_reader_reads_the_events(tmp_path: Path) -> None:
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.plugin_event_accumulator",
        reason="tensorboard is not installed here",
    )
    told("write", str(tmp_path))
    found = reader.EventAccumulator(str(tmp_path / "summaries"))
    found.Reload()

    assert [point.step for point in found.Tensors("update")] == [
        32,
        64,
        80,
        128,
    ]  # 96 was applied again
    assert {"loss", "tasks/ps", "pause/seconds", "pause/marks"} <= set(found.Tags()["tensors"])


SIZE = GenerationSize(generation=3, ps=2, workers=4, batch=32)


def report(samples: int, loss: float | None = 0.5, **fields: Any) -> Progress:
    about: dict[str, Any] = {
        "step": samples // 10,
        "epoch": 1,
        "total_samples": 10_000,
        "samples_per_second": 1.0,
    }
    return Progress(samples=samples, loss=loss, **(about | fields))


def resumed(**fields: Any) -> Resumed:
    about: dict[str, Any] = {
        "step": 10,
        "samples": 12_800,
        "pause_s": 0.621,
        "restore_s": 0.254,
        "first_step_s": 0.112,
    }
    return Resumed(**(about | fields))


def after(*reports: Progress, samples: int = 0) -> OpenPoint:
    so_far = tensorboard_events.new_point(samples, 100.0)
    for word in reports:
        so_far = tensorboard_events.add_report(so_far, word)
    return so_far


def test_the_loss_of_a_point_is_the_mean_over_all_its_examples() -> None:
    last = report(400, 2.0)
    found = tensorboard_events.point_values(after(report(100, 6.0), last), last, SIZE, 102.0)

    assert found["loss"] == (100 * 6.0 + 300 * 2.0) / 400
    assert found["examples_per_second"] == 400 / 2.0
    assert (found["epoch"], found["update"]) == (1, 40)
    assert (found["tasks/ps"], found["tasks/workers"], found["tasks/batch"]) == (2, 4, 32)


@pytest.mark.parametrize("loss", [None, float("nan"), float("inf")])
def test_a_nan_loss_is_left_out(loss: float | None) -> None:
    last = report(400, loss)

    assert (
        tensorboard_events.point_values(after(report(100, 6.0), last), last, SIZE, 102.0)["loss"]
        == 6.0
    )
    assert "loss" not in tensorboard_events.point_values(after(last), last, SIZE, 102.0)


def test_examples_of_earlier_generations_do_not_count_for_the_speed() -> None:
    last = report(1400)
    assert (
        tensorboard_events.point_values(after(last, samples=1000), last, SIZE, 104.0)[
            "examples_per_second"
        ]
        == 100.0
    )


def test_each_point_starts_after_the_previous_one() -> None:
    first, second = report(400, 2.0), report(500, 1.0)
    so_far = tensorboard_events.next_point(after(first), first, 102.0)
    found = tensorboard_events.point_values(
        tensorboard_events.add_report(so_far, second), second, SIZE, 103.0
    )

    assert (found["loss"], found["examples_per_second"]) == (1.0, 100.0)


def test_a_very_short_interval_has_no_speed() -> None:
    last = report(16)
    assert "examples_per_second" not in tensorboard_events.point_values(
        after(last), last, SIZE, 100.01
    )


def test_points_become_less_frequent_with_time() -> None:
    young, old = after(), OpenPoint(began_s=0.0, since_s=604_800.0, since=0)

    assert not tensorboard_events.is_point_due(young, 100.4)
    assert tensorboard_events.is_point_due(young, 100.5)
    assert not tensorboard_events.is_point_due(old, 604_800.0 + 600)
    assert tensorboard_events.is_point_due(old, 604_800.0 + 1_300)


def test_a_week_is_a_few_thousand_points() -> None:
    so_far, points, now = OpenPoint(began_s=0.0, since_s=0.0, since=0), 0, 0.0
    while now < 604_800:
        now += 1.0
        if tensorboard_events.is_point_due(so_far, now):
            so_far, points = OpenPoint(began_s=0.0, since_s=now, since=0), points + 1
    assert 1_000 < points < 5_000


def test_a_pause_is_described_in_text() -> None:
    assert tensorboard_events.describe_start(resumed(), SIZE) == (
        "**generation 3** (2 ps, 4 workers, batch 32) trains from example 12,800, "
        "after a pause of **0.62 s** (of it restore 0.25 s, first step 0.11 s)."
    )
    assert tensorboard_events.start_values(resumed(learning_rate=0.1), SIZE) == {
        "tasks/ps": 2,
        "tasks/workers": 4,
        "tasks/batch": 32,
        "learning_rate": 0.1,
        "pause/seconds": 0.621,
    }


def test_a_start_is_no_pause() -> None:
    start = resumed(pause_s=None, samples=32)

    assert tensorboard_events.describe_start(start, GenerationSize(1, 1, 1, 16)) == (
        "**generation 1** (1 ps, 1 worker, batch 16) trains from example 32."
    )
    assert "pause/seconds" not in tensorboard_events.start_values(start, SIZE)
