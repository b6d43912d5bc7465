"""Tests of SIGKILL to any process at any moment: the job finishes, and counts are exact.

No process, pod or service is left. Run them with `pytest -m long tests/flow/test_kills.py`.
`WEIR_KILL_SEED=7` plays the schedule of one seed, `WEIR_KILL_SEEDS=20` those of seeds 1 to 20, and
`WEIR_KILL_HANDOVER=restart` uses a job that stops and starts again.
"""

from __future__ import annotations

import asyncio
import os
from functools import reduce
from pathlib import Path

import pytest
from msgspec.structs import replace

from services.allocator import snapshot
from services.allocator.state.job import Exit, is_own_fault
from services.allocator.state.state import CONSUMED, State, apply
from services.cli.trial import Failed
from shared.messages import (
    AllocationDecided,
    GenerationAbandoned,
    HandOverOrdered,
    JobFinished,
    ProgressReported,
    TaskExited,
    TrainingResumed,
)
from tests.flow.kills import KINDS, schedule
from tests.flow.stage import BATCH, EPOCHS, EXAMPLES, LOOK_S, Scene, left_behind, stage
from tests.flow.story import Story

pytestmark = pytest.mark.long

SEEDS = (
    [int(s)]
    if (s := os.environ.get("WEIR_KILL_SEED"))
    else range(1, 1 + int(os.environ.get("WEIR_KILL_SEEDS", 1)))
)
HANDOVER = os.environ.get("WEIR_KILL_HANDOVER", "make-before-break")
LEAST_KINDS = 6
TIDY_S = 60.0


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("seed", SEEDS)
async def test_a_job_finishes_exactly_whichever_process_is_killed(
    tmp_path: Path, seed: int
) -> None:
    async with stage(tmp_path) as scene:
        story = Story(scene, HANDOVER)
        try:
            finished = await story.play(schedule(seed))
        except (Failed, TimeoutError) as error:
            raise AssertionError("\n".join([f"seed {seed}: {error}", *story.told])) from error
        counts = await scene.counts(finished)
        surplus = (
            f"{sum(counts) - finished.samples} examples twice, {story.workers_lost} workers killed"
        )
        print(f"seed {seed}", *story.told, surplus, sep="\n")
        counted_within_the_bound(counts, finished, story.workers_lost)
        the_log_is_consistent(scene)
        await nothing_is_left_in_the_cluster(scene)
        known = await remembered(scene)
        assert decided(known) == decided(replayed(scene, known))
        killed = [kill.kind for kill in story.hit]
        for name, part in scene.watched.stack.parts.items():
            assert part.restarts == killed.count(name), (
                f"{name} ended by itself; see {part.log_path}"
            )
    assert len(set(killed)) >= LEAST_KINDS, killed
    assert left_behind(tmp_path) == [] == list((tmp_path / "weir" / "cluster" / "pods").iterdir())


def counted_within_the_bound(counts: list[int], finished: JobFinished, workers_lost: int) -> None:
    """Check that each example counts once per epoch, plus at most one batch per killed worker.

    The program counts a batch before its gradient is computed, Weir counts it afterwards: a worker
    may be killed between the two.
    """
    due, most = EXAMPLES * EPOCHS, EXAMPLES * EPOCHS + BATCH * workers_lost
    assert finished.samples == due <= finished.counted <= most
    assert len(counts) == EXAMPLES and min(counts) >= EPOCHS
    assert sum(counts) <= most


def the_log_is_consistent(scene: Scene) -> None:
    decisions, resumed = (
        scene.of(AllocationDecided),
        [m.generation for m in scene.of(TrainingResumed)],
    )
    assert [d.revision for d in decisions] == list(range(1, len(decisions) + 1))
    generations = [d.generation for d in decisions]
    assert generations == sorted(generations) and resumed == sorted(set(resumed))
    over = {*resumed, *(m.generation for m in scene.of(GenerationAbandoned))}
    assert set(generations) - over <= {generations[-1]}, "a generation without an end"
    ordered = [m.generation for m in scene.of(HandOverOrdered)]
    assert len(ordered) == len(set(ordered)) and set(resumed) <= set(ordered)
    places = {(task.serial, task.role, task.node) for d in decisions for task in d.tasks}
    assert len(places) == len({serial for serial, _, _ in places}), "a serial was used twice"
    faults = [m for m in scene.of(TaskExited) if is_own_fault(Exit(m.role, m.exit_code, m.reason))]
    assert faults == [], "who is killed, or loses another, is not at fault"
    for generation in resumed:
        steps = [m.step for m in scene.of(ProgressReported) if m.generation == generation]
        assert steps == sorted(steps)


async def nothing_is_left_in_the_cluster(scene: Scene) -> None:
    async with asyncio.timeout(TIDY_S):
        while await scene.made_for_the_job():
            await asyncio.sleep(LOOK_S)


async def remembered(scene: Scene) -> State:
    """Return the allocator's snapshot, once it contains the end of the job."""
    async with asyncio.timeout(TIDY_S):
        while not (state := await snapshot.load_snapshot(scene.watched.bus)).closed:
            await asyncio.sleep(LOOK_S)
    return state


def replayed(scene: Scene, known: State) -> State:
    """Return the state that the log alone gives, up to the sequences of `known`."""
    log = [
        h
        for h in scene.watched.heard
        if isinstance(h.message, CONSUMED) and h.sequence <= known.sequences[h.stream]
    ]
    log.sort(key=lambda heard: heard.stored_s)
    return reduce(lambda s, h: apply(s, h.message, h.stream, h.sequence, h.stored_s), log, State())


def decided(state: State) -> State:
    """Return the state without fields that depend on the order in which two streams were read.

    These are the job's last reports and the newest cause.
    """
    quiet = {"progress": None, "observed": (), "recent": (), "curve": ()}
    closed = {key: replace(c, job=replace(c.job, **quiet)) for key, c in state.closed.items()}
    return replace(state, closed=closed, cause="-")


def test_the_kill_schedules_of_ten_seeds_cover_every_process() -> None:
    planned = {
        seed: [kill.kind for each in schedule(seed) for kill in each.kills] for seed in range(1, 11)
    }
    assert all(len(set(kinds)) >= LEAST_KINDS for kinds in planned.values())
    assert {kind for kinds in planned.values() for kind in kinds} == KINDS
    assert schedule(3) == schedule(3) != schedule(4)
