"""Tests of jobs whose volume claims are bound to a zone or a node.

Terms of a node affinity match as in the Kubernetes scheduler.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from services.allocator.placement.claims import fulfils_any
from services.allocator.policies.registry import POLICIES
from services.allocator.service import changes_no_decision
from shared.messages import (
    AllocationDecided,
    CheckpointRule,
    ClaimPlacement,
    ClaimsChanged,
    JobRequested,
    NodeRequirement,
    NodeTerm,
    Volume,
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
    tasks,
)

SEEN = count(1)
KEY = "topology.kubernetes.io/zone"


def bound(zone: str, *claims: str, namespace: str = "default") -> ClaimsChanged:
    term = NodeTerm(labels=(NodeRequirement(key=KEY, operator="In", values=(zone,)),))
    placements = (ClaimPlacement(claims=claims, terms=(term,)),) if claims else ()
    return ClaimsChanged(namespace=namespace, seen=str(next(SEEN)), placements=placements)


def mounting(*claims: str, **fields: Any) -> JobRequested:
    volumes = tuple(Volume(name=claim, mount_path=f"/{claim}", claim=claim) for claim in claims)
    return request(volumes=volumes, **fields)


def zones(a: float = 8, b: float = 8, **more: Any) -> tuple[Any, ...]:
    return node("a1", cpu=a, labels={KEY: "a"}, **more), node("b1", cpu=b, labels={KEY: "b"})


def nodes_of(decision: AllocationDecided) -> set[str]:
    return {task.node for task in decision.tasks}


@pytest.mark.parametrize("zone", ["a", "b"])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_under_every_policy_tasks_are_placed_where_the_claim_is_usable(policy: str, zone: str):
    story = Story(replace(AT_ONCE, policy=policy)).hear(
        *zones(), bound(zone, "data"), accepted(mounting("data"))
    )
    assert nodes_of(story.decided()) == {f"{zone}1"}


def test_a_job_grows_only_on_nodes_where_its_claim_is_usable():
    story = Story().hear(*zones(a=5, b=20), bound("a", "data"), accepted(mounting("data")))
    first = story.decided()
    listed = own("mnist", *first.tasks)
    story.hear(node("a1", cpu=5, free=2, labels={KEY: "a"}, own=listed), resumed(1))
    grown = story.decided()
    assert nodes_of(grown) == {"a1"} and sum(size(grown)) == 4


def test_a_job_without_room_at_its_claim_waits_with_that_reason():
    story = Story().hear(*zones(a=2, b=20), bound("a", "data"), accepted(mounting("data")))
    assert story.decide() == ()
    assert story.why().endswith("; its claim data can only be used on a1")
    before = story.state
    story.hear(bound("b", "data"))
    assert not changes_no_decision(before, story.state), (
        "claims that change are a reason to look again"
    )
    assert nodes_of(story.decided()) == {"b1"}


def test_claims_in_different_zones_have_no_common_node():
    apart = bound("a", "data")
    apart = replace(apart, placements=(*apart.placements, *bound("b", "models").placements))
    story = Story().hear(*zones(), apart, accepted(mounting("data", "models")))
    assert story.decide() == () and story.why().endswith(
        "; its claims data, models cannot be used on any node"
    )


def test_a_lost_task_is_replaced_where_the_claim_is_usable():
    story = Story().hear(
        *zones(),
        node("a2", cpu=1, labels={KEY: "a"}),
        bound("a", "data"),
        accepted(mounting("data")),
    )
    first = story.decided()
    lost = tasks(first, "worker")[0]
    story.hear(
        resumed(1),
        node("a1", cpu=8, labels={KEY: "a"}, ready=False),
        exited(lost, code=None, reason="NodeLost"),
    )
    again = story.decided()
    assert tasks(again, "worker")[0].node == "a2"


def test_a_lost_task_without_room_at_its_claim_has_that_reason():
    asked = mounting("data", ps=span(1), workers=span(1))
    story = Story().hear(*zones(), bound("a", "data"), accepted(asked))
    lost = tasks(story.decided(), "worker")[0]
    down = node("a1", cpu=8, labels={KEY: "a"}, ready=False)
    story.hear(resumed(1), down, exited(lost, code=None, reason="NodeLost"))
    assert story.decide() == () and story.why().endswith(
        "to replace it; its claim data can only be used on a1"
    )


@pytest.mark.parametrize(
    "asked",
    [
        request(),
        mounting("other"),
        request(volumes=(Volume(name="v", mount_path="/v", host_path="/data"),)),
    ],
    ids=["no volume", "another claim", "no claim"],
)
def test_unmounted_claims_do_not_count(asked: JobRequested):
    elsewhere = bound("b", "data", "other", namespace="team-a")
    story = Story().hear(*zones(a=8, b=1), bound("b", "data"), elsewhere, accepted(asked))
    assert nodes_of(story.decided()) == {"a1"}


def test_the_checkpoint_claim_counts_unless_checkpoints_are_elsewhere():
    rules = replace(AT_ONCE, checkpoint_claim="weir-checkpoints")
    for path, where in ((None, "b1"), ("s3://bucket/folder", "a1")):
        asked = request(checkpoint=CheckpointRule(path=path), workers=span(1))
        story = Story(rules).hear(*zones(a=4, b=8), bound("b", "weir-checkpoints"), accepted(asked))
        assert nodes_of(story.decided()) == {where}


def test_claims_of_a_namespace_are_removed_and_others_survive_a_restart():
    story = Story().hear(
        *zones(), bound("a", "data"), bound("b", "data", namespace="team-a"), bound("a")
    )
    assert story.state.claims.keys() == {"team-a"} and story.replayed().claims == story.state.claims


def test_reservations_are_where_the_claim_is_usable():
    """The node in the other zone would have room sooner, but is not reserved."""
    rules = replace(AT_ONCE, reserve_after_s=10.0)
    story = Story(rules).hear(
        *zones(a=3, b=3), accepted(request("first", workers=span(1), ps=span(1)))
    )
    (first,) = story.decide()
    assert isinstance(first, AllocationDecided)
    (taken,) = nodes_of(first)
    zone = taken[0]
    listed = node(taken, cpu=3, free=0, labels={KEY: zone}, own=own("first", *first.tasks))
    story.hear(
        listed, bound(zone, "data"), accepted(mounting("data", workers=span(1), ps=span(1)), uid=2)
    )
    story.decide(after_s=20.0)
    assert "reserved for it" in story.why() and taken in story.why()


LABELS = {"zone": "a", "cpus": "8", "ssd": ""}


def met(key: str, operator: str, *values: str) -> bool:
    wanted = NodeRequirement(key=key, operator=operator, values=values)
    return fulfils_any("n1", LABELS, [NodeTerm(labels=(wanted,))])


@pytest.mark.parametrize(
    ("yes", "no"),
    [
        (("zone", "In", "b", "a"), ("zone", "In", "b")),
        (("zone", "NotIn", "b"), ("zone", "NotIn", "a")),
        (("rack", "NotIn", "b"), ("rack", "In", "")),
        (("ssd", "Exists"), ("rack", "Exists")),
        (("rack", "DoesNotExist"), ("ssd", "DoesNotExist")),
        (("cpus", "Gt", "7"), ("cpus", "Gt", "8")),
        (("cpus", "Lt", "9"), ("cpus", "Lt", "8")),
        (("zone", "In", "a"), ("zone", "Gt", "1")),
        (("zone", "In", "a"), ("cpus", "Gt", "many")),
        (("zone", "In", "a"), ("cpus", "Gt")),
        (("zone", "In", "a"), ("zone", "Like", "a")),
    ],
)
def test_node_selector_operators_match_as_in_the_scheduler(
    yes: tuple[str, ...], no: tuple[str, ...]
):
    assert met(*yes) and not met(*no)


def test_every_requirement_of_a_term_must_match_and_an_empty_term_matches_nothing():
    zone = NodeRequirement(key="zone", operator="In", values=("a",))
    here = NodeRequirement(key="metadata.name", operator="In", values=("n1",))
    there = NodeRequirement(key="metadata.name", operator="In", values=("n2",))
    assert fulfils_any("n1", LABELS, [NodeTerm(labels=(zone,), fields=(here,))])
    assert not fulfils_any("n1", LABELS, [NodeTerm(labels=(zone,), fields=(there,))])
    assert fulfils_any("n1", LABELS, [NodeTerm(fields=(there,)), NodeTerm(fields=(here,))])
    assert not fulfils_any("n1", LABELS, [NodeTerm()]) and not fulfils_any("n1", LABELS, [])
