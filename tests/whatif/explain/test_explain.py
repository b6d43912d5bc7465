"""What it has, why, and what stands in the way: at a moment of a story."""

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


def test_what_it_has_is_what_trains_and_where():
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


def test_why_is_the_decision_its_gain_and_what_led_to_it():
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


def test_what_stands_in_the_way_is_the_allocators_own_word():
    story = running(Story())
    story.decide()
    assert why(story).why == story.why() == "no node has room for another ps"


def test_a_quota_of_the_cluster_is_named_where_it_stands_in_the_way():
    bound = QuotaBound(quota="compute", resource="requests.cpu", hard=3, used=3)
    story = running(Story()).hear(
        QuotaChanged(namespace="default", seen="1", bounds=(bound,)), node("n2", cpu=20)
    )
    assert story.decide() == ()
    found = why(story)
    assert found.why == story.why()
    assert (
        found.why
        == "quota of namespace default: wants 4 cpu more, and 0 is left of ResourceQuota compute"
    )
    assert found.means == () and found.nothing.startswith(found.why), "more nodes do not help"


def test_a_moment_of_the_past_is_told_as_it_was_then():
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


def test_before_it_was_accepted_there_is_no_such_job():
    story = Story().hear(node()).hear(accepted())
    assert explain_job(moment(story, story.now - 0.5), KEY, story.rules) is None


def test_what_is_held_back_says_until_when():
    story = running(Story(PATIENT))
    resumed_s = story.now
    story.hear(node("n2", cpu=2)).decide()
    found = why(story)
    assert found.until_s == resumed_s + 10 and found.why == story.why()
    assert (
        found.why
        == "will have 2 ps and 2 workers, if still wanted and there is room: free resources exist"
    )


def test_growth_that_does_not_pay_may_pay_with_more_room():
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


def test_where_nothing_would_help_the_reason_is_told_with_all_that_could_be_wished_for():
    story = running(Story()).hear(progress(1, done=999, total=1000, speed=10))
    found = why(story)
    assert found.means == () and found.nothing.startswith(
        "no node has room for another ps; with more room and"
    )
    assert "is not worth the pause: saves 0." in found.nothing


def test_what_a_policy_never_changes_nothing_would_change():
    story = running(Story(replace(AT_ONCE, policy="static")), cpu=8)
    assert (why(story).means, why(story).nothing) == ((), "the policy leaves it as it is")


def test_after_an_abandoned_generation_the_ground_is_that_of_what_it_has():
    story = running(Story(replace(AT_ONCE, backoff_s=4.0)))
    story.hear(node("n2", cpu=2)).decided()
    found = why(story.hear(abandoned(2)))
    assert found.ground and (found.ground.generation, found.ground.reason) == (1, "the first size")
    assert (
        found.why == "tries again after a pause: Unschedulable" and found.until_s == story.now + 4.0
    )


def test_a_job_that_is_over_has_nothing_and_says_how_it_ended():
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


def test_a_job_that_is_about_to_end_gets_no_more():
    story = running(Story(), cpu=12).hear(CancelRequested(job="mnist"))
    assert (why(story).means, why(story).nothing) == ((), "cancelled on request")


def test_whether_more_would_be_faster_is_told_once_its_speed_is_known():
    story = running(Story())
    assert why(story).prospect is None
    assert why(story.hear(progress(1, done=1, total=9, speed=10))).prospect is not None


def test_a_job_that_names_no_policy_has_the_clusters():
    story = Story(Rules(policy="dike")).hear(node(), accepted(request(priority=3)))
    assert (why(story).policy, why(story).priority, why(story).phase) == ("dike", 3, "Pending")


def test_what_is_known_of_others_is_not_taken_for_its_own():
    story = running(Story()).hear(accepted(request("second"), uid=2), node("n2", cpu=3))
    first = story.decided()
    story.hear(node("n2", cpu=3, free=0, own=own("second", *first.tasks)))
    ground = why(story).ground
    assert ground and ground.generation == 1 and ground.reason == "the first size"
    assert why(story, key="default.second").comes is not None
