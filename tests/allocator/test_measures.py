"""What the allocator tells in numbers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from services.allocator.measures import PAUSE, PHASE, Meters, outcome, standing
from services.allocator.state import State
from shared.messages import AllocationDecided, JobFinished, Phases, ProgressReported
from shared.runtime.metrics import format_metrics
from tests.allocator.builders import Story, accepted, node, request, resumed
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
def test_a_decision_is_named_by_what_it_does(
    had: int | None, has: int, generation: int, what: str
) -> None:
    before = None if had is None else changed(first(), had, generation=1)
    assert outcome(changed(first(), has, generation), before) == what


def test_jobs_are_counted_by_state_and_a_state_without_any_is_told() -> None:
    story = Story().hear(node(), accepted())
    assert standing(story.state).series[("pending",)] == 1
    story.decide()
    assert standing(story.state).series == {
        ("requested",): 0,
        ("pending",): 0,
        ("starting",): 1,
        ("running",): 0,
        ("scaling",): 0,
        ("resuming",): 0,
    }
    story.hear(resumed(1))
    assert standing(story.state).series[("running",)] == 1
    story.hear(
        JobFinished(job="mnist", uid=1, outcome="succeeded"),
        replace(request("other"), request_id="2"),
    )
    assert standing(story.state).series[("running",)] == 0
    assert standing(story.state).series[("requested",)] == 1


def test_a_pause_is_counted_whole_and_by_phase() -> None:
    meters = Meters()
    meters.heard(resumed(1), State(), 0.0)  # a start is no pause
    meters.heard(
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
            meters.said(said, State(), "weir", 0.1)
            meters.heard(resumed(2, job=name, pause_s=1.0), State(), 0.0)
            meters.heard(
                JobFinished(job=name, uid=number, outcome="failed", cause=f"of {number}"),
                State(),
                0.0,
            )
    text = format_metrics(many.measures(State(), 0.0))

    assert problems(text) == []
    assert len(text.splitlines()) == len(format_metrics(few.measures(State(), 0.0)).splitlines())
    assert 'weir_allocator_decisions_total{policy="weir",outcome="start"} 1000.0' in text
    assert 'weir_allocator_jobs_finished_total{outcome="failed"} 1000.0' in text


def test_what_says_nothing_of_these_counts_nothing() -> None:
    meters = Meters()
    before = format_metrics(meters.measures(State(), 0.0))
    meters.heard(
        ProgressReported(
            job="mnist", uid=1, step=1, epoch=0, samples=1, total_samples=2, samples_per_second=1
        ),
        State(),
        0.0,
    )
    meters.said(JobFinished(job="mnist", uid=1, outcome="failed"), State(), "weir", None)
    assert format_metrics(meters.measures(State(), 0.0)) == before
