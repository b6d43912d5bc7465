"""The main story, on real parts: strangers leave, the job grows, every example counts once, nothing stays behind."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from services.cli import demo, scene
from services.cli.trial import trial
from services.local.stack import Stack
from shared.messages import AllocationDecided, JobFinished, ProgressReported, TrainingResumed

CLUSTER = "nodes:\n  - {name: node, count: 2, cpu: 1.5, memory_gib: 8}\n"
SIZE = {"cpu": 0.5, "memory_gib": 1.5}
PATIENCE_S = 120.0


@pytest.mark.filterwarnings("default")
async def test_a_job_grows_when_strangers_leave_and_counts_every_example_once(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER)
    request = {
        **demo.REQUEST,
        "epochs": 60,
        "ps": {"start": 1, "min": 1, "max": 2},
        "workers": {"start": 1, "min": 1, "max": 2},
        "resources": {"chief": SIZE, "ps": SIZE, "worker": SIZE},
    }
    async with Stack(tmp_path / "weir", file, {"WEIR_ALLOCATOR_WINDOW_S": "0.5"}) as stack, trial(stack) as watched:
        stranger = await watched.tenants.come("node-2", 1.2)
        await watched.submit(request, demo.JOBS / "digits.py")
        await watched.until(lambda: watched.of(ProgressReported), PATIENCE_S, "the start")
        await watched.tenants.leave(stranger)
        over: JobFinished = await watched.finished(PATIENCE_S)
    resumed = watched.of(TrainingResumed)
    assert over.counted == over.samples == watched.of(ProgressReported)[-1].total_samples
    assert scene.sizes(watched.of(AllocationDecided), resumed[-1].generation) == {"chief": 1, "ps": 2, "worker": 2}
    assert resumed[-1].pause_s is not None
    assert over.metrics["accuracy"] >= 0.9
    assert [p.pid for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])] == []
