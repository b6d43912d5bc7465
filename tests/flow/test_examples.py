"""Tests of the examples of deploy/jobs on the local cluster of one machine.

Only epochs and cores differ from their files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.cli.program_source import read_program
from services.console.job_file import complete_fields, parse_fields
from services.local.cluster_spec import parse_source
from shared.checkpoints import PROGRAM
from shared.messages import (
    GIB,
    AllocationDecided,
    CheckpointSaved,
    JobFinished,
    ProgressReported,
    TrainingResumed,
)
from tests.flow.stage import Scene, left_behind, stage

pytestmark = pytest.mark.long

JOBS = Path(__file__).parents[2] / "deploy" / "jobs"
ROOMY = "nodes:\n  - {name: node-1, cpu: 12, memory_gib: 24}\n"  # on paper
OWN = "deploy.policies.fewest_first:fewest_first"
WITHIN_S = 600.0


def asked(name: str, **fields: Any) -> dict[str, Any]:
    """Return the request of an example's file, with one core for each task.

    Requests decide what fits, and nothing else.
    """
    file = JOBS / f"{name}.yaml"
    said = complete_fields(parse_fields(file.read_text(), file.name), None, "-") | fields
    return said | {
        "resources": {role: each | {"cpu": 1.0} for role, each in said["resources"].items()}
    }


async def trained(scene: Scene, name: str, **fields: Any) -> JobFinished:
    said = asked(name, **fields)
    await scene.watched.submit(said, JOBS / said["program"])
    over = await scene.watched.await_finish(WITHIN_S)
    last = scene.of(ProgressReported)[-1]
    assert (
        over.counted
        == over.samples
        == last.total_samples
        == said["epochs"] * (last.total_samples // said["epochs"])
    )
    return over


@pytest.mark.filterwarnings("default")
async def test_a_text_classifier_learns_character_names(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, {"WEIR_ALLOCATOR_POLICY": "static"}, ROOMY) as scene:
        over = await trained(scene, "characters", epochs=1)

    assert over.metrics["accuracy"] > 0.8, (
        "to call all of them by the commonest kind is right less than half the time"
    )
    assert left_behind(tmp_path) == []


@pytest.mark.filterwarnings("default")
async def test_a_regression_trains_under_a_user_written_policy(tmp_path: Path) -> None:
    async with stage(tmp_path, {"WEIR_ALLOCATOR_POLICY": OWN}, ROOMY) as scene:
        over = await trained(scene, "diabetes", epochs=250)  # the job grows before they end

    sizes = [
        sum(task.role == "worker" for task in m.tasks)
        for m in scene.of(AllocationDecided)
        if m.tasks
    ]
    assert over.metrics["r2"] > 0.25, "0 is the mean of what was trained on"
    assert sizes[0] == 1 and sizes[-1] == 2 == len(scene.of(TrainingResumed))
    assert scene.of(AllocationDecided)[1].reason == "the job with the fewest workers gets the next"
    assert left_behind(tmp_path) == []


@pytest.mark.filterwarnings("default")
async def test_a_folder_with_parameters_trains_through_a_hand_over(tmp_path: Path) -> None:
    width = 24
    async with stage(tmp_path, {"WEIR_ALLOCATOR_POLICY": OWN}, ROOMY) as scene:
        over = await trained(
            scene, "iris", epochs=250, params={"width": width, "learning_rate": 0.01}
        )
        (kept,) = tmp_path.rglob(PROGRAM)
        stored = kept.read_bytes()

    profile = scene.of(ProgressReported)[-1].profile
    assert profile is not None
    assert profile.parameters == (4 + 1) * width + (width + 1) * 3, "the parameter reached model()"
    assert over.metrics["accuracy"] > 0.8
    assert len(scene.of(TrainingResumed)) == 2, "its files were there for the second generation"
    assert stored == read_program(JOBS / "iris").body, "`weir recover` finds all of it"
    assert left_behind(tmp_path) == []


@pytest.mark.filterwarnings("default")
async def test_a_recommender_trains_tables_larger_than_one_ps(tmp_path: Path) -> None:
    async with stage(tmp_path, {"WEIR_ALLOCATOR_POLICY": "static"}, ROOMY) as scene:
        await trained(scene, "plays", ps={"start": 8, "min": 8, "max": 8})

    reports = scene.of(ProgressReported)
    limit_gib, held = asked("plays")["resources"]["ps"]["memory_gib"], reports[-1].profile
    used = [u.memory_gib for report in reports for u in report.usage if u.task.startswith("ps")]
    losses = [report.loss for report in reports if report.loss is not None]
    assert held is not None and held.bytes > limit_gib * GIB, "without Adagrad's slots"
    assert 2 * held.bytes < held.table_bytes < 2.1 * held.bytes, "slots and marks"
    assert held.table_bytes / 8 / GIB < max(used) < limit_gib
    assert losses[-1] < 0.99 * losses[0]
    *periodic, last = scene.of(CheckpointSaved)
    assert last.bytes > held.table_bytes / 1.1, "a plain Keras checkpoint"
    deltas = [each for each in periodic if not each.stood]
    assert deltas and all(each.bytes < held.bytes / 5 for each in deltas)
    assert left_behind(tmp_path) == []


@pytest.mark.filterwarnings("default")
async def test_a_program_uses_a_salt_from_a_secret(tmp_path: Path) -> None:
    secret = tmp_path / "visits.env"
    secret.write_text("salt=sea\n")
    source = parse_source(f"visits={secret}", "Secret")
    settings = {"WEIR_ALLOCATOR_POLICY": "static"}
    async with stage(tmp_path, settings, ROOMY, data_sources=[source]) as scene:
        over = await trained(scene, "visits", epochs=3)

    assert over.metrics["accuracy"] > 0.7, "a guess is right half the time"
    assert left_behind(tmp_path) == []
