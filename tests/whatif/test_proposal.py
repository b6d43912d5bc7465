"""What would happen if a job were asked for now."""

from __future__ import annotations

from services.allocator.policies.contract import Size
from services.allocator.settings import Rules
from services.whatif.proposal import outlook
from tests.allocator.builders import Story, accepted, node, own, request, resumed, span

RULES = Rules(policy="config-manager")


def test_it_would_start_at_once_where_there_is_room() -> None:
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


def test_it_would_wait_where_there_is_none_and_says_why() -> None:
    found = outlook(Story().hear(node(cpu=2)).state, request(), 2000.0, RULES)
    assert (
        found.tasks == ()
        and found.why == "waits for room (too little cpu) for a chief, 1 ps and 1 worker"
    )


def test_every_reason_against_it_is_told() -> None:
    story = Story().hear(node(), accepted())
    found = outlook(story.state, request(policy="best"), 2000.0, RULES)
    assert [reason.partition(":")[0] for reason in found.reasons] == [
        "policy",
        "job",
    ] and found.tasks == ()


def test_whom_it_would_keep_from_growing_is_told() -> None:
    story = Story().hear(node(cpu=3), accepted())
    first = story.decided()
    story.hear(node(cpu=3, free=0, own=own("mnist", *first.tasks)), resumed(1), node("n2", cpu=3))
    found = outlook(story.state, request("second"), story.now, RULES)
    (effect,) = found.effects
    assert (effect.job, effect.without, effect.beside) == ("default.mnist", Size(2, 3), Size(1, 1))
    assert effect.why == "no node has room for another ps"


def test_nothing_is_changed_by_asking() -> None:
    story = Story().hear(node(), accepted())
    before = story.state
    outlook(story.state, request("second", workers=span(2)), 2000.0, RULES)
    assert story.state is before and set(before.jobs) == {"default.mnist"} and before.asked == {}


def test_whose_policy_could_not_be_asked_is_told_and_who_was_asked_for_the_job() -> None:
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
        "policy mine:fair (of default/other) cannot be asked here, so config-manager is asked"
    )
    assert (
        outlook(Story().hear(node(), accepted()).state, request("second"), 2000.0, RULES).unsure
        == ""
    )
