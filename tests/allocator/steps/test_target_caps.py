"""Tests of the caps of a target: the namespace's quota, and one ps per variable of the model."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from services.allocator.policies.contract import Quota
from services.allocator.policies.registry import POLICIES
from services.allocator.settings import Rules
from shared.messages import (
    AllocationDecided,
    JobFinished,
    JobRequested,
    ModelProfile,
    Resources,
    RoleResources,
)
from tests.allocator.builders import (
    AT_ONCE,
    EVEN,
    Story,
    accepted,
    exited,
    node,
    own,
    progress,
    request,
    resumed,
    size,
    span,
    tasks,
)


def limited(policy: str = "config-manager", **quota: float) -> Rules:
    return replace(AT_ONCE, policy=policy, quotas={"default": Quota(**quota)})


def larger() -> JobRequested:
    return request(ps=span(1), workers=span(4, most=6))


def running(rules: Rules, asked: JobRequested | None = None) -> Story:
    """Return a job that trains with one ps and one worker, or as requested.

    Its node has free cores.
    """
    story = Story(rules)
    first = story.hear(node(cpu=20), accepted(asked)).decided()
    listed = own("mnist", *first.tasks)
    return story.hear(node(cpu=20, free=20 - len(first.tasks), own=listed), resumed(1))


def test_a_job_starts_within_its_quota():
    first = Story(limited(cpu=4)).hear(node(cpu=20), accepted(larger())).decided()
    assert size(first) == (1, 2) and "as far as its quota allows" in first.reason
    assert (
        first.alternatives[0].why
        == "quota of namespace default: needs at least 6 cpu, and the limit is 4"
    )


def test_a_job_below_its_gang_floor_waits_with_the_missing_amount():
    story = Story(limited(cpu=5, gpu=0)).hear(
        node(cpu=20), accepted(), accepted(request("other"), uid=2)
    )
    (first,) = story.decide()
    assert isinstance(first, AllocationDecided) and size(first) == (1, 1)
    assert story.why("other") == "quota of namespace default: needs 3 cpu more, and 2 is left"


@pytest.mark.parametrize("policy", ["static", "weir", "dike", "elastic-batch"])
def test_a_job_larger_than_its_quota_has_that_reason(policy: str):
    story = Story(limited(policy, memory_gib=2)).hear(node(cpu=20), accepted())
    assert story.decide() == ()
    assert story.why() == "quota of namespace default: needs at least 3 GiB, and the limit is 2"


def test_a_job_grows_within_its_quota_and_then_waits():
    story = running(limited(cpu=5))
    grown = story.decided()
    assert size(grown) in ((1, 3), (2, 2)) and "as far as its quota allows" in grown.reason
    listed = own("mnist", *grown.tasks)
    assert story.hear(node(cpu=20, free=15, own=listed), resumed(2)).decide() == ()
    assert story.why().startswith("quota of namespace default: needs ")


def test_a_quota_limits_only_its_own_namespace():
    rules = replace(AT_ONCE, quotas={"elsewhere": Quota(cpu=0)})
    assert size(running(rules).decided()) == (2, 4)


def test_decided_and_listed_tasks_count_once_in_a_quota():
    rules = limited(cpu=6)
    story = Story(rules).hear(node(cpu=20), accepted(), accepted(request("other"), uid=2))
    one, other = story.decide()
    assert isinstance(one, AllocationDecided) and isinstance(other, AllocationDecided)
    assert (size(one), size(other)) == ((1, 1), (1, 1))
    listed = (*own("mnist", *one.tasks), *own("other", *other.tasks))
    story.hear(node(cpu=20, free=14, own=listed), resumed(1), accepted(request("third"), uid=3))
    assert story.decide() == () and "and 0 is left" in story.why("third")


def test_a_job_waiting_for_quota_starts_after_the_other_pods_are_gone():
    story = running(limited(cpu=3))
    story.hear(accepted(request("other"), uid=2))
    assert story.decide() == () and "and 0 is left" in story.why("other")
    listed = own("mnist", *story.state.jobs["default.mnist"].active_decision.tasks)
    story.hear(JobFinished(job="mnist", uid=1, outcome="succeeded"))
    assert story.decide() == ()
    assert size(story.hear(node(cpu=20, free=19, own=listed[:1]), node(cpu=20)).decided()) == (1, 1)


def test_a_shrink_is_allowed_above_a_lowered_quota():
    story = running(replace(AT_ONCE, policy="weir"), request(workers=span(4, most=4)))
    story.rules = limited("weir", cpu=4)
    story.hear(progress(1, 100, 10**9, 50.0))
    shrunk = story.decided()
    assert size(shrunk)[1] < 4 and sum(task.resources.cpu for task in shrunk.tasks) <= 4


def test_a_job_without_remaining_examples_is_not_changed():
    story = running(replace(AT_ONCE, policy="weir"), request(workers=span(4, most=4)))
    story.rules = limited("weir", cpu=4)
    assert story.hear(progress(1, 1000, 1000, 50.0)).decide() == ()
    assert story.why() == "all examples are applied: the job is about to finish"


def test_a_lost_task_beyond_the_quota_is_not_replaced():
    """The worker ran out of memory and the quota has no more, so two workers remain."""
    story = running(limited(memory_gib=5), request(workers=span(3, most=3)))
    first = story.state.jobs["default.mnist"].active_decision
    assert first is not None
    gone = tasks(first, "worker")[2]
    left = own("mnist", *(task for task in first.tasks if task != gone))
    story.hear(exited(gone, reason="OOMKilled"), node(cpu=20, free=16, own=left))
    assert size(story.decided()) == (1, 2)


def test_an_ended_task_frees_its_quota_while_its_pod_is_listed():
    """No new fact of the dead node arrives, so the pod is still listed."""
    story = running(limited(cpu=3))
    first = story.state.jobs["default.mnist"].active_decision
    assert first is not None
    story.hear(exited(tasks(first, "worker")[0], code=None, reason="NodeLost"))
    again = story.decided()
    assert size(again) == (1, 1) and "; replaced (not the job's fault" in again.reason


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_under_every_policy_quotas_hold(policy: str):
    story = Story(limited(policy, cpu=5))
    sizes = RoleResources(chief=Resources(), ps=EVEN.ps, worker=EVEN.worker)
    for uid in (1, 2, 3):
        asked = request(f"job-{uid}", resources=sizes, workers=span(2, most=6))
        story.hear(node(cpu=20), accepted(asked, uid=uid))
    story.decide()
    held = [
        task.resources.cpu
        for job in story.state.jobs.values()
        if job.newest_decision
        for task in job.newest_decision.tasks
    ]
    assert 4 <= sum(held) <= 5


def running_test_usefulness(variables: int | None, ps: int = 1) -> Story:
    """Return a job that `config-manager` would grow to three ps and three workers.

    `variables`: of its model; None if the model is unknown.
    """
    asked = request(ps=span(ps, most=3), workers=span(ps, most=3))
    story = Story(AT_ONCE).hear(node(cpu=1 + 2 * ps), accepted(asked))
    first = story.decided()
    profile = (
        None if variables is None else ModelProfile(parameters=100, bytes=400, variables=variables)
    )
    report = replace(progress(1, done=10, total=100_000, speed=10.0), profile=profile)
    return story.hear(
        node(cpu=20, free=19 - 2 * ps, own=own("mnist", *first.tasks)), resumed(1), report
    )


def test_a_job_gets_no_more_ps_than_its_model_has_variables():
    grown = running_test_usefulness(variables=2).decided()

    assert size(grown) == (2, 3)
    assert "more than 2 ps cannot help: the model has 2 variables" in grown.reason
    assert (grown.alternatives[0].ps, grown.alternatives[0].workers) == (3, 3)


def test_a_model_with_enough_variables_gets_every_ps():
    assert size(running_test_usefulness(variables=3).decided()) == (3, 3)


def test_an_unknown_model_has_no_ps_cap():
    assert size(running_test_usefulness(variables=None).decided()) == (3, 3)


def test_running_ps_are_not_removed_by_the_cap():
    assert size(running_test_usefulness(variables=1, ps=2).decided()) == (2, 3)
