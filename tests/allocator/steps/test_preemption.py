"""Tests of preemption: the victims for a job of higher priority, and suspended jobs."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from services.allocator.job_views import phase_of
from services.allocator.policies.contract import Quota
from services.allocator.policies.registry import POLICIES
from services.allocator.steps.preemption import RELEASE_S
from shared.messages import (
    CORDONED,
    AllocationDecided,
    JobFinished,
    JobRequested,
    TaskExited,
    TaskLeaving,
)
from tests.allocator.builders import (
    AT_ONCE,
    UID,
    Story,
    abandoned,
    accepted,
    node,
    own,
    progress,
    request,
    resumed,
    size,
    span,
    tasks,
)

STATIC = replace(AT_ONCE, policy="static")
LOW, HIGH, TOTAL = "mnist", "high", 1_000_000


def elastic(job: str = LOW, **fields: Any) -> JobRequested:
    """Return a request that starts with 2 ps and 4 workers and needs one of each."""
    return request(job, **({"ps": span(2, most=2), "workers": span(4, most=4)} | fields))


def training(cpu: float = 7, low: JobRequested | None = None) -> tuple[Story, AllocationDecided]:
    """Return one job that fills the only node and trains."""
    story = Story(STATIC)
    first = story.hear(node(cpu=cpu), accepted(low or elastic())).decided()
    left = cpu - sum(task.resources.cpu for task in first.tasks)
    story.hear(
        node(cpu=cpu, free=left, own=own(LOW, *first.tasks)),
        resumed(1),
        progress(1, 1000, TOTAL, 100.0),
    )
    return story, first


def suspended() -> tuple[Story, AllocationDecided]:
    """Return a training job whose node a new job of higher priority needs."""
    story, first = training()
    story.hear(accepted(request(HIGH, workers=span(5, least=5), priority=7), uid=2))
    return story, first


def test_preemption_shrinks_a_job_by_no_more_than_needed() -> None:
    story, first = training()
    story.hear(accepted(request(HIGH, ps=span(1), workers=span(1), priority=7), uid=2))
    given = story.decided()
    assert (given.job, size(given)) == (LOW, (1, 2)), "3 of its 7 cores"
    assert {task.serial for task in given.tasks} <= {task.serial for task in first.tasks}
    assert "default.high" in given.reason and "priority 7" in given.reason
    assert "reserved for it, because it has priority 7: 3 cpu, 3 GiB on n1" in story.why(HIGH)
    assert story.decide() == (), "what is on its way to be free is enough"


def test_a_job_is_suspended_if_its_floor_does_not_suffice() -> None:
    story, _ = suspended()
    given = story.decided()
    assert (given.job, given.tasks, given.generation) == (LOW, (), 2)
    assert "preempted by default.high, which has priority 7" in given.reason
    job = story.state.jobs["default.mnist"]
    assert job.newest_decision is None and job.progress is not None and phase_of(job) == "Pending"
    assert story.decide() == ()


def test_the_preempting_job_starts_first_and_the_victim_continues_later() -> None:
    story, first = suspended()
    story.decide()
    story.hear(node(cpu=7))
    started = story.decided()
    assert (started.job, size(started)) == (HIGH, (1, 5))
    story.hear(node(cpu=7, free=0, own=own(HIGH, *started.tasks)), resumed(1, HIGH, uid=2))
    assert story.decide() == ()
    story.hear(JobFinished(job=HIGH, uid=2, outcome="succeeded", finished_s=story.now), node(cpu=7))
    again = story.decided()
    assert (again.job, size(again), again.generation) == (LOW, (2, 4), 3)
    assert {task.serial for task in again.tasks}.isdisjoint(task.serial for task in first.tasks)
    assert again.off_s > 0, "how long it was suspended is no pause"
    story.hear(resumed(3, pause_s=2.0, previous=None))
    job = story.state.jobs["default.mnist"]
    assert (job.running, job.suspended_s, job.pauses) == (3, 0.0, ())
    assert story.replayed() == story.facts


def test_a_preempted_job_restarts_only_after_its_pods_are_gone() -> None:
    story, first = suspended()
    story.decide()
    story.hear(
        JobFinished(job=HIGH, uid=2, outcome="cancelled", finished_s=story.now), node("n2", cpu=7)
    )
    assert story.decide() == () and "its pods save and end" in story.why()
    story.hear(node(cpu=7, free=0, own=own(LOW, *first.tasks)))
    assert story.decide() == ()
    waits_s = story.state.jobs["default.mnist"].request.grace_s + RELEASE_S
    assert story.decisions.wake_s is not None
    assert story.decisions.wake_s <= story.state.jobs["default.mnist"].suspended_s + waits_s
    assert story.decided(after_s=waits_s).job == LOW, (
        "pods of a node that is gone are not waited for"
    )


def test_a_job_with_a_failing_policy_starts_on_preempted_capacity(
    monkeypatch: pytest.MonkeyPatch, failures_set_aside: None
) -> None:
    def fails(cluster: Any, jobs: Any, now: float) -> Any:
        raise OverflowError("fails")

    monkeypatch.setitem(POLICIES, "fails", fails)
    story, _ = training()
    story.hear(accepted(request(HIGH, workers=span(5, least=5), priority=7, policy="fails"), uid=2))
    given = story.decided()
    assert (given.job, given.tasks) == (LOW, ())
    assert "waits for room" in story.why(
        HIGH
    ) and "set aside: policy 'fails' failed for this job" in story.why(HIGH)
    started = story.hear(node(cpu=7)).decided()
    assert (started.job, size(started)) == (HIGH, (1, 5))
    assert [each.job for each in story.decisions.failures] == ["default.high"]


def test_a_victim_does_not_return_while_the_quota_is_being_released() -> None:
    """There are two victims: one for the quota, which takes long to save, and one for its node."""
    story = Story(replace(STATIC, quotas={"a": Quota(cpu=14)}))
    story.hear(
        node("n1", cpu=7), node("n2", cpu=7), accepted(elastic(namespace="a", grace_s=600.0), uid=1)
    )
    slow = story.decided()
    (home,) = {task.node for task in slow.tasks}
    (away,) = {"n1", "n2"} - {home}
    story.hear(accepted(elastic("other"), uid=2))
    other = story.decided()
    pods = tuple(replace(each, namespace="a") for each in own(LOW, *slow.tasks))
    story.hear(
        node(home, cpu=7, free=0, own=pods),
        node(away, cpu=7, free=0, own=own("other", *other.tasks)),
    )
    story.hear(resumed(1, namespace="a", uid=1), resumed(1, "other", uid=2))
    high = request(HIGH, namespace="a", ps=span(1), workers=span(12, least=12), priority=7)
    given = story.hear(accepted(high, uid=3)).decide(after_s=20.0)
    assert {
        each.job for each in given if isinstance(each, AllocationDecided) and not each.tasks
    } == {LOW, "other"}
    assert story.hear(node(away, cpu=7)).decide(after_s=5.0) == (), (
        "what it gave up is not for itself"
    )
    (started,) = story.hear(node(home, cpu=7)).decide(after_s=5.0)
    assert isinstance(started, AllocationDecided) and (started.job, len(started.tasks)) == (
        HIGH,
        14,
    )


def test_other_jobs_may_start_between_the_retries_of_a_failing_job() -> None:
    story, _ = suspended()
    story.rules = replace(STATIC, backoff_s=5.0)
    story.decide()
    story.hear(JobFinished(job=HIGH, uid=2, outcome="cancelled", finished_s=story.now), node(cpu=7))
    story.hear(accepted(request("later", workers=span(5, least=5)), uid=9))
    for tried in range(1, story.rules.max_start_failures + 1):
        again = story.decided(after_s=story.rules.reserve_after_s)
        assert again.job == LOW, "it is the first in the queue, and may have been unlucky"
        story.hear(abandoned(again.generation)).decide()
        started = [
            each.job for each in story.decisions.actions if isinstance(each, AllocationDecided)
        ]
        assert started == (["later"] if tried == story.rules.max_start_failures else [])
    assert "tries again after a pause" in story.why(LOW)
    story.hear(resumed(1, "later", uid=9))
    assert story.decide(after_s=story.rules.backoff_max_s) == () and "reserved for it" in story.why(
        LOW
    )


def test_late_facts_of_a_suspended_generation_change_nothing() -> None:
    story, _ = suspended()
    story.decide()
    before = story.state.jobs["default.mnist"]
    ended = TaskExited(
        job=LOW,
        uid=UID,
        generation=1,
        pod="x",
        pod_uid="x",
        role="worker",
        serial=9,
        node="n1",
        exit_code=0,
    )
    story.hear(progress(1, 9000, TOTAL, 100.0, step=9), resumed(1), ended, abandoned(2))
    after = story.state.jobs["default.mnist"]
    assert replace(after, exits={}) == before


def test_failed_restarts_do_not_end_a_job_that_had_trained() -> None:
    story, _ = suspended()
    story.decide()
    story.hear(JobFinished(job=HIGH, uid=2, outcome="cancelled", finished_s=story.now), node(cpu=7))
    for generation in range(3, 3 + 2 * story.rules.max_start_failures):
        assert story.decided().generation == generation
        story.hear(abandoned(generation))
    assert "default.mnist" in story.state.jobs


@pytest.mark.parametrize(
    "low",
    [
        request(ps=span(2, least=2), workers=span(4, least=4)),
        elastic(priority=7),
        elastic(priority=8),
    ],
    ids=["fixed size", "same priority", "higher priority"],
)
def test_jobs_of_equal_priority_are_not_preempted(low: JobRequested) -> None:
    story, _ = training(low=low)
    story.hear(accepted(request(HIGH, workers=span(5, least=5), priority=7), uid=2))
    assert story.decide() == ()


def test_a_nearly_finished_job_is_not_suspended() -> None:
    story, _ = training()
    story.hear(progress(1, TOTAL - 500, TOTAL, 100.0, step=2))
    story.hear(accepted(request(HIGH, workers=span(5, least=5), priority=7), uid=2))
    assert story.decide() == (), "it ends in 5 s, and its pauses would take longer"


def test_a_withdrawn_cordon_does_not_prevent_preemption() -> None:
    story, first = training()
    full = node(cpu=7, free=0, own=own(LOW, *first.tasks))
    last = first.tasks[-1]
    leaving = TaskLeaving(
        job=LOW,
        uid=UID,
        generation=1,
        pod=last.pod(LOW),
        pod_uid="u",
        role=last.role,
        serial=last.serial,
        node="n1",
        why=CORDONED,
    )
    story.hear(replace(full, schedulable=False), leaving)
    story.hear(accepted(request(HIGH, workers=span(5, least=5), priority=7), uid=2))
    assert story.decide() == (), "it cannot start there anyway"
    given = story.hear(full).decided()
    assert (given.job, given.tasks) == (LOW, ())


def test_after_a_long_wait_jobs_of_equal_priority_shrink_and_are_not_suspended() -> None:
    story, _ = training()
    story.hear(accepted(request("next"), uid=2))
    assert story.decide() == ()
    given = story.decided(after_s=story.rules.reserve_after_s + 2.0)
    assert (given.job, size(given)) == (LOW, (1, 2))
    assert len(tasks(given, "chief")) == 1


def test_after_a_long_wait_younger_jobs_get_nothing_first() -> None:
    story, _ = training()
    story.hear(
        accepted(request("next", workers=span(5, least=5)), uid=2), accepted(request("last"), uid=3)
    )
    assert story.decide(after_s=story.rules.reserve_after_s + 2.0) == ()
    assert "reserved for it" in story.why("next") and "7 cpu" in story.why("next")
    assert "reserved for default.next: 7 cpu, 7 GiB on n1" in story.why("last")


def test_preemption_can_be_disabled() -> None:
    story, _ = training()
    story.rules = replace(story.rules, reserve_after_s=0.0)
    story.hear(accepted(request(HIGH, workers=span(5, least=5), priority=7), uid=2))
    assert story.decide() == () and story.decide(after_s=1e6) == ()
