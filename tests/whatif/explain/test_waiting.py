"""Tests of what changes without any action: time, generations in flight, reports.

Each is predicted and then observed.
"""

from __future__ import annotations

from msgspec.structs import replace

from services.allocator.settings import Rules
from services.whatif.explain.counterfactual import Reports, Settles, Trains, Waits
from shared.messages import AllocationDecided
from tests.allocator.builders import (
    AT_ONCE,
    Story,
    abandoned,
    accepted,
    exited,
    node,
    own,
    progress,
    request,
    resumed,
    size,
    span,
)
from tests.allocator.test_decide import running
from tests.whatif.explain.asking import kinds, only, why

PATIENT = replace(AT_ONCE, window_s=2.0, max_delay_s=30.0, cooldown_s=10.0)


def until_s(story: Story) -> float:
    """Return the time in s until which nothing but time is in the way."""
    (change,) = only(why(story), "waits").changes
    assert isinstance(change, Waits)
    return change.until_s


def test_stabilisation_and_cooldown_end_at_the_stated_time():
    story = running(Story(PATIENT)).hear(node("n2", cpu=2))
    story.decide()
    due_s = until_s(story)
    assert story.decide(after_s=due_s - story.now - 0.01) == ()
    given = only(why(story), "waits").gives
    grown = story.decided(after_s=0.02)
    assert size(grown) == (given.ps, given.workers) == (2, 2)


def test_a_pending_change_waits_only_for_the_rest_of_its_window():
    story = running(Story(replace(PATIENT, cooldown_s=0.0, window_s=5.0))).hear(node("n2", cpu=2))
    story.decide()
    heard_s = story.now
    story.hear(progress(1, done=1, total=10**6, speed=10), after_s=3.0).decide()
    assert until_s(story) == heard_s + 5.0


def test_capacity_taken_by_another_job_before_the_due_time_is_not_promised():
    """A chief has exited with 0, but its job is not finished.

    It is replaced before the change of the first job has been pending for long enough.
    """
    story = running(Story(replace(PATIENT, cooldown_s=0.0, finish_s=10.0)))
    chief, *others = _second_of_four(story).tasks
    story.hear(replace(exited(chief, 0, "Completed"), job="second", uid=2, pod="second-chief-0"))
    story.hear(node("n2", cpu=4, free=2, own=own("second", *others)), after_s=9.0).decide()
    assert (
        story.why()
        == "will have 2 ps and 2 workers, if still wanted and there is room: free resources exist"
    )
    assert ["waits"] not in kinds(why(story))
    assert story.decided(after_s=1.0).job == "second"
    assert story.decide(after_s=1.0) == () and story.why() == "no node has room for another worker"


def _second_of_four(story: Story) -> AllocationDecided:
    """Start another job on three of the four cores of n2; return its decision."""
    first = story.hear(
        node("n2", cpu=4), accepted(request("second", ps=span(1), workers=span(1)), uid=2)
    ).decided()
    story.hear(
        node("n2", cpu=4, free=1, own=own("second", *first.tasks)), resumed(1, job="second", uid=2)
    )
    return first


def test_after_an_abandonment_the_job_waits_for_the_pause():
    story = running(Story(replace(AT_ONCE, backoff_s=4.0)))
    story.hear(node("n2", cpu=2)).decided()
    story.hear(abandoned(2)).decide()
    assert until_s(story) == story.now + 4.0


def test_a_change_that_is_due_now_is_reported_as_due_now():
    story = running(Story()).hear(node("n2", cpu=2))
    assert until_s(story) == story.now and size(story.decided()) == (2, 2)


def test_a_partial_grant_is_completed_by_the_generation_in_flight():
    story = running(Story())
    story.hear(node("n2", cpu=2)).decided()
    story.hear(node("n3", cpu=1))
    means = only(why(story), "trains")
    assert (
        means.changes == (Trains(job="default.mnist", generation=2),) and means.gives.workers == 3
    )
    story.hear(resumed(2))
    assert size(story.decided()) == (2, 3)


def test_a_job_waits_for_a_missing_report():
    story = running(Story()).hear(progress(1, done=100, total=100_000, speed=10))
    grown = story.hear(node("n2", cpu=2)).decided()
    new = own("mnist", *(task for task in grown.tasks if task.node == "n2"))
    story.hear(node("n2", cpu=2, free=0, own=new), resumed(2), node("n3", cpu=1))
    story.decide()
    found = why(story)
    assert found.why == "waits for a speed report at its present size" and kinds(found) == [
        ["reports"]
    ]
    (change,) = found.means[0].changes
    assert isinstance(change, Reports) and change.generation == 2 and change.samples_per_second > 10
    story.hear(progress(2, done=200, total=100_000, speed=change.samples_per_second))
    assert (
        size(story.decided()) == (2, 3) == (found.means[0].gives.ps, found.means[0].gives.workers)
    )


def test_the_policys_own_waiting_time_is_exact_to_the_second():
    """`weir` lets a job grow once its last pause is less than half of its gain by then."""
    story = running(Story(replace(AT_ONCE, policy="weir")))
    story.hear(progress(1, done=100, total=10**7, speed=10), node("n2", cpu=2))
    story.decided()
    story.hear(resumed(2, pause_s=10.0), progress(2, done=200, total=10**7, speed=20, step=2))
    resumed_s = story.now - 1.0
    story.hear(node("n3", cpu=2))
    grows_s = until_s(story)
    assert grows_s is not None and grows_s > resumed_s + 2 * 10.0
    assert story.decide(after_s=grows_s - story.now - 2.0) == () and story.decide(after_s=3.0) != ()


def test_a_second_waiting_job_gets_the_capacity_left_by_the_first():
    """The first job takes its capacity in the same pass: nothing in flight counts as free."""
    asked = request("second", workers=span(1, most=1), ps=span(1, most=1))
    story = Story().hear(node(cpu=3), accepted(), accepted(asked, uid=2))
    story.decided()
    found = why(story, key="default.second")
    assert found.phase == "Pending" and kinds(found) == [["adds"], ["raises"]], (
        "the first one gives way to a priority"
    )


def test_changes_of_other_jobs_come_first():
    """A long job shrinks for a shorter one, which starts after that."""
    story = _two_of_weir()
    none = "too little cpu: no node has any cpu free"
    assert (
        why(story, key="default.second").why
        == f"waits for room ({none}) for a chief, 1 ps and 1 worker"
    )
    means = only(why(story, key="default.second"), "settles")
    assert means.changes == (Settles(jobs=("default.mnist",)),)
    shrunk = story.decided(after_s=20.0)
    assert shrunk.job == "mnist"
    story.hear(resumed(2), node(cpu=6, free=6 - len(shrunk.tasks), own=own("mnist", *shrunk.tasks)))
    started = story.decided()
    assert started.job == "second" and size(started) == (means.gives.ps, means.gives.workers)


def _two_of_weir() -> Story:
    """Return a long job with all six cores, and a job that waits."""
    long = request(workers=span(4, 1, 4), ps=span(1), epochs=50)
    story = Story(Rules(policy="weir")).hear(node(cpu=6), accepted(long))
    first = story.decided()
    story.hear(node(cpu=6, free=0, own=own("mnist", *first.tasks)), resumed(1, pause_s=0.1))
    story.hear(progress(1, done=100, total=10**8, speed=10))
    story.hear(
        accepted(request("second", ps=span(1), workers=span(1)), uid=2), after_s=500.0
    ).decide()
    return story
