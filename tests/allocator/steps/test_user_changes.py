"""Tests of changes by the user: suspension, resumption, new bounds and a new priority."""

from __future__ import annotations

from typing import Any

import pytest

from services.allocator.admission.requests import answer_change, unanswered_changes
from services.allocator.job_views import job_view
from services.allocator.state.job import Job
from services.allocator.steps.finish import SUSPENDED
from shared.messages import (
    AllocationDecided,
    Bounds,
    CancelRequested,
    ChangeRejected,
    ChangeRequested,
    JobChanged,
    Message,
    ResumeRequested,
    SuspendRequested,
)
from tests.allocator.builders import (
    AT_ONCE,
    Story,
    accepted,
    exited,
    node,
    own,
    request,
    resumed,
    size,
    span,
)

JOB = "default.mnist"
ELASTIC: dict[str, Any] = {"ps": span(1, most=2), "workers": span(1, most=4)}


def job(story: Story) -> Job:
    return story.state.jobs[JOB]


def ask(story: Story, change: Message) -> JobChanged | ChangeRejected:
    """Fold a change and the answer to it, as the service does; return the answer."""
    story.hear(change)
    (sequence,) = unanswered_changes(story.state)
    answer = answer_change(story.state, sequence, story.rules)
    story.hear(answer)
    assert story.state.changes == {}
    return answer


def running(cpu: float = 8, **fields: Any) -> Story:
    """Return a job that trains with all that it may have."""
    story = Story().hear(node(cpu=cpu), accepted(request(**(ELASTIC | fields))))
    given = story.decided()
    story.hear(
        node(cpu=cpu, free=cpu - len(given.tasks), own=own("mnist", *given.tasks)), resumed(1)
    )
    for more in [*story.decide()]:
        assert isinstance(more, AllocationDecided)
        listed = node(cpu=cpu, free=cpu - len(more.tasks), own=own("mnist", *more.tasks))
        story.hear(listed, resumed(more.generation))
    return story


def test_a_suspended_job_frees_its_capacity_until_it_is_resumed() -> None:
    story = running()

    assert isinstance(ask(story, SuspendRequested(job="mnist")), JobChanged)
    taken = story.decided()
    assert (taken.tasks, taken.batch) == ((), 0) and "suspended by its user: saves" in taken.reason
    story.hear(node(cpu=8))

    assert story.decide(after_s=7_200.0) == () and story.why() == SUSPENDED
    assert job_view(job(story)).shown_phase == "Suspended"
    assert ask(story, ResumeRequested(job="mnist")) == JobChanged(
        job="mnist",
        uid=1,
        answers=len(story.log) - 1,
        priority=0,
        ps=span(1, most=2),
        workers=span(1, most=4),
    )
    again = story.decided()
    assert again.tasks and again.generation == taken.generation + 1
    assert job(story).waiting_since_s == story.now, "it waits as of now"


def test_a_suspended_waiting_job_has_no_reservation() -> None:
    story = Story().hear(node(cpu=1), accepted(request(priority=5)))
    assert story.decide() == ()
    ask(story, SuspendRequested(job="mnist"))

    assert story.hear(node(cpu=8)).decide(after_s=AT_ONCE.reserve_after_s) == ()
    assert story.why() == SUSPENDED
    ask(story, ResumeRequested(job="mnist"))
    assert story.decided().tasks


def test_the_capacity_of_a_suspended_job_goes_to_others() -> None:
    story = running(cpu=5)
    story.hear(accepted(request("other"), uid=2))
    ask(story, SuspendRequested(job="mnist"))
    story.decide()
    story.hear(node(cpu=5))

    (given,) = story.decide()
    assert isinstance(given, AllocationDecided) and given.job == "other" and given.tasks


def test_a_resizing_job_is_suspended_after_its_hand_over() -> None:
    story = Story().hear(node(cpu=8), accepted(request()))
    first = story.decided()
    ask(story, SuspendRequested(job="mnist"))

    assert story.decide() == () and "in flight" in story.why()
    story.hear(resumed(first.generation))
    assert story.decided().tasks == ()


def test_a_job_that_lost_a_task_is_suspended_and_not_repaired() -> None:
    story = running()
    ask(story, SuspendRequested(job="mnist"))
    (worker, *_) = [task for task in job(story).active_decision.tasks if task.role == "worker"]
    story.hear(exited(worker, None, "NodeLost", generation=job(story).generation))

    assert story.decided().tasks == ()


