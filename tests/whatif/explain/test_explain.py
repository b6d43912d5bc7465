"""Tests of explanations: what a job has at a moment, why, and what prevents more."""

from __future__ import annotations

from msgspec.structs import replace

from services.allocator.settings import Rules
from services.whatif.explain.explain import OVER, explain_job
from shared.messages import (
    Alternative,
    CancelRequested,
    CapacityChanged,
    JobFinished,
    QuotaBound,
    QuotaChanged,
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
    size,
)
from tests.allocator.test_decide import running
from tests.whatif.explain.asking import KEY, kinds, moment, why

PATIENT = replace(AT_ONCE, window_s=2.0, max_delay_s=30.0, cooldown_s=10.0)


def test_an_explanation_has_the_running_size_and_nodes():
    story = running(Story()).hear(progress(1, done=100, total=1000, speed=10))
    found = why(story)
    assert (found.phase, found.samples_per_second, found.samples, found.total_samples) == (
        "Running",
        10,
        100,
        1000,
    )
    assert found.runs and (found.runs.ps, found.runs.workers, found.runs.batch, found.runs.cpu) == (
        1,
        1,
        32,
        3,
    )
    assert found.runs.nodes == {"n1": ("chief", "ps", "worker")} and found.comes is None


def test_an_explanation_has_the_decision_its_gain_and_its_cause():
    story = running(Story()).hear(progress(1, done=100, total=100_000, speed=10))
    story.hear(node("n2", cpu=2)).decided()
    found = why(story)
    assert (
        found.phase == "Scaling" and found.comes and (found.comes.ps, found.comes.workers) == (2, 2)
    )
    ground = found.ground
    assert ground and (ground.reason, ground.generation, ground.decided_s) == (
        "free resources exist",
        2,
        story.now,
    )
    assert (ground.gain_s, ground.cost_s) == (99_900 / 10 - 99_900 / 20, AT_ONCE.pause_default_s)
    assert (
        ground.event
        and isinstance(ground.event.message, CapacityChanged)
        and ground.event.message.node == "n2"
    )
    assert [type(o) for o in ground.alternatives] == [Alternative] * 2
    assert ground.alternatives[0].why == "no node has room for another worker"


def test_the_obstacle_is_the_allocators_reason():
    story = running(Story())
    story.decide()
    assert why(story).why == story.why() == "no node has room for another ps"


def test_a_resource_quota_is_named_as_the_obstacle():
    bound = QuotaBound(quota="compute", resource="requests.cpu", hard=3, used=3)
    story = running(Story()).hear(
        QuotaChanged(namespace="default", seen="1", bounds=(bound,)), node("n2", cpu=20)
    )
    assert story.decide() == ()
    found = why(story)
    assert found.why == story.why()
    assert (
        found.why
        == "quota of namespace default: needs 4 cpu more, and 0 is left (ResourceQuota compute)"
    )
    assert found.means == () and found.nothing.startswith(found.why), "more nodes do not help"


def test_a_past_moment_is_explained_from_its_state():
    story = running(Story())
    before_s = story.now
    story.hear(node("n2", cpu=2)).decided(after_s=5.0)
    then, now = why(story, before_s), why(story)
    assert (then.phase, then.why, then.at_s) == (
        "Running",
        "no node has room for another ps",
        before_s,
    )
    assert kinds(then) == [["adds"]] and now.phase == "Scaling" and now.comes


def test_a_job_has_no_explanation_before_its_acceptance():
    story = Story().hear(node()).hear(accepted())
    assert explain_job(moment(story, story.now - 0.5), KEY, story.rules) is None


def test_a_delayed_change_has_its_due_time():
    story = running(Story(PATIENT))
    resumed_s = story.now
    story.hear(node("n2", cpu=2)).decide()
    found = why(story)
    assert found.until_s == resumed_s + 10 and found.why == story.why()
    assert (
        found.why
        == "will have 2 ps and 2 workers, if still wanted and there is room: free resources exist"
    )


def test_growth_that_does_not_pay_off_may_pay_off_with_more_capacity():
    story = running(Story()).hear(progress(1, done=900, total=1000, speed=10), node("n2", cpu=2))
    found = why(story)
    assert (
        found.why == "2 ps and 2 workers is not worth the pause: saves 5.00 s for a pause of 5.00 s"
    )
    assert kinds(found) == [["adds"]]
    assert (
        size(story.hear(node("n3", cpu=2)).decided())
        == (2, 4)
        == (found.means[0].gives.ps, found.means[0].gives.workers)
    )


def test_without_a_remedy_the_reason_names_everything_that_was_tried():
    story = running(Story()).hear(progress(1, done=999, total=1000, speed=10))
    found = why(story)
    assert found.means == () and found.nothing.startswith(
        "no node has room for another ps; with more room and"
    )
    assert "is not worth the pause: saves 0." in found.nothing


def test_a_policy_that_never_resizes_has_no_remedy():
    story = running(Story(replace(AT_ONCE, policy="static")), cpu=8)
    assert (why(story).means, why(story).nothing) == (
        (),
        "keeps its size: its policy gives no target",
    )


def test_after_an_abandonment_the_reason_is_that_of_the_running_generation():
    story = running(Story(replace(AT_ONCE, backoff_s=4.0)))
    story.hear(node("n2", cpu=2)).decided()
    found = why(story.hear(abandoned(2)))
    assert found.ground and (found.ground.generation, found.ground.reason) == (1, "the first size")
    assert (
        found.why == "tries again after a pause: Unschedulable" and found.until_s == story.now + 4.0
    )


def test_a_finished_job_has_its_outcome_and_no_tasks():
    story = running(Story())
    story.hear(
        JobFinished(
            job="mnist", uid=UID, outcome="failed", cause="KeyError: 'x'", finished_s=story.now
        )
    )
    found = why(story)
    assert (found.phase, found.why, found.nothing, found.means) == (
        "Failed",
        "KeyError: 'x'",
        OVER,
        (),
    )
    assert found.runs and found.since_s == story.now - 1.0


def test_a_job_about_to_end_has_no_remedy():
    story = running(Story(), cpu=12).hear(CancelRequested(job="mnist"))
    assert (why(story).means, why(story).nothing) == ((), "cancelled on request")


def test_the_speed_prospect_needs_a_known_speed():
    story = running(Story())
    assert why(story).prospect is None
    assert why(story.hear(progress(1, done=1, total=9, speed=10))).prospect is not None


def test_a_job_that_names_no_policy_has_the_clusters():
    story = Story(Rules(policy="dike")).hear(node(), accepted(request(priority=3)))
    assert (why(story).policy, why(story).priority, why(story).phase) == ("dike", 3, "Pending")


def test_facts_of_other_jobs_are_not_used():
    story = running(Story()).hear(accepted(request("second"), uid=2), node("n2", cpu=3))
    first = story.decided()
    story.hear(node("n2", cpu=3, free=0, own=own("second", *first.tasks)))
    ground = why(story).ground
    assert ground and ground.generation == 1 and ground.reason == "the first size"
    assert why(story, key="default.second").comes is not None
