"""Tests of proposals: what would happen if a job were requested now."""

from __future__ import annotations

from services.allocator.policies.contract import Size
from services.allocator.settings import Rules
from services.whatif.proposal import outlook
from tests.allocator.builders import Story, accepted, node, own, request, resumed, span

RULES = Rules(policy="config-manager")


def test_a_proposed_job_would_start_at_once_if_there_is_room() -> None:
    found = outlook(Story().hear(node()).state, request(), 2000.0, RULES)
    assert [(task.role, task.node) for task in found.tasks] == [
        ("chief", "n1"),
        ("ps", "n1"),
        ("worker", "n1"),
    ]
    assert (found.reasons, found.effects, found.batch) == (
        (),
        (),
        32,
    ) and found.why == "the first size"


def test_a_proposed_job_would_wait_with_a_reason() -> None:
    found = outlook(Story().hear(node(cpu=2)).state, request(), 2000.0, RULES)
    assert (
        found.tasks == ()
        and found.why == "waits for room (too little cpu) for a chief, 1 ps and 1 worker"
    )


def test_every_error_in_a_proposal_is_listed() -> None:
    story = Story().hear(node(), accepted())
    found = outlook(story.state, request(policy="best"), 2000.0, RULES)
    assert [reason.partition(":")[0] for reason in found.reasons] == [
        "policy",
        "job",
    ] and found.tasks == ()


def test_a_proposal_names_the_jobs_that_could_not_grow() -> None:
    story = Story().hear(node(cpu=3), accepted())
    first = story.decided()
    story.hear(node(cpu=3, free=0, own=own("mnist", *first.tasks)), resumed(1), node("n2", cpu=3))
    found = outlook(story.state, request("second"), story.now, RULES)
    (effect,) = found.effects
    assert (effect.job, effect.without, effect.beside) == ("default.mnist", Size(2, 3), Size(1, 1))
    assert effect.why == "no node has room for another ps"


def test_a_proposal_changes_no_state() -> None:
    story = Story().hear(node(), accepted())
    before = story.state
    outlook(story.state, request("second", workers=span(2)), 2000.0, RULES)
    assert story.state is before and set(before.jobs) == {"default.mnist"} and before.asked == {}


def test_a_policy_that_cannot_be_loaded_is_named() -> None:
    story = Story().hear(node(), accepted(request("other", policy="mine:fair")))
    named, unnamed = (
        outlook(story.state, request(policy=p), 2000.0, RULES) for p in ("static", None)
    )
    assert (named.policy, named.named, unnamed.policy, unnamed.named) == (
        "static",
        True,
        "config-manager",
        False,
    )
    assert named.unsure.startswith(
        "policy mine:fair (of default/other) is not known here, so config-manager was used"
    )
    assert (
        outlook(Story().hear(node(), accepted()).state, request("second"), 2000.0, RULES).unsure
        == ""
    )