def test_a_suspended_job_can_be_cancelled() -> None:
    story = running()
    ask(story, SuspendRequested(job="mnist"))
    story.decided()

    (over,) = story.hear(CancelRequested(job="mnist")).decide()
    assert over.outcome == "cancelled"


def test_a_job_above_its_new_bounds_shrinks_to_its_oldest_tasks() -> None:
    story = running()
    had = job(story).active_decision
    assert size(had) == (2, 4)

    answer = ask(story, ChangeRequested(job="mnist", workers=Bounds(min=1, max=2)))
    assert isinstance(answer, JobChanged) and (answer.workers, answer.ps) == (
        span(1, most=2),
        span(1, most=2),
    )
    shrunk = story.decided()
    assert size(shrunk) == (2, 2) and {t.serial for t in shrunk.tasks} < {
        t.serial for t in had.tasks
    }
    assert shrunk.request.workers.max == 2 and "its bounds were changed" in shrunk.reason


def test_a_job_below_its_new_bounds_grows_if_there_is_room() -> None:
    story = running(ps=span(1), workers=span(1, most=1))

    ask(story, ChangeRequested(job="mnist", workers=Bounds(min=3, max=4)))
    grown = story.decided()
    assert size(grown) == (1, 3) and grown.request.workers.start == 1, (
        "what the learning rate was chosen for"
    )


def test_a_waiting_job_starts_within_its_new_bounds() -> None:
    story = Story().hear(node(cpu=3.5), accepted(request(ps=span(1), workers=span(4, least=4))))
    assert story.decide() == ()

    ask(story, ChangeRequested(job="mnist", workers=Bounds(min=1, max=1)))
    assert size(story.decided()) == (1, 1)


def test_a_new_priority_applies_in_the_next_pass() -> None:
    story = Story().hear(accepted(request("one")), accepted(request("two"), uid=2))
    story.decide()
    ask(story, ChangeRequested(job="two", priority=7))

    given = story.hear(node(cpu=3)).decide()
    assert [each.job for each in given] == ["two"] and given[0].request.priority == 7


@pytest.mark.parametrize("suspended", [True, False])
def test_a_replay_and_a_snapshot_have_the_same_changes(suspended: bool) -> None:
    story = running()
    ask(story, ChangeRequested(job="mnist", priority=3, workers=Bounds(min=1, max=2)))
    ask(story, SuspendRequested(job="mnist"))
    if not suspended:
        ask(story, ResumeRequested(job="mnist"))
    story.hear(SuspendRequested(job="mnist"))

    assert story.replayed() == story.facts
    changed = story.replayed().jobs[JOB]
    assert (changed.request.priority, changed.suspended_by_user) == (3, suspended)


# ---------------------------------------------------------------- refused changes


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            ChangeRequested(job="mnist", priority=2_000_000_000),
            "priority: 2000000000 is more than 1000000000",
        ),
        (
            ChangeRequested(job="mnist", workers=Bounds(min=3, max=2)),
            "workers: min 3 <= start 3 <= max 2",
        ),
        (
            ChangeRequested(job="mnist", workers=Bounds(min=1, max=1_001)),
            "workers.max: 1001 is more than 1,000 tasks",
        ),
        (ChangeRequested(job="mnist", workers=Bounds(min=1, max=300)), "credentials allow"),
        (ChangeRequested(job="mnist"), "priority, ps or workers: one of them is required"),
        (ResumeRequested(job="mnist"), "is not suspended by its user"),
        (SuspendRequested(job="other"), "job: 'other' in namespace 'default' does not exist"),
    ],
)
def test_an_invalid_change_is_refused_with_its_reason(change: Message, reason: str) -> None:
    story = running()
    before = story.state.jobs

    answer = ask(story, change)

    assert isinstance(answer, ChangeRejected) and reason in answer.reasons[0]
    assert story.state.jobs == before


def test_a_waiting_job_may_get_any_valid_bounds() -> None:
    story = Story().hear(accepted(request()))

    assert isinstance(
        ask(story, ChangeRequested(job="mnist", workers=Bounds(min=1, max=300))), JobChanged
    )


def test_changes_are_answered_in_order_after_their_request() -> None:
    story = Story().hear(request(), SuspendRequested(job="mnist"), ResumeRequested(job="mnist"))

    assert unanswered_changes(story.state) == {}
    story.hear(accepted(request()))
    assert list(unanswered_changes(story.state)) == [2]
    story.hear(answer_change(story.state, 2, story.rules))
    assert list(unanswered_changes(story.state)) == [3] and job(story).suspended_by_user
