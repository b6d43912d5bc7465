"""Tests of the allocator's metrics.

Those of training are computed from the messages on the bus.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from services.allocator.metrics import (
    CHANGE,
    CORES,
    EXAMPLES,
    PAUSE,
    PHASE,
    UNDONE,
    WAIT,
    Meters,
    TrainingWork,
    decision_outcome,
    jobs_by_state,
    longest_wait_s,
    used_cores,
)
from services.allocator.state.state import State
from shared.messages import (
    AllocationDecided,
    JobFinished,
    Message,
    Phases,
    ProgressReported,
    TaskUsage,
)
from shared.runtime.http_server import format_metrics
from tests.allocator.builders import Story, accepted, node, progress, request, resumed
from tests.shared.metric_lint import problems


def first() -> AllocationDecided:
    return Story().hear(node(), accepted()).decided()


def changed(decision: AllocationDecided, tasks: int, generation: int = 2) -> AllocationDecided:
    return replace(
        decision,
        tasks=(decision.tasks * 3)[:tasks],
        generation=generation,
        revision=decision.revision + 1,
    )


@pytest.mark.parametrize(
    ("had", "has", "generation", "what"),
    [
        (None, 3, 1, "start"),
        (0, 3, 2, "start"),
        (3, 0, 2, "pause"),
        (3, 5, 2, "grow"),
        (5, 3, 2, "shrink"),
        (3, 3, 2, "move"),
        (3, 3, 1, "resize"),
    ],
)
def test_a_decision_is_counted_by_its_outcome(
    had: int | None, has: int, generation: int, what: str
) -> None:
    before = None if had is None else changed(first(), had, generation=1)
    assert decision_outcome(changed(first(), has, generation), before) == what


def test_jobs_are_counted_by_state_including_zeros() -> None:
    story = Story().hear(node(), accepted())
    assert jobs_by_state(story.state).series[("pending",)] == 1
    story.decide()
    assert jobs_by_state(story.state).series == {
        ("requested",): 0,
        ("pending",): 0,
        ("starting",): 1,
        ("running",): 0,
        ("scaling",): 0,
        ("resuming",): 0,
    }
    story.hear(resumed(1))
    assert jobs_by_state(story.state).series[("running",)] == 1
    story.hear(
        JobFinished(job="mnist", uid=1, outcome="succeeded"),
        replace(request("other"), request_id="2"),
    )
    assert jobs_by_state(story.state).series[("running",)] == 0
    assert jobs_by_state(story.state).series[("requested",)] == 1


def test_a_pause_is_counted_in_total_and_by_phase() -> None:
    meters = Meters()
    meters.count_fact(resumed(1), State(), 0.0)  # a start is no pause
    meters.count_fact(
        resumed(
            2, pause_s=60.5, phases=Phases(drain_s=0.5, save_s=1.0, restore_s=2.0, first_step_s=0.5)
        ),
        State(),
        0.0,
    )
    told = {measure.family.name: measure.series for measure in meters.measures(State(), 0.0)}

    assert told[PAUSE.name][()].sum == 60.5  # type: ignore[union-attr]
    assert {phase: h.sum for (phase,), h in told[PHASE.name].items()} == {  # type: ignore[union-attr]
        "drain": 0.5,
        "save": 1.0,
        "restore": 2.0,
        "first_step": 0.5,
        "waiting": 56.5,
    }


def test_a_thousand_jobs_make_no_more_series_than_one() -> None:
    few, many = Meters(), Meters()
    for meters, jobs in ((few, 1), (many, 1000)):
        for number in range(jobs):
            name = f"job-{number}"
            asked = replace(
                request(name, policy="nobody-has-heard-of-it"), namespace=f"team-{number}"
            )
            said = replace(first(), job=name, namespace=asked.namespace, request=asked)
            meters.count_decision(said, State(), "weir", 0.1)
            meters.count_fact(resumed(2, job=name, pause_s=1.0), State(), 0.0)
            meters.count_fact(
                JobFinished(job=name, uid=number, outcome="failed", cause=f"of {number}"),
                State(),
                0.0,
            )
    text = format_metrics(many.measures(State(), 0.0))

    assert problems(text) == []
    assert len(text.splitlines()) == len(format_metrics(few.measures(State(), 0.0)).splitlines())
    assert 'weir_allocator_decisions_total{outcome="start",policy="weir"} 1000.0' in text
    assert 'weir_allocator_jobs_finished_total{outcome="failed"} 1000.0' in text


def test_unrelated_messages_count_nothing() -> None:
    meters = Meters()
    before = format_metrics(meters.measures(State(), 0.0))
    meters.count_fact(
        ProgressReported(
            job="mnist", uid=1, step=1, epoch=0, samples=1, total_samples=2, samples_per_second=1
        ),
        State(),
        0.0,
    )
    meters.count_decision(JobFinished(job="mnist", uid=1, outcome="failed"), State(), "weir", None)
    assert format_metrics(meters.measures(State(), 0.0)) == before


class Watched(Story):
    """A story whose facts are counted as the service counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.work = TrainingWork()

    def hear(self, *messages: Message, after_s: float = 1.0) -> Watched:
        for message in messages:
            before = self.state
            super().hear(message, after_s=after_s)
            self.work.count_fact(message, before, self.now)
        return self

    def told(self) -> dict[str, Any]:
        return {
            measure.family.name: measure.series
            for measure in self.work.measures(self.state, self.now)
        }

    def count(self, name: str) -> float:
        return float(self.told()[name][()])


