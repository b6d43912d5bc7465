"""Tests of the history that finished jobs leave to later jobs of their program."""

from __future__ import annotations

from msgspec.structs import replace

from services.allocator.models.program_history import histories_by_program, history_of
from services.allocator.policies.contract import Plan
from shared.messages import JobFinished, Program, TaskUsage
from tests.allocator.builders import Story, accepted, node, progress, request, resumed, span


def ended(outcome: str = "succeeded", **fields: object) -> Story:
    """Return a finished job of one ps and two workers that reported twice, early and late."""
    story = Story().hear(node(cpu=20), accepted(request(workers=span(2), **fields)))
    first = story.decided()
    story.hear(resumed(1))
    for step, done in enumerate((10, 90), 1):
        used = tuple(
            TaskUsage(task=task.name(), cpu=0.5, memory_gib=step + task.index)
            for task in first.tasks
        )
        story.hear(replace(progress(1, done, 100, 64.0, step), usage=used))
    return story.hear(JobFinished(job="mnist", uid=1, outcome=outcome, finished_s=7.0))  # type: ignore[arg-type]


def test_a_successful_job_adds_its_plan_memory_and_times_to_the_history():
    kin = history_of(histories_by_program(ended().state.closed), request())
    assert kin is not None
    (past,) = kin.past
    assert past.plan == Plan(1, 2, 1.0, 1.0) and past.finished_s == 7.0
    assert (past.ps_gib, past.worker_gib) == (
        1.0,
        3.0,
    )  # of all ps in the early report; of the worker with most
    assert [(t.plan, t.batch, t.step_s) for t in past.timed] == [(Plan(1, 2, 1.0, 1.0), 32, 1.0)]


def test_a_failed_job_adds_observations_but_no_plan():
    kin = history_of(histories_by_program(ended("failed").state.closed), request())
    assert kin is not None and kin.past == () and kin.observed


def test_unmeasured_usage_counts_as_the_tasks_resources():
    story = Story().hear(node(cpu=20), accepted())
    story.decided()
    story.hear(resumed(1), JobFinished(job="mnist", uid=1, outcome="succeeded"))
    kin = history_of(histories_by_program(story.state.closed), request())
    assert kin is not None and (kin.past[0].ps_gib, kin.past[0].worker_gib, kin.past[0].timed) == (
        1.0,
        1.0,
        (),
    )


def test_another_version_of_a_program_contributes_only_its_plan():
    closed = ended().state.closed
    newer = request(program=Program(name="train.py", digest="sha256-" + "1" * 64))
    kin = history_of(histories_by_program(closed), newer)
    assert kin is not None and kin.past and kin.observed == () and kin.epoch_samples is None
    other = request(program=Program(name="other.py", digest="sha256-" + "2" * 64))
    assert history_of(histories_by_program(closed), other) is None
