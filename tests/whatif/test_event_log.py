"""Tests of a log that is folded up to a moment.

The pending changes are those of the allocator, and causes are known.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from services.allocator.state.state import State
from services.whatif.event_log import EVENTS_KEPT, History, LogEntry
from shared.messages import JobRejected, ProgressReported, TaskReady
from tests.allocator.builders import (
    AT_ONCE,
    Story,
    accepted,
    exited,
    node,
    progress,
    request,
    tasks,
)
from tests.allocator.test_decide import running
from tests.whatif.explain.asking import KEY, moment

HELD_BACK = replace(AT_ONCE, window_s=4.0, max_delay_s=30.0, cooldown_s=500.0)


@pytest.mark.parametrize(
    "gaps", [(1.0, 1.0, 1.0), (3.0, 3.5, 3.9), (20.0, 9.0, 1.0), (60.0, 60.0, 3.0)]
)
def test_pending_changes_and_their_start_times_are_rebuilt(gaps: tuple[float, ...]) -> None:
    story = running(Story(HELD_BACK))
    for cpu, gap in zip((2, 3, 3), gaps, strict=True):
        story.hear(node("n2", cpu=cpu), after_s=gap)
        story.decide()
        held, live = moment(story).wishes[KEY], story.decisions.pending_changes[KEY]
        window_s, delay_s = story.rules.window_s, story.rules.max_delay_s
        assert (
            held.since_s == live.since_s
            or story.now - live.since_s > window_s < story.now - held.since_s
        )
        assert (
            held.first_s == live.first_s
            or story.now - live.first_s >= delay_s <= story.now - held.first_s
        )


def test_the_state_rebuilt_from_the_log_is_complete() -> None:
    story = running(Story(HELD_BACK))
    for n in range(9):
        story.hear(progress(1, done=n + 1, total=100, speed=10, step=n + 1), after_s=11.0)
    assert moment(story).state == story.facts


def test_a_burst_of_messages_gives_at_most_one_decision() -> None:
    story = running(Story(HELD_BACK))
    before = len(moment(story).decided)
    for n in range(2000):
        story.hear(progress(1, done=n + 1, total=10**6, speed=10, step=n + 1), after_s=0.001)
    assert moment(story).state == story.facts
    assert len(moment(story).decided) <= before + 1


def test_a_replaced_task_is_the_cause_of_its_replacement() -> None:
    story = running(Story(), cpu=12)
    worker = tasks(story.state.jobs[KEY].active_decision, "worker")[0]
    story.hear(exited(worker)).decided()
    event = moment(story).decided[2].event
    assert event and event.message == story.log[-2][0]


def test_a_new_job_with_the_same_name_starts_without_history() -> None:
    history = History(KEY, AT_ONCE)
    no = JobRejected(job="mnist", uid=1, reasons=("no",))
    history.hear(LogEntry(1.0, "weir", 1, no))
    assert history.moment(2.0).rejected == no
    history.hear(LogEntry(2.0, "weir", 2, accepted(uid=2)))
    assert history.moment(2.0).rejected is None


def test_a_message_that_the_allocator_does_not_receive_is_no_cause() -> None:
    story = Story().hear(node(), accepted())
    chief = TaskReady(
        job="mnist",
        uid=1,
        pod="p",
        pod_uid="u",
        role="chief",
        serial=0,
        node="n1",
        host="h",
        ports=(1, 2),
    )
    story.log.append((chief, "weir", 3, story.now))
    assert moment(story).state.cause == accepted().id()


def test_a_snapshot_replaces_a_purged_beginning() -> None:
    story = Story().hear(node(), accepted(request(priority=7)))
    history = History(KEY, AT_ONCE, story.state)
    late = node("n2")
    history.hear(LogEntry(story.now + 1.0, "weir", 3, late))
    there = history.moment(story.now + 1.0).state
    assert there.jobs[KEY].request.priority == 7 and set(there.nodes) == {"n1", "n2"}


def test_the_number_of_kept_events_is_bounded() -> None:
    history = History(KEY, AT_ONCE, State())
    report = progress(1, done=1, total=2, speed=1)
    for step in range(EVENTS_KEPT + 10):
        said: ProgressReported = replace(report, step=step)
        history._note(LogEntry(1.0, "weir", step + 1, said))
    assert len(history.events) == EVENTS_KEPT
