"""Tests of the summaries of finished jobs: they are small and give the same views and history."""

from __future__ import annotations

import random

from msgspec.structs import replace

from services.allocator import snapshot
from services.allocator.job_views import closed_view
from services.allocator.models.program_history import histories_by_program
from services.allocator.policies.contract import LossPoint, Observed, Reading
from services.allocator.state.job import Job, summary_of
from services.allocator.state.observations import CURVE_KEPT, RECENT_KEPT, TRIED_KEPT
from services.allocator.state.state import CLOSED_KEPT, ClosedJob, State, with_summaries
from shared.bus.bus import Bus
from shared.bus.snapshots import PART_BYTES
from shared.messages import JobFinished, Resources, TaskPlan
from tests.allocator.builders import UID, Story, accepted, exited, node, progress, resumed


def long_job(tasks: int, seed: int = 0) -> Job:
    """Return a job with full lists of observations, as after weeks."""
    told, story = random.Random(seed), Story().hear(node(cpu=3), accepted())
    first = story.decided()
    story.hear(resumed(1, pause_s=1.5), progress(1, 10, 1000, 5), exited(first.tasks[2]))
    size = {"ps": 3, "workers": 4, "batch": 32}
    recent = [
        Reading(
            at_s=told.random(),
            samples=10 * n,
            loss=told.random(),
            samples_per_second=told.random(),
            ps_gib=told.random(),
            worker_gib=told.random(),
            **size,
        )
        for n in range(RECENT_KEPT)
    ]
    tried = [
        Observed(
            ps=n,
            workers=4,
            batch=32,
            samples_per_second=told.random(),
            ps_cpu=1 + told.random(),
            worker_cpu=1,
        )
        for n in range(1, TRIED_KEPT + 1)
    ]
    held = Resources(cpu=1, memory_gib=2)
    many = [
        TaskPlan(role="worker", serial=n, node=f"n{n}", index=n, resources=held)
        for n in range(3, tasks)
    ]
    job = story.state.jobs["default.mnist"]
    return replace(
        job,
        decided={1: replace(first, tasks=(*first.tasks, *many))},
        recent=tuple(recent),
        tried=tuple(tried),
        observed=tuple(tried[:8]),
        curve=tuple(LossPoint(n, told.random()) for n in range(CURVE_KEPT)),
    )


def whole_end(job: Job) -> ClosedJob:
    return ClosedJob(
        job, JobFinished(job="mnist", uid=UID, outcome="succeeded", samples=1000, finished_s=9.0)
    )


def test_a_summary_gives_the_same_history_and_view() -> None:
    whole = whole_end(long_job(tasks=8))
    short = ClosedJob(summary_of(whole.job), whole.finished)

    assert histories_by_program({"default.mnist": short}) == histories_by_program(
        {"default.mnist": whole}
    )
    assert closed_view(short) == closed_view(whole)
    assert (short.job.serials, short.job.request) == (whole.job.serials, whole.job.request)
    assert summary_of(short.job) == short.job


def test_a_job_that_ends_is_kept_as_its_summary() -> None:
    story = Story().hear(node(cpu=3), accepted())
    first = story.decided()
    story.hear(resumed(1), progress(1, 10, 1000, 5), exited(first.tasks[2]))
    job = story.state.jobs["default.mnist"]

    story.hear(whole_end(job).finished)

    assert job.exits and story.state.closed["default.mnist"].job == summary_of(job) != job


def test_all_kept_summaries_fit_into_one_message() -> None:
    ends = {f"default.j{n}": whole_end(long_job(tasks=8, seed=n)) for n in range(CLOSED_KEPT)}

    assert len(snapshot.encode_snapshot(State(closed=ends))) > PART_BYTES
    assert len(snapshot.encode_snapshot(with_summaries(State(closed=ends)))) < PART_BYTES / 2


async def test_finished_jobs_of_an_earlier_version_become_summaries(bus: Bus) -> None:
    whole = whole_end(long_job(tasks=8))
    await snapshot.store_snapshot(bus, State(closed={"default.mnist": whole}))

    assert (await snapshot.load_snapshot(bus)).closed["default.mnist"].job == summary_of(whole.job)
