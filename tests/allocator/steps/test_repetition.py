"""Tests of repetition: a decision is repeated, with backoff, if the launcher does not act on it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.allocator.decide import decide
from services.allocator.settings import Rules
from services.allocator.state.state import State, apply
from services.allocator.steps.repetition import count_unanswered
from shared.bus.subjects import FACTS
from shared.messages import (
    AllocationDecided,
    ClusterSpecPublished,
    JobFinished,
    Message,
    Resources,
    TaskReady,
    TaskStarted,
)
from tests.allocator.builders import (
    AT_ONCE,
    UID,
    Story,
    abandoned,
    accepted,
    exited,
    node,
    own,
    progress,
    request,
    resumed,
    span,
    tasks,
)
from tests.flow.histories import History, merges, steps

RULES = replace(AT_ONCE, policy="static")


def decided() -> tuple[Story, AllocationDecided]:
    """Return a job and its first decision, which is folded at once."""
    story = Story(RULES).hear(node(), accepted())
    return story, story.decided()


def started(decision: AllocationDecided) -> TaskStarted:
    (ps,) = tasks(decision, "ps")
    about = {
        "job": "mnist",
        "uid": UID,
        "generation": 1,
        "pod": ps.pod("mnist"),
        "pod_uid": "u",
        "role": "ps",
    }
    return TaskStarted(**about, serial=ps.serial, node=ps.node)


def ready(decision: AllocationDecided) -> TaskReady:
    said = started(decision)
    about = {name: getattr(said, name) for name in said.__struct_fields__}
    return TaskReady(**about, host="h", ports=(1, 2))


def spec(decision: AllocationDecided) -> ClusterSpecPublished:
    about = {
        "job": "mnist",
        "uid": UID,
        "generation": decision.generation,
        "revision": decision.revision,
    }
    return ClusterSpecPublished(**about, request=decision.request, tasks=(), batch=1)


def unschedulable(decision: AllocationDecided) -> Message:
    return exited(decision.tasks[0], code=None, reason="Unschedulable")


def wait(story: Story) -> tuple[Message, ...]:
    """Decide at the time at which the allocator wakes."""
    wake_s = story.decisions.wake_s
    assert wake_s is not None and wake_s > story.now
    return story.decide(after_s=wake_s - story.now)


def repetition(story: Story) -> AllocationDecided:
    """Return the next decision; the allocator may wake several times before it."""
    for _ in range(10):
        if actions := wait(story):
            (again,) = actions
            assert isinstance(again, AllocationDecided)
            return again
    raise AssertionError(f"nothing was decided until {story.now}")


def test_an_unanswered_decision_is_repeated_within_a_minute() -> None:
    story, first = decided()
    assert story.decide() == ()

    (again,) = wait(story)

    assert isinstance(again, AllocationDecided) and story.now - first.decided_s <= 60
    assert (again.generation, again.tasks, again.revision) == (
        first.generation,
        first.tasks,
        first.revision + 1,
    )
    assert (
        again.reason
        == f"repeated (1 of 6), not acted on by the launcher within 45 s: {first.reason}"
    )
    assert again.decided_s == first.decided_s, "what a change took is counted from the first"
    assert count_unanswered(story.state.jobs, story.state.nodes) == 1


def test_repetitions_back_off_and_never_end() -> None:
    story, first = decided()
    story.decide()
    times = []
    for _ in range(RULES.repeat_max):
        (again,) = wait(story)
        times.append(round(story.now - first.decided_s))
        story.decide()
    assert times == [45, 135, 315, 675, 1395, 2835]
    assert (
        again.reason
        == f"repeated (6 of 6), not acted on by the launcher within 1440 s: {first.reason}"
    )
    assert "the launcher does not act on it" in story.why()
    for number in range(7, 12):
        before = story.now
        (again,) = wait(story)
        assert story.now - before == 2880 and again.generation == first.generation
        assert (
            again.reason
            == f"repeated ({number} times), not acted on by the launcher within 2880 s:"
            f" {first.reason}"
        )
        story.decide()


def test_the_backoff_of_repetitions_is_bounded() -> None:
    story, _ = decided()
    story.rules = replace(RULES, repeat_s=1.0, repeat_max=2, backoff_max_s=300.0)
    for wait_s in (1, 2, 300, 300):
        story.decide()
        before = story.now
        assert len(wait(story)) == 1 and story.now - before == wait_s


@pytest.mark.parametrize("acts", [started, ready, spec, unschedulable])
def test_a_decision_that_the_launcher_acts_on_is_not_repeated(
    acts: Callable[[AllocationDecided], Message],
) -> None:
    story, first = decided()
    story.hear(acts(first))
    for _ in range(20):
        actions = story.decide(after_s=40)
        assert not [a for a in actions if "repeated" in a.reason]


def test_existing_pods_prove_that_the_launcher_acts() -> None:
    story, first = decided()
    story.hear(node(free=5, own=own("mnist", *first.tasks)))
    assert story.decide() == ()
    for _ in range(20):
        assert wait(story) == ()


def test_pods_of_the_running_generation_prove_nothing() -> None:
    story, first = decided()
    story.hear(spec(first), resumed(1), node(free=5, own=own("mnist", *first.tasks)))
    change = replace(first, generation=2, revision=2, batch=64)
    story.hear(change)
    story.decide()

    (again,) = wait(story)

    assert (again.generation, again.revision, again.batch) == (2, 3, 64)


def test_repetitions_restart_with_a_new_decision() -> None:
    story, _ = decided()
    story.decide()
    wait(story)
    story.hear(abandoned(1))

    second = story.decided(after_s=1)

    assert (second.generation, story.state.jobs["default.mnist"].repeats) == (2, 0)
    assert count_unanswered(story.state.jobs, story.state.nodes) == 0
    assert story.decide() == ()
    (again,) = wait(story)
    assert again.reason.startswith("repeated (1 of 6)") and again.generation == 2


def suspended_story() -> tuple[Story, AllocationDecided, AllocationDecided]:
    """Return a job suspended for one of higher priority, its first decision and the suspension."""
    story = Story(RULES).hear(
        node(cpu=7), accepted(request(ps=span(2, most=2), workers=span(4, most=4)))
    )
    first = story.decided()
    story.hear(
        node(cpu=7, free=0, own=own("mnist", *first.tasks)),
        resumed(1),
        progress(1, 1000, 1_000_000, 100.0),
    )
    story.hear(accepted(request("high", workers=span(5, least=5), priority=7), uid=2))
    suspension = story.decided()
    assert (suspension.job, suspension.tasks) == ("mnist", ())
    return story, first, suspension


def test_a_missed_suspension_is_repeated_while_pods_run() -> None:
    story, _, suspension = suspended_story()
    since_s = story.state.jobs["default.mnist"].suspended_s
    assert story.decide() == () and count_unanswered(story.state.jobs, story.state.nodes) == 0
    times = []
    for number in range(1, 10):
        story.hear(progress(1, 1000 + number, 1_000_000, 100.0, step=1 + number), after_s=0.0)
        again = repetition(story)
        assert (again.tasks, again.generation) == ((), suspension.generation)
        assert again.revision == suspension.revision + number and again.reason.endswith(
            f": {suspension.reason}"
        )
        times.append(round(story.now - since_s))
        story.decide()
    assert times == [45, 135, 315, 675, 1395, 2835, 5715, 8595, 11475]
    job = story.state.jobs["default.mnist"]
    assert job.suspended_s == since_s, "it keeps its place"
    assert count_unanswered(story.state.jobs, story.state.nodes) == 1

    story.hear(node(cpu=7))
    (start,) = story.decide()
    assert start.job == "high" and count_unanswered(story.state.jobs, story.state.nodes) == 0


def test_a_suspension_is_not_repeated_while_pods_end() -> None:
    story, first, _ = suspended_story()
    ending = [replace(pod, terminating=True) for pod in own("mnist", *first.tasks)]
    story.hear(node(cpu=7, free=0, own=tuple(ending)))
    for _ in range(20):
        assert not [a for a in story.decide(after_s=40) if "repeated" in a.reason]


def test_a_failed_restart_is_suspended_again_while_pods_run() -> None:
    """For the launcher the abandoned generation is the newest, so it ignores one before it."""
    story, first, suspension = suspended_story()
    story.hear(
        JobFinished(job="high", uid=2, outcome="cancelled"),
        node(cpu=14, free=7, own=own("mnist", *first.tasks)),
    )
    start = story.decided(after_s=100)
    assert start.generation == suspension.generation + 1
    story.rules = replace(RULES, backoff_s=1000, backoff_max_s=1000)
    story.hear(abandoned(start.generation))

    assert story.decide() == ()
    again = repetition(story)
    assert (again.tasks, again.generation) == ((), start.generation + 1)


def resized_story() -> tuple[Story, AllocationDecided]:
    """Return a job and a change in place, by which each worker gets one more core."""
    story, first = decided()
    story.hear(resumed(1), node(free=5, own=own("mnist", *first.tasks)))
    larger = [
        replace(t, resources=Resources(cpu=2, memory_gib=1)) if t.role == "worker" else t
        for t in first.tasks
    ]
    change = replace(first, revision=2, tasks=tuple(larger), reason="more cores")
    story.hear(change)
    assert story.state.jobs["default.mnist"].pending_generation is None
    return story, change


def test_a_missed_resize_in_place_is_repeated() -> None:
    story, change = resized_story()
    story.decide()
    for number in range(1, 9):
        (again,) = wait(story)
        assert (again.generation, again.tasks, again.revision) == (1, change.tasks, 2 + number)
        assert again.reason.endswith(": more cores")
        assert count_unanswered(story.state.jobs, story.state.nodes) == 1
        story.decide()

    story.hear(node(free=4, own=own("mnist", *change.tasks)))
    assert count_unanswered(story.state.jobs, story.state.nodes) == 0
    for _ in range(20):
        assert story.decide(after_s=1000) == ()


def test_the_last_of_two_resizes_in_place_is_repeated() -> None:
    for acted in (False, True):
        story, change = resized_story()
        three = Resources(cpu=3, memory_gib=1)
        largest = [
            replace(task, resources=three) if task.role == "worker" else task
            for task in change.tasks
        ]
        story.hear(replace(change, revision=3, tasks=tuple(largest)))
        if acted:
            story.hear(node(free=4, own=own("mnist", *change.tasks)))
        story.decide()
        (again,) = wait(story)
        assert (again.tasks, again.revision) == (tuple(largest), 4)


def test_pods_enlarged_by_others_are_no_missed_resize() -> None:
    story, change = resized_story()
    sidecars = [
        replace(pod, resources=Resources(cpu=pod.resources.cpu + 0.1))
        for pod in own("mnist", *change.tasks)
    ]
    story.hear(node(free=4, own=tuple(sidecars)))
    for _ in range(5):
        assert story.decide(after_s=100) == ()


def test_repetitions_can_be_disabled() -> None:
    story, _ = decided()
    story.rules = replace(RULES, repeat_max=0)

    assert story.decide(after_s=1e6) == () and story.decisions.wake_s is None


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), steps, st.sampled_from([0.0, 10.0, 1e3, 1e6]))
def test_every_job_in_flight_has_a_wake_time(data: st.DataObject, drawn, later_s: float) -> None:
    history = History()
    for kind, choice in drawn:
        history.act(kind, choice)
    state, rules = State(), Rules(policy="static")
    for stream, index in data.draw(merges(history)):
        state = apply(state, history.streams[stream][index], stream, index + 1, float(index))
    for node_ in data.draw(st.sampled_from([(), (node(),), (node(cpu=0.1),)])):
        state = apply(state, node_, FACTS, 10_000, 1.0)
    decisions = decide(state, 100.0 + later_s, rules)
    decided_keys = {action.key() for action in decisions.actions}
    for key, job in state.jobs.items():
        if job.pending_generation is not None and key not in decided_keys:
            assert decisions.wake_s is not None and 100.0 + later_s < decisions.wake_s < math.inf
