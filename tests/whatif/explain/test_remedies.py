"""Tests of remedies: a story continues with just the remedy, and the job gets more."""

from __future__ import annotations

from msgspec.structs import replace

from services.allocator.policies.contract import Size
from services.whatif.explain.counterfactual import Adds, Frees, Opens, Raises, Widens
from shared.messages import CapacityChanged, Resources, RoleResources
from tests.allocator.builders import (
    AT_ONCE,
    ONE_CORE,
    Story,
    accepted,
    node,
    own,
    progress,
    request,
    resumed,
    size,
    span,
)
from tests.allocator.test_decide import running
from tests.whatif.explain.asking import done, given, kinds, only, why


def crowded(free: float = 2.0, least: float = 1.0) -> CapacityChanged:
    """Return a node of 8 cores and 64 GiB with `free` cores and 32 GiB free.

    Pods of other users have the rest.
    """
    seen = node(cpu=8, free=free)
    return replace(seen, free=replace(seen.free, memory_gib=32.0))


def test_the_remedy_names_the_least_free_capacity_for_a_start():
    story = Story().hear(crowded(free=1.75), accepted())
    assert story.decide() == ()
    means = only(why(story), "frees")
    assert means.changes == (Frees(node="n1", more=Resources(cpu=1.25)),) and (
        means.gives.ps,
        means.gives.workers,
    ) == (
        1,
        1,
    )
    assert story.hear(crowded(free=2.99)).decide() == ()
    assert size(story.hear(crowded(free=3.0)).decided()) == (1, 1)


def test_remedies_cover_memory_and_devices():
    worker = Resources(cpu=1, memory_gib=40, gpu=1)
    seen = replace(crowded(free=8), allocatable=Resources(cpu=8, memory_gib=64, gpu=2))
    asked = request(resources=RoleResources(chief=ONE_CORE, ps=ONE_CORE, worker=worker))
    story = Story().hear(seen, accepted(asked))
    (change,) = only(why(story), "frees").changes
    assert change == Frees(node="n1", more=Resources(cpu=0.0, memory_gib=10.0, gpu=1))


def test_a_running_job_gets_the_missing_capacity_and_its_node():
    first = running(Story())
    story = first.hear(replace(node("n2", cpu=4, free=0.5), free=Resources(cpu=0.5, memory_gib=8)))
    (change,) = only(why(story), "frees").changes
    assert change == Frees(node="n2", more=Resources(cpu=1.5))  # one ps and one worker more
    assert story.hear(node("n2", cpu=4, free=1.9)).decide() == ()
    assert size(story.hear(node("n2", cpu=4, free=2)).decided()) == (2, 2)


def test_without_room_on_any_node_the_remedy_adds_nodes_of_an_existing_shape():
    story = Story().hear(node(cpu=1), accepted(request(workers=span(4, 4))))
    (change,) = only(why(story), "adds").changes
    assert change == Adds(nodes=5, shape=Resources(cpu=1, memory_gib=64), like="n1")
    more = [node(f"m{n}", cpu=1) for n in range(5)]
    assert story.hear(*more[:4]).decide() == () and size(story.hear(more[4]).decided()) == (1, 4)


def test_if_no_node_is_large_enough_the_remedy_is_a_larger_node():
    big = RoleResources(chief=ONE_CORE, ps=ONE_CORE, worker=Resources(cpu=4, memory_gib=1))
    story = Story().hear(node(cpu=2), accepted(request(resources=big)))
    story.decide()
    assert story.why().startswith("no node is large enough for a worker")
    (change,) = only(why(story), "adds").changes
    assert change == Adds(nodes=1, shape=Resources(cpu=4, memory_gib=1), like="")
    assert story.hear(node("n2", cpu=3.99)).decide() == () and size(
        story.hear(node("n3", cpu=4)).decided()
    ) == (1, 1)


def test_uncordoning_a_node_can_be_the_remedy():
    story = Story().hear(node(schedulable=False), accepted())
    assert only(why(story), "opens").changes == (Opens(node="n1"),)
    assert size(story.hear(node()).decided()) == (1, 1)


def test_a_higher_priority_can_be_the_remedy_and_names_the_job_that_loses():
    """Both jobs would grow, and there is room for one.

    The older job grows first, unless the other one has a higher priority.
    """
    story = _two_jobs()
    other = only(why(story, key="default.second"), "raises")
    assert other.changes == (Raises(priority=1),) and other.gives.workers == 2
    (loser,) = other.others
    assert (loser.job, loser.without, loser.beside) == ("default.mnist", Size(1, 2), Size(1, 1))
    assert given(story.decide()).job == "mnist"
    again = _two_jobs(priority=1)
    assert size(given(again.decide(), "default.second")) == (1, 2)


def _two_jobs(priority: int = 0) -> Story:
    """Return two jobs of three cores each on n1, and n2 with one free core."""
    asked = {"ps": span(1), "workers": span(1, most=2)}
    story = Story().hear(node(cpu=6), accepted(request(**asked)))
    story.hear(accepted(request("second", priority=priority, **asked), uid=2))
    listed = [pod for action in story.decide() for pod in own(action.job, *action.tasks)]
    story.hear(node(cpu=6, free=0, own=tuple(listed)), resumed(1), resumed(1, "second", uid=2))
    return story.hear(node("n2", cpu=1))


def test_a_job_at_its_bounds_gets_the_bound_as_a_remedy():
    story = running(Story(), cpu=12)
    story.decided()
    story.hear(resumed(2))
    found = why(story)
    assert found.why == "workers.max is 4" and kinds(found) == [["widens"]]
    (change,) = found.means[0].changes
    assert isinstance(change, Widens) and (change.workers.max, change.ps.max) == (5, 2)
    assert given(done(story, [change])).tasks and found.means[0].gives.workers == 5


def test_a_job_that_waits_could_start_smaller():
    story = Story().hear(node(cpu=4), accepted(request(workers=span(3, 3))))
    (change,) = only(why(story), "widens").changes
    assert isinstance(change, Widens) and (change.workers.min, change.workers.max) == (2, 3)
    assert size(given(done(story, [change]))) == (1, 2)


def test_two_changes_are_combined_if_one_is_not_enough():
    story = running(Story()).hear(node("n2", cpu=4))
    story.decided()
    story.hear(resumed(2))
    full = why(story)
    assert full.why == "workers.max is 4" and kinds(full) == [["widens", "adds"]]
    means = full.means[0]
    assert size(given(done(story, means.changes))) == (means.gives.ps, means.gives.workers)
    assert all(done(story, [alone]) == () for alone in means.changes)


def test_remedies_hold_under_a_policy_that_prices_capacity():
    story = running(Story(replace(AT_ONCE, policy="weir")))
    story.hear(progress(1, done=100, total=10**7, speed=10))
    story.decide()
    means = only(why(story), "adds")
    (change,) = means.changes
    assert isinstance(change, Adds)
    story.hear(*(node(f"m{n}", cpu=change.shape.cpu) for n in range(change.nodes)))
    assert size(story.decided()) == (means.gives.ps, means.gives.workers)
