"""Tests of states in which nothing sensible can be decided, under every policy.

Running jobs are kept, and every job has a reason.
"""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from services.allocator.decide import Decisions, decide
from services.allocator.policies.registry import POLICIES
from services.allocator.state.state import apply
from shared.messages import AllocationDecided, Resources
from tests.allocator.builders import (
    AT_ONCE,
    Story,
    accepted,
    node,
    own,
    progress,
    request,
    resumed,
    span,
)

TOTAL = 1_000_000
NOWHERE = Resources()


@pytest.fixture(params=sorted(POLICIES))
def story(request: pytest.FixtureRequest) -> Story:
    """Return a job of one ps and two workers that fills its node and has reported its speed.

    A second job waits.
    """
    wide = {"ps": span(1, most=2), "workers": span(2, most=6)}
    story = Story(replace(AT_ONCE, policy=request.param))
    first = story.hear(node(cpu=4), accepted(asked("mnist", wide))).decided()
    listed = own("mnist", *first.tasks)
    story.hear(node(cpu=4, free=0, own=listed), resumed(1), progress(1, 1000, TOTAL, 100.0))
    story.hear(accepted(asked("second", wide), uid=2))
    return story


def asked(job: str, wide: dict):
    return request(job, **wide)


def keeps(story: Story, after_s: float = 1.0) -> Decisions:
    """Decide; check that the job is not paused by a new generation and that both have a reason."""
    found = decide(story.state, story.now + after_s, story.rules, story.decisions.pending_changes)
    told = [a for a in found.actions if isinstance(a, AllocationDecided) and a.job == "mnist"]
    assert not [a for a in told if a.generation != story.state.jobs[a.key()].running], found.actions
    assert set(found.why) == {"default.mnist", "default.second"} and all(found.why.values())
    return found


def test_without_nodes_running_jobs_are_kept_and_waiting_ones_wait(story: Story) -> None:
    story.hear(node(gone=True))
    assert story.state.nodes == {} and keeps(story).actions == ()


def test_nodes_without_capacity_are_no_room(story: Story) -> None:
    zero = replace(node("n2", cpu=0), allocatable=NOWHERE, free=NOWHERE)
    story.hear(node(gone=True), replace(zero, node="n1"), zero)
    assert keeps(story).actions == ()


def unheard(story: Story, speed: float, loss: float) -> None:
    """Fold a report with numbers that no message can carry."""
    said = replace(progress(1, 2000, TOTAL, speed, step=2), loss=loss)
    story.state = apply(story.state, said, "weir", len(story.log) + 1, story.now)


@pytest.mark.parametrize(
    ("speed", "loss"),
    [(100.0, math.nan), (-5.0, 1.0), (0.0, math.inf), (math.nan, math.nan), (math.inf, 1.0)],
    ids=["NaN loss", "negative speed", "no speed", "NaN speed", "endless speed"],
)
def test_nonsense_reports_cause_no_decision(story: Story, speed: float, loss: float) -> None:
    full = story.state.nodes
    unheard(story, speed, loss)
    assert story.state.nodes == full
    size = story.state.jobs["default.mnist"].active_decision
    story.decide(after_s=1.0)
    assert set(story.decisions.why) == {"default.mnist", "default.second"}
    for action in story.decisions.actions:
        assert isinstance(action, AllocationDecided) and size is not None
        assert {t.serial for t in action.tasks} <= {t.serial for t in size.tasks}, (
            "nothing new where there is no room"
        )


def test_a_job_without_reports_is_kept() -> None:
    for policy in sorted(POLICIES):
        story = Story(replace(AT_ONCE, policy=policy)).hear(node(cpu=3), accepted())
        first = story.decided()
        story.hear(node(cpu=3, free=0, own=own("mnist", *first.tasks)), resumed(1))
        for _ in range(50):
            assert story.decide(after_s=3600.0) == () and story.why()


@pytest.mark.parametrize("jump_s", [-1e9, -5.0])
def test_a_clock_that_jumps_back_causes_no_decision(story: Story, jump_s: float) -> None:
    keeps(story)
    found = keeps(story, after_s=jump_s)
    assert found.wake_s is None or math.isfinite(found.wake_s)


@pytest.mark.parametrize("jump_s", [1e7, 1e12])
def test_a_clock_that_jumps_ahead_equals_elapsed_time(story: Story, jump_s: float) -> None:
    later, far = (decide(story.state, story.now + s, story.rules) for s in (86400.0, jump_s))
    assert far.why == later.why
    assert [a.tasks for a in far.actions] == [a.tasks for a in later.actions]
