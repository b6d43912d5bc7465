"""Tests of growth on real parts: a job grows when another user's pod leaves.

Every example counts once, and no process is left.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli import demo, report
from services.cli.trial import trial
from services.console.board.board import Board
from services.console.board.figures import core_seconds
from services.console.report.account import Passes, account_job
from services.console.report.page import contents, report_page
from services.local.stack import Stack
from shared.messages import AllocationDecided, JobFinished, ProgressReported, TrainingResumed
from tests.flow.stage import left_behind

pytestmark = pytest.mark.long

CLUSTER = "nodes:\n  - {name: node, count: 2, cpu: 1.5, memory_gib: 8}\n"
SIZE = {"cpu": 0.5, "memory_gib": 1.5}
PATIENCE_S = 300.0


@pytest.mark.filterwarnings("default")
async def test_a_job_grows_when_other_pods_leave_and_counts_every_example_once(
    tmp_path: Path,
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER)
    request = {
        **demo.REQUEST,
        "epochs": 60,
        "ps": {"start": 1, "min": 1, "max": 2},
        "workers": {"start": 1, "min": 1, "max": 2},
        "resources": {"chief": SIZE, "ps": SIZE, "worker": SIZE},
    }
    async with (
        Stack(tmp_path / "weir", file, {"WEIR_ALLOCATOR_WINDOW_S": "0.5"}) as stack,
        trial(stack) as watched,
    ):
        stranger = await watched.tenants.come("node-2", 1.2)
        await watched.submit(request, demo.JOBS / "digits.py")
        await watched.until(lambda: watched.of(ProgressReported), PATIENCE_S, "the start")
        await watched.tenants.leave(stranger)
        over: JobFinished = await watched.await_finish(PATIENCE_S)
        board, passes = await report.fold_log(watched.bus, "default", request["job"])
        told_of(board, passes, watched.of(TrainingResumed), tmp_path)
    resumed = watched.of(TrainingResumed)
    assert over.counted == over.samples == watched.of(ProgressReported)[-1].total_samples
    assert demo.sizes(watched.of(AllocationDecided), resumed[-1].generation) == {
        "chief": 1,
        "ps": 2,
        "worker": 2,
    }
    assert resumed[-1].pause_s is not None
    assert over.metrics["accuracy"] >= 0.9
    assert left_behind(tmp_path) == []


def told_of(board: Board, passes: Passes, resumed: list[TrainingResumed], folder: Path) -> None:
    """Check what `weir report` says of the job, and the files for TensorBoard.

    There is one file for each generation, all in one folder.
    """
    story = board.jobs["default.digits"]
    spent = account_job(board, story)
    (folder / "digits.html").write_text(
        report_page(contents(board, story, passes.seconds, 0.0, ()))
    )
    assert len(passes.seconds) == 60 and sum(passes.seconds) <= spent.completion_s
    assert spent.parts.held_total == pytest.approx(core_seconds(story, board.at_s), rel=1e-6)
    assert spent.paused_s == sum(fact.pause_s or 0.0 for fact in resumed) > 0 and spent.lost == 0
    assert 0 < spent.used_core_s <= spent.parts.held_total and spent.parts.beside > 0
    assert {one.generation: one.phases for one in story.generation_spans} == {
        fact.generation: fact.phases for fact in resumed
    }
    (summaries,) = (folder / "weir" / "checkpoints").rglob("summaries")
    files = sorted(path.name for path in summaries.iterdir())
    assert [int(name.split(".")[3]) for name in files] == [fact.generation for fact in resumed]
