"""A decision on which nobody acts is noticed within a minute, and repeated a bounded number of times."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.allocator.decide import decide
from services.allocator.rules import Rules
from services.allocator.state import State, apply
from services.allocator.unanswered import count_unanswered
from shared.messages import AllocationDecided, ClusterSpecPublished, Message, TaskReady, TaskStarted
from shared.subjects import FACTS
from tests.allocator.builders import AT_ONCE, UID, Story, abandoned, accepted, exited, node, own, resumed, tasks
from tests.flow.histories import History, merges, steps

RULES = replace(AT_ONCE, policy="static")


def decided() -> tuple[Story, AllocationDecided]:
    """A job's first decision, which is heard at once."""
    story = Story(RULES).hear(node(), accepted())
    return story, story.decided()


def started(decision: AllocationDecided) -> TaskStarted:
    (ps,) = tasks(decision, "ps")
    about = {"job": "mnist", "uid": UID, "generation": 1, "pod": ps.pod("mnist"), "pod_uid": "u", "role": "ps"}
    return TaskStarted(**about, serial=ps.serial, node=ps.node)


def ready(decision: AllocationDecided) -> TaskReady:
    said = started(decision)
    about = {name: getattr(said, name) for name in said.__struct_fields__}
    return TaskReady(**about, host="h", ports=(1, 2))


def spec(decision: AllocationDecided) -> ClusterSpecPublished:
    about = {"job": "mnist", "uid": UID, "generation": decision.generation, "revision": decision.revision}
    return ClusterSpecPublished(**about, request=decision.request, tasks=(), batch=1)


def unschedulable(decision: AllocationDecided) -> Message:
    return exited(decision.tasks[0], code=None, reason="Unschedulable")


def wait(story: Story) -> tuple[Message, ...]:
    """Until the time at which the allocator looks again."""
    wake_s = story.decisions.wake_s
    assert wake_s is not None and wake_s > story.now
    return story.decide(after_s=wake_s - story.now)


def test_a_decision_that_nobody_acts_on_is_repeated_within_a_minute_with_the_reason() -> None:
    story, first = decided()
    assert story.decide() == ()

    (again,) = wait(story)

    assert isinstance(again, AllocationDecided) and story.now - first.decided_s <= 60
    assert (again.generation, again.tasks, again.revision) == (first.generation, first.tasks, first.revision + 1)
    assert again.reason == (f"repeated (1 of 6), not acted on by the launcher within 45 s: {first.reason}")
    assert again.decided_s == first.decided_s, "what a change took is counted from the first"
    assert count_unanswered(story.state.jobs) == 1


def test_repetitions_come_ever_later_and_end_and_the_job_is_still_looked_at() -> None:
    story, first = decided()
    story.decide()
    times = []
    for _ in range(RULES.repeat_max):
        (again,) = wait(story)
        times.append(round(story.now - first.decided_s))
        story.decide()
    assert times == [45, 135, 315, 675, 1395, 2835]
    assert again.reason == f"repeated (6 of 6), not acted on by the launcher within 1440 s: {first.reason}"
    for _ in range(5):
        assert wait(story) == ()
    assert "the launcher does not act on it" in story.why()


@pytest.mark.parametrize("acts", [started, ready, spec, unschedulable])
def test_a_decision_that_the_launcher_acts_on_is_not_repeated_however_long_it_takes(
    acts: Callable[[AllocationDecided], Message],
) -> None:
    story, first = decided()
    story.hear(acts(first))
    for _ in range(20):
        actions = story.decide(after_s=40)
        assert not [a for a in actions if "repeated" in a.reason]


def test_pods_that_exist_are_enough_though_none_has_started() -> None:
    story, first = decided()
    story.hear(node(free=5, own=own("mnist", *first.tasks)))
    assert story.decide() == ()
    for _ in range(20):
        assert wait(story) == ()


def test_the_pods_of_the_generation_that_runs_do_not_count() -> None:
    story, first = decided()
    story.hear(spec(first), resumed(1), node(free=5, own=own("mnist", *first.tasks)))
    change = replace(first, generation=2, revision=2, batch=64)
    story.hear(change)
    story.decide()

    (again,) = wait(story)

    assert (again.generation, again.revision, again.batch) == (2, 3, 64)


def test_a_new_decision_is_counted_from_its_own_time_and_number() -> None:
    story, _ = decided()
    story.decide()
    wait(story)
    story.hear(abandoned(1))

    second = story.decided(after_s=1)

    assert (second.generation, story.state.jobs["default.mnist"].repeats) == (2, 0)
    assert count_unanswered(story.state.jobs) == 0
    assert story.decide() == ()
    (again,) = wait(story)
    assert again.reason.startswith("repeated (1 of 6)") and again.generation == 2


def test_nobody_looks_where_repetitions_are_switched_off() -> None:
    story, _ = decided()
    story.rules = replace(RULES, repeat_max=0)

    assert story.decide(after_s=1e6) == () and story.decisions.wake_s is None


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), steps, st.sampled_from([0.0, 10.0, 1e3, 1e6]))
def test_no_job_stays_in_flight_without_a_time_to_look_again(data: st.DataObject, drawn, later_s: float) -> None:
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
        if job.coming is not None and key not in decided_keys:
            assert decisions.wake_s is not None and 100.0 + later_s < decisions.wake_s < math.inf
