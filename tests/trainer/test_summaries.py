"""What TensorBoard finds of a job, read back by another process; in a folder, and where TensorFlow
finds by a URL.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.trainer.children import Nursery
from services.trainer.orders import Finished, Progress, Resumed
from tests.trainer.cradle import PLAIN, Cradle

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "programs" / "events.py"


def told(*words: str) -> Any:
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        capture_output=True,
        text=True,
        env=environ,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def curve(events: list[dict[str, Any]], tag: str) -> list[tuple[int, Any]]:
    return [(event["step"], event["values"][tag]) for event in events if tag in event["values"]]


@pytest.fixture(scope="module", params=["folder", "ram://store/job"])
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return told(
        "write", request.param if "://" in request.param else str(tmp_path_factory.mktemp("job"))
    )


def test_two_generations_make_one_story_of_two_files_in_their_order(story: Any) -> None:
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


def test_what_was_rolled_back_is_taken_back(story: Any) -> None:
    """TensorBoard drops what lies at or behind the step of a session's start: here 80 and 96, not
    64.
    """
    assert [event["step"] for event in story["events"] if event["starts"]] == [1, 65]


def test_curves_go_on_over_examples(story: Any) -> None:
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


def test_a_pause_is_a_number_and_a_line_of_text(story: Any) -> None:
    assert curve(story["events"], "pause/seconds") == [(80, 0.5)]
    (_, begun), (at, paused) = curve(story["events"], "pause/marks")
    assert at == 80 and "generation 2" in paused and "pause of **0.50 s**" in paused
    assert "generation 1" in begun and "pause" not in begun
    assert {"scalars", "text"} == {
        plugin for event in story["events"] for plugin in event["plugins"]
    }


def test_where_nothing_can_be_written_it_is_said_once_and_nothing_ends(tmp_path: Path) -> None:
    (tmp_path / "summaries").write_text("no folder can be where a file is")
    found = told("write", str(tmp_path))

    assert found["events"] == [] and len(found["complaints"]) == 2  # by each generation once
    assert "training goes on" in found["complaints"][0]
    assert str(tmp_path / "summaries") in found["complaints"][0]


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    made = Nursery("chief")
    yield made
    made.close()


async def test_a_chief_writes_what_it_reports_beside_its_checkpoints(
    nursery: Nursery, tmp_path: Path
) -> None:
    cradle = Cradle(nursery, tmp_path)
    await cradle.lives(PLAIN)
    reports = [word for word in cradle.said["chief"] if isinstance(word, Progress)]
    (resumed,) = (word for word in cradle.said["chief"] if isinstance(word, Resumed))
    events = told(str(tmp_path / "checkpoints"))["events"]

    assert isinstance(cradle.said["chief"][-1], Finished), cradle.said
    assert curve(events, "update")[-1] == (reports[-1].samples, reports[-1].step) == (64, 4)
    assert curve(events, "loss")[-1][1] == pytest.approx(reports[-1].loss)
    assert [step for step, _ in curve(events, "pause/marks")] == [resumed.samples]


def test_tensorboards_own_reader_finds_the_story(tmp_path: Path) -> None:
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
    ]  # 96 was done again
    assert {"loss", "tasks/ps", "pause/seconds", "pause/marks"} <= set(found.Tags()["tensors"])
