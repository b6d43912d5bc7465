"""Tests of reservations: what is reserved for which job, and what other jobs may still use."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from services.allocator.decide import prepare_tables
from services.allocator.placement.free_capacity import free_nodes, remaining_quotas
from services.allocator.placement.room import Room
from services.allocator.policies.contract import Quota
from services.allocator.steps.reservations import MOST, TRIES, ReservationPlan
from services.whatif.event_log import Moment
from services.whatif.explain.explain import explain_job
from shared.messages import JobFinished, JobRequested, Resources, RoleResources
from tests.allocator.builders import (
    AT_ONCE,
    Story,
    accepted,
    exited,
    node,
    own,
    request,
    resumed,
    span,
    tasks,
)

RULES = replace(AT_ONCE, policy="static")
AFTER_S = RULES.reserve_after_s


def fixed(job: str, workers: int, **fields: Any) -> JobRequested:
    """Return a request of a fixed size; it needs two cores more than it has workers."""
    return request(job, ps=span(1), workers=span(workers, least=workers), **fields)


def reserve(story: Story, now: float | None = None) -> ReservationPlan:
    room = Room(free_nodes(story.state), remaining_quotas(story.state, story.rules.quotas))
    at_s = story.now if now is None else now
    made = ReservationPlan(prepare_tables(story.state, story.rules), room, at_s, story.rules)
    made.plan(story.state.jobs, {})
    return made


def filled(cpu: float = 8, nodes: int = 1, **rules: Any) -> Story:
    """Return nodes that are full with one fixed job each, and a request for a large job.

    The fixed jobs were started one after the other.
    """
    story = Story(replace(RULES, **rules))
    for number in range(1, nodes + 1):
        story.hear(
            node(f"n{number}", cpu=cpu), accepted(fixed(f"job-{number}", int(cpu) - 2), uid=number)
        )
        (started,) = story.decide()
        story.hear(node(f"n{number}", cpu=cpu, free=0, own=own(f"job-{number}", *started.tasks)))
        story.hear(resumed(1, f"job-{number}", uid=number))
    story.hear(accepted(fixed("large", int(cpu) - 2), uid=50))
    return story


def ended(job: str, uid: int, now: float) -> JobFinished:
    return JobFinished(job=job, uid=uid, outcome="succeeded", finished_s=now)


def test_the_smallest_size_is_reserved_after_the_waiting_time() -> None:
    story = filled()
    asked_s = story.state.jobs["default.large"].asked_s
    early = reserve(story, asked_s + AFTER_S - 0.5)
    assert early.reservations == {} and early.wake_s == asked_s + AFTER_S
    late = reserve(story, asked_s + AFTER_S)
    assert {name: r.cpu for name, r in late.reservations["default.large"].nodes.items()} == {
        "n1": 8.0
    }
    assert late.wake_s is None


def test_decisions_have_a_wake_time_for_reservations() -> None:
    story = filled()
    story.decide()
    assert story.decisions.wake_s == story.state.jobs["default.large"].asked_s + AFTER_S


def test_the_node_with_the_earliest_started_jobs_is_reserved() -> None:
    """The node is chosen from the state alone, so a restart of the allocator changes nothing."""
    story = filled(nodes=3)
    story.decide(after_s=AFTER_S)
    assert list(reserve(story).reservations["default.large"].nodes) == ["n1"]
    story.hear(
        accepted(fixed("late", 4), uid=60), ended("job-3", 3, story.now), node("n3", cpu=6, free=6)
    )
    (started,) = story.decide()
    assert started.job == "late", "the large one does not fit there"
    assert list(reserve(story).reservations["default.large"].nodes) == ["n1"]


def test_later_jobs_use_unreserved_capacity() -> None:
    story = filled(nodes=2)
    story.hear(accepted(fixed("late", 2), uid=60))
    story.decide(after_s=AFTER_S)
    story.hear(node("n3", cpu=4))
    (started,) = story.decide()
    assert (started.job, {task.node for task in started.tasks}) == ("late", {"n3"})


def test_freed_capacity_of_a_reserved_node_is_kept() -> None:
    story = Story(RULES)
    story.hear(node(cpu=8), accepted(fixed("one", 2), uid=1), accepted(fixed("two", 2), uid=2))
    one, two = story.decide()
    story.hear(node(cpu=8, free=0, own=(*own("one", *one.tasks), *own("two", *two.tasks))))
    story.hear(resumed(1, "one", uid=1), resumed(1, "two", uid=2))
    story.hear(accepted(fixed("large", 6), uid=3), accepted(fixed("late", 2), uid=4))
    story.hear(ended("one", 1, story.now), node(cpu=8, free=4, own=own("two", *two.tasks)))
    early, late = replace(story.rules, reserve_after_s=1e9), story.rules
    story.rules = late
    assert story.decide(after_s=AFTER_S) == (), "4 cores are free, and the late job would fit"
    assert "reserved for default.large: 8 cpu, 8 GiB on n1" in story.why("late")
    assert "reserved for it, because it has waited for more than 900 s" in story.why("large")
    story.rules = early
    assert [action.job for action in story.decide()] == ["late"], "without the rule it starts"


def test_a_job_larger_than_the_cluster_reserves_nothing() -> None:
    story = filled()
    story.hear(accepted(fixed("vast", 50), uid=51))
    story.decide(after_s=2 * AFTER_S)
    assert set(reserve(story).reservations) == {"default.large"}


def test_while_the_quota_is_short_only_the_quota_is_reserved() -> None:
    story = Story(replace(RULES, quotas={"default": Quota(cpu=8)}))
    story.hear(node(cpu=8), node("n2", cpu=8), accepted(fixed("one", 2), uid=1))
    (one,) = story.decide()
    story.hear(node(cpu=8, free=4, own=own("one", *one.tasks)), resumed(1, "one", uid=1))
    story.hear(accepted(fixed("large", 6), uid=2), accepted(fixed("late", 2), uid=3))
    story.hear(accepted(fixed("other", 2, namespace="other"), uid=4))
    started = story.decide(after_s=AFTER_S + 10.0)
    assert [action.key() for action in started] == ["other.other"]
    claim = reserve(story).reservations["default.large"]
    assert (claim.nodes, claim.quota.cpu) == ({}, 8.0)
    assert "8 cpu, 8 GiB of the quota of namespace default" in story.why("late")


def test_a_blocked_job_names_the_reservation() -> None:
    story = Story(replace(RULES, quotas={"a": Quota(cpu=4), "b": Quota(cpu=4)})).hear(node(cpu=100))
    story.hear(
        accepted(fixed("one", 2, namespace="a"), uid=1),
        accepted(fixed("two", 2, namespace="b"), uid=2),
    )
    story.decide()
    story.hear(
        accepted(fixed("large-a", 2, namespace="a"), uid=3),
        accepted(fixed("large-b", 2, namespace="b"), uid=4),
    )
    story.hear(
        accepted(fixed("late", 2, namespace="b"), uid=5),
        accepted(fixed("vast", 500, namespace="c"), uid=6),
    )
    story.decide(after_s=AFTER_S + 10.0)
    assert (
        "reserved for b.large-b: 4 cpu, 4 GiB of the quota of namespace b"
        in story.decisions.why["b.late"]
    )
    assert "reserved" not in story.decisions.why["c.vast"], "no quota keeps it from anything"


def test_only_the_head_of_the_queue_has_reservations() -> None:
    story = filled(nodes=1).hear(node("n2", cpu=100))
    for number in range(MOST + 5):
        story.hear(
            accepted(
                request(f"q-{number}", ps=span(1), workers=span(1), resources=None),
                uid=100 + number,
            )
        )
    found = reserve(story, story.now + 2 * AFTER_S)
    assert len(found.reservations) == MOST
    assert next(iter(found.reservations)) == "default.large", "the oldest first"


@pytest.mark.parametrize("sizes", [1, 2 * TRIES], ids=["of one size", "each of another size"])
@pytest.mark.parametrize("namespace", ["default", "other"])
def test_jobs_larger_than_the_cluster_use_no_reservation_slot(sizes: int, namespace: str) -> None:
    story = Story(RULES)
    story.hear(node(cpu=8), accepted(fixed("running", 6), uid=1))
    started = story.decided()
    story.hear(
        node(cpu=8, free=0, own=own("running", *started.tasks)), resumed(1, "running", uid=1)
    )
    for number in range(2 * MOST):
        vast = fixed(f"vast-{number}", 100 + number % sizes, namespace=namespace)
        story.hear(accepted(vast, uid=10 + number))
    story.hear(accepted(fixed("large", 6), uid=100))
    found = reserve(story, story.now + 2 * AFTER_S).reservations
    assert list(found) == ["default.large"]


@pytest.mark.parametrize("namespace", ["default", "other"])
def test_unplaceable_jobs_use_only_their_namespaces_slot(
    namespace: str,
) -> None:
    """At its minimum each job is smaller than the cluster, but no node has room for two tasks."""
    story = Story(RULES).hear(*(node(f"n{number}", cpu=10) for number in range(2)))
    for number in range(2 * TRIES):
        cores = Resources(cpu=6.0 + number / 100, memory_gib=1.0)
        sizes = RoleResources(chief=cores, ps=cores, worker=cores)
        scattered = request(
            f"s-{number}", namespace=namespace, ps=span(2), workers=span(2), resources=sizes
        )
        story.hear(accepted(scattered, uid=10 + number))
    story.hear(accepted(fixed("large", 6), uid=100))
    found = reserve(story, story.now + 2 * AFTER_S).reservations
    assert list(found) == ([] if namespace == "default" else ["default.large"])


@pytest.mark.parametrize("kept", [0, 2], ids=["all of them", "all but two"])
def test_a_job_that_lost_tasks_gets_a_reservation(kept: int) -> None:
    """Two small jobs run on its former capacity, and the next ones wait already."""
    story = Story(RULES)
    first = story.hear(node(cpu=8 + kept), accepted(fixed("mnist", 6 + kept), uid=1)).decided()
    story.hear(node(cpu=8 + kept, free=0, own=own("mnist", *first.tasks)), resumed(1))
    stay = tasks(first, "worker")[:kept]
    pods = own("mnist", *stay)
    story.hear(
        *(exited(task, reason="Evicted") for task in first.tasks if task not in stay), after_s=0.0
    )
    story.hear(
        node(cpu=8 + kept, free=4, own=pods),
        *(accepted(fixed(f"s-{n}", 2), uid=10 + n) for n in range(4)),
    )
    (one,) = story.decide()
    one_pods = own(one.job, *one.tasks)
    story.hear(node(cpu=8 + kept, free=4, own=pods + one_pods), resumed(1, one.job, uid=10))
    (two,) = story.decide()
    two_pods = own(two.job, *two.tasks)
    story.hear(
        node(cpu=8 + kept, free=0, own=pods + one_pods + two_pods), resumed(1, two.job, uid=11)
    )
    assert story.decide() == () and "reserved" not in story.why()
    story.hear(ended(one.job, 10, story.now), node(cpu=8 + kept, free=4, own=pods + two_pods))
    assert story.decide(after_s=AFTER_S) == (), "the next small job would fit"
    assert (
        "reserved for it, because it has waited for more than 900 s: 8 cpu, 8 GiB on n1"
        in story.why()
    )
    story.hear(ended(two.job, 11, story.now), node(cpu=8 + kept, own=pods, free=8))
    again = story.decided()
    assert (again.job, len(again.tasks)) == ("mnist", 8 + kept) and set(stay) < set(again.tasks)


def test_a_job_that_trains_on_below_its_smallest_size_gets_a_reservation() -> None:
    """The job lost six of eight workers. Two later jobs take their capacity.

    It becomes free in two parts, while a third job waits.
    """
    story = Story(RULES)
    first = story.hear(node(cpu=10), accepted(fixed("mnist", 8), uid=1)).decided()
    story.hear(node(cpu=10, free=0, own=own("mnist", *first.tasks)), resumed(1))
    lost = tasks(first, "worker")[:6]
    pods = own("mnist", *(task for task in first.tasks if task not in lost))
    story.hear(*(exited(task, reason="Evicted") for task in lost), after_s=0.0)
    for uid in (10, 11):
        job = f"small-{uid}"
        story.hear(node(cpu=10, free=3, own=pods), accepted(fixed(job, 1), uid=uid))
        (small,) = story.decide()
        assert small.job == job and not story.state.jobs["default.mnist"].stands_still
        pods += own(job, *small.tasks)
        story.hear(node(cpu=10, free=0, own=pods), resumed(1, job, uid=uid))
    story.hear(accepted(fixed("next", 1), uid=12))
    assert story.decide(after_s=AFTER_S) == ()

    pods = tuple(pod for pod in pods if pod.job != "small-10")
    story.hear(ended("small-10", 10, story.now), node(cpu=10, free=3, own=pods))
    assert story.decide() == (), "the next one would fit"
    assert "reserved for it, because it has waited for more than 900 s" in story.why()
    pods = tuple(pod for pod in pods if pod.job != "small-11")
    story.hear(ended("small-11", 11, story.now), node(cpu=10, free=6, own=pods))
    (again,) = story.decide()
    assert (again.job, len(again.tasks)) == ("mnist", 10)


def test_a_job_that_lost_tasks_first_waits_for_their_capacity() -> None:
    story = Story(replace(RULES, settle_s=3.0))
    high = request(ps=span(1), workers=span(5, least=5), priority=7)
    low = request("low", ps=span(2, most=2), workers=span(4, most=4))
    first = story.hear(node(cpu=7), accepted(high, uid=1)).decided()
    story.hear(node(cpu=7, free=0, own=own("mnist", *first.tasks)), resumed(1))
    (other,) = story.hear(node("n2", cpu=7), accepted(low, uid=2)).decide()
    story.hear(node("n2", cpu=7, free=0, own=own("low", *other.tasks)), resumed(1, "low", uid=2))
    story.hear(
        *(exited(task, reason="NodeLost") for task in first.tasks),
        replace(node(cpu=7), gone=True),
        after_s=0.0,
    )
    assert story.decide() == () and story.decide(after_s=2.9) == ()
    given = story.decided(after_s=0.1)
    assert (given.job, given.tasks) == ("low", ())
    assert "reserved for it, because it has priority 7" in story.why()
    again = story.hear(node("n2", cpu=7)).decided()
    assert (again.job, len(again.tasks)) == ("mnist", 7)


def test_explain_shows_reservations() -> None:
    story = filled()
    story.decide(after_s=AFTER_S)
    told = explain_job(Moment(story.state, story.now, {}, {}, None), "default.large", story.rules)
    assert (
        told is not None
        and "reserved for it, because it has waited for more than 900 s: 8 cpu" in told.why
    )
