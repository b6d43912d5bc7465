"""Tests of jobs that choose their nodes by selector, affinity or tolerations.

The cluster owner can also limit the nodes of a namespace to pools.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from services.allocator.pod_policy import PodPolicy, PodRules
from services.allocator.policies.registry import POLICIES
from shared.messages import (
    TAINTED,
    Affinity,
    AllocationDecided,
    FieldRequirement,
    LabelRequirement,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    Resources,
    RoleResources,
    Taint,
    TaskLeaving,
    Toleration,
)
from tests.allocator.builders import (
    AT_ONCE,
    ONE_CORE,
    Story,
    accepted,
    node,
    own,
    request,
    resumed,
    size,
    span,
)

GPU = "nvidia.com/gpu"
TEAM_A = Toleration(key="team", value="a")


def pools(a: float = 8, b: float = 8, **of_b: Any) -> tuple[Any, ...]:
    return node("a1", cpu=a, labels={"pool": "a"}), node("b1", cpu=b, labels={"pool": "b"}, **of_b)


def affinity(*terms: NodeSelectorTerm) -> Affinity:
    selector = NodeSelector(node_selector_terms=terms)
    return Affinity(
        node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=selector)
    )


def label(key: str, operator: Any, *values: str) -> NodeSelectorTerm:
    wanted = LabelRequirement(key=key, operator=operator, values=values)
    return NodeSelectorTerm(match_expressions=(wanted,))


def nodes_of(decision: AllocationDecided) -> set[str]:
    return {task.node for task in decision.tasks}


CHOICES_OF_B: list[dict[str, Any]] = [
    {"node_selector": {"pool": "b"}},
    {"affinity": affinity(label("pool", "In", "b", "c"))},
    {"affinity": affinity(label("pool", "NotIn", "a"))},
    {"affinity": affinity(label("none", "Exists"), label("pool", "In", "b"))},
    {
        "affinity": affinity(
            NodeSelectorTerm(match_fields=(FieldRequirement(operator="In", values=("b1",)),))
        )
    },
    {"node_selector": {"pool": "b"}, "affinity": affinity(label("pool", "Exists"))},
]


@pytest.mark.parametrize("choice", CHOICES_OF_B)
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_under_every_policy_tasks_go_only_to_nodes_that_the_job_chose(
    policy: str, choice: dict[str, Any]
) -> None:
    story = Story(replace(AT_ONCE, policy=policy)).hear(*pools(), accepted(request(**choice)))

    assert nodes_of(story.decided()) == {"b1"}


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_under_every_policy_a_tainted_node_takes_a_job_that_tolerates_it(policy: str) -> None:
    rules = replace(AT_ONCE, policy=policy)
    tainted = node("b1", taints=(Taint(key="team", value="a"),))
    stranger = Story(rules).hear(tainted, accepted())
    assert stranger.decide() == ()
    member = Story(rules).hear(tainted, accepted(request(tolerations=(TEAM_A,))))

    assert nodes_of(member.decided()) == {"b1"}


def test_a_job_grows_onto_a_tainted_node_that_it_tolerates_and_leaves_it_closed_to_others() -> None:
    tainted = pools(a=3, b=8, taints=(Taint(key="team", value="a"),))
    wanted = request(tolerations=(TEAM_A,), workers=span(1, most=6))
    story = Story().hear(*tainted, accepted(wanted))
    first = story.decided()
    story.hear(resumed(1))
    grown = story.decided()
    assert sum(size(grown)) > sum(size(first)) and "b1" in nodes_of(grown)
    story.hear(accepted(request("other"), uid=2))
    story.decide()

    assert "other" in story.state.jobs["default.other"].request.job
    assert story.state.jobs["default.other"].newest_decision is None


def test_a_job_without_a_node_waits_with_that_reason() -> None:
    story = Story().hear(*pools(), accepted(request(node_selector={"pool": "c"})))
    assert story.decide() == ()

    assert story.why().endswith("; no node matches its node_selector pool=c")


def test_a_job_without_room_on_its_nodes_waits_with_that_reason() -> None:
    story = Story().hear(*pools(b=2), accepted(request(node_selector={"pool": "b"})))
    assert story.decide() == ()

    assert story.why().endswith("; it may only use b1, because of its node_selector pool=b")


def test_a_job_that_tolerates_no_taint_of_its_nodes_waits_with_that_reason() -> None:
    tainted = pools(taints=(Taint(key="team", value="a"),))
    story = Story().hear(*tainted, accepted(request(node_selector={"pool": "b"})))
    assert story.decide() == ()

    assert story.why().endswith("; it does not tolerate team=a:NoSchedule on b1")


def test_a_node_that_is_about_to_be_removed_takes_nobody_whatever_he_tolerates() -> None:
    ending = (Taint(key="ToBeDeletedByClusterAutoscaler"),)
    wanted = request(tolerations=(Toleration(operator="Exists"),))
    story = Story().hear(node("n1", taints=ending), accepted(wanted))

    assert story.decide() == ()


def test_the_owners_pools_bind_every_job_of_the_namespace() -> None:
    policy = PodPolicy(default=PodRules(node_pools=({"pool": "b"},)))
    rules = replace(AT_ONCE, pod_rules=policy)
    assert nodes_of(Story(rules).hear(*pools(), accepted()).decided()) == {"b1"}
    story = Story(rules).hear(*pools(b=1), accepted())
    assert story.decide() == ()
    assert story.why().endswith(
        "; it may only use b1, because of its namespace's node pools pool=b"
    )

    apart = Story(rules).hear(*pools(), accepted(request(node_selector={"pool": "a"})))
    assert apart.decide() == ()
    assert "no node matches its node_selector pool=a, namespace's node pools pool=b" in apart.why()


def test_a_job_with_devices_uses_nodes_that_are_tainted_for_them() -> None:
    card = replace(
        node("g1", taints=(Taint(key=GPU, value="present"),)),
        allocatable=Resources(cpu=8, memory_gib=64, gpu=2),
        free=Resources(cpu=8, memory_gib=64, gpu=2),
    )
    sizes = RoleResources(chief=ONE_CORE, ps=ONE_CORE, worker=replace(ONE_CORE, gpu=1))
    story = Story().hear(card, accepted(request(resources=sizes)))
    assert nodes_of(story.decided()) == {"g1"}

    assert Story().hear(card, accepted()).decide() == ()


def test_a_reservation_and_its_victims_are_on_nodes_that_the_job_may_use() -> None:
    low = request("low", workers=span(4), ps=span(1), priority=0)
    beside = request("beside", workers=span(4), ps=span(1), priority=0)
    story = Story().hear(*pools(a=6, b=6), accepted(low, uid=1), accepted(beside, uid=2))
    placed = {decision.job: decision for decision in story.decide()}
    story.hear(*[resumed(1, job=name, uid=decision.uid) for name, decision in placed.items()])
    in_b = next(name for name, decision in placed.items() if nodes_of(decision) == {"b1"})
    high = request("high", node_selector={"pool": "b"}, priority=9, workers=span(2), ps=span(1))
    story.hear(accepted(high, uid=3))
    decisions = [each for each in story.decide() if isinstance(each, AllocationDecided)]

    assert {decision.job for decision in decisions} == {in_b}
    assert "high" in decisions[0].reason


def leaving(decision: AllocationDecided) -> TaskLeaving:
    task = decision.tasks[0]
    return TaskLeaving(
        job="mnist",
        uid=1,
        generation=1,
        pod=task.pod("mnist"),
        pod_uid="pod-0",
        role=task.role,
        serial=task.serial,
        node=task.node,
        why=TAINTED,
    )


@pytest.mark.parametrize("tolerated", [True, False])
def test_tasks_stay_on_a_node_with_a_taint_that_they_tolerate(tolerated: bool) -> None:
    taint = Taint(key="maintenance", effect="NoExecute")
    tolerations = (Toleration(key="maintenance", operator="Exists"),) if tolerated else ()
    wanted = request(tolerations=tolerations, workers=span(1), ps=span(1))
    story = Story().hear(node("n1"), accepted(wanted))
    first = story.decided()
    listed = own("mnist", *first.tasks)
    story.hear(resumed(1), node("n1", free=5, own=listed, taints=(taint,)), node("n2"))
    if not tolerated:
        story.hear(leaving(first))
        assert nodes_of(story.decided()) == {"n2"}
    else:
        assert story.decide() == ()