def running(*more: Message) -> Watched:
    story = Watched().hear(node(), accepted())
    story.decide()
    return story.hear(resumed(1), *more)


def used(samples: int, *usage: tuple[str, float]) -> Message:
    by_task = tuple(TaskUsage(task=task, cpu=cpu, memory_gib=0.5) for task, cpu in usage)
    return replace(progress(1, samples, 1000, 50.0), usage=by_task)


def test_repeated_reports_count_examples_once() -> None:
    story = running(progress(1, 100, 1000, 50.0), progress(1, 250, 1000, 50.0, step=2))
    story.hear(progress(1, 250, 1000, 50.0, step=2))

    assert (story.count(EXAMPLES.name), story.count(UNDONE.name)) == (250, 0)


def test_rolled_back_examples_are_counted_as_undone_and_again() -> None:
    story = running(progress(1, 400, 1000, 50.0))
    decided = story.state.jobs["default.mnist"].decided[1]
    story.hear(replace(decided, generation=2, revision=2))
    story.hear(
        resumed(2, samples=300),
        progress(1, 420, 1000, 50.0, step=9),
        progress(2, 500, 1000, 50.0, step=3),
    )

    assert (story.count(EXAMPLES.name), story.count(UNDONE.name)) == (400 + 200, 100)


def test_a_service_that_starts_late_counts_only_new_examples() -> None:
    story = running(progress(1, 400, 1000, 50.0))
    story.work = TrainingWork()
    story.hear(progress(1, 450, 1000, 50.0, step=2))

    assert story.count(EXAMPLES.name) == 50


def test_the_duration_of_a_change_is_from_decision_to_first_update() -> None:
    story = Watched().hear(node(), accepted())
    decided = story.decided()
    story.hear(resumed(1), after_s=7.0)
    story.hear(resumed(1, step=4), after_s=2.0)  # the generation starts again: no change

    (histogram,) = story.told()[CHANGE.name].values()
    assert (sum(histogram.counts), histogram.sum) == (1, story.now - 2.0 - decided.decided_s)


def test_core_metrics_cover_training_tasks_and_their_usage() -> None:
    story = running(
        used(100, ("chief-0", 0.1), ("ps-1", 0.5), ("worker-2", 0.9), ("worker-99", 3.0))
    )
    tasks = {t.name() for t in story.state.jobs["default.mnist"].decided[1].tasks}

    assert tasks == {"chief-0", "ps-1", "worker-2"}  # worker-99 is of no running generation
    assert story.told()[CORES.name] == {("had",): 3.0, ("used",): 1.5}


def test_usage_before_a_change_does_not_count_after_it() -> None:
    story = running(used(100, ("ps-1", 0.5)))
    decided = story.state.jobs["default.mnist"].decided[1]
    story.hear(replace(decided, generation=2, revision=2), resumed(2, samples=100))

    assert used_cores(story.state.jobs["default.mnist"]) == 0.0


def test_the_longest_wait_includes_waiting_jobs_and_unanswered_requests() -> None:
    assert longest_wait_s(State(), 5.0) == 0.0
    story = Watched().hear(accepted())  # no node: it waits
    assert story.told()[WAIT.name] == {(): 0.0}
    assert longest_wait_s(story.state, story.now + 60) == 60
    asked = Watched().hear(request("other"))
    assert longest_wait_s(asked.state, asked.now + 30) == 30
    assert longest_wait_s(running().state, 9e9) == 0.0


def test_a_finished_job_leaves_the_metrics() -> None:
    story = running(progress(1, 400, 1000, 50.0)).hear(
        JobFinished(job="mnist", uid=1, outcome="succeeded")
    )

    assert story.work.applied == {} and story.told()[CORES.name] == {("had",): 0, ("used",): 0}


def test_allocator_metrics_are_well_formed_from_the_start() -> None:
    story = running(progress(1, 100, 1000, 50.0))

    for measures in (
        TrainingWork().measures(State(), 0.0),
        story.work.measures(story.state, story.now),
    ):
        assert problems(format_metrics(measures)) == []
    assert [m.series for m in TrainingWork().measures(State(), 0.0)][:2] == [{(): 0.0}, {(): 0.0}]
