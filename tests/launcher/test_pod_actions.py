"""Tests of the network policy of a job's pods, and of resizes in place.

A resize in place is a new revision of the same generation.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from services.launcher import pods
from services.launcher.actions import CreatePod, CreatePolicy, ResizePod
from services.launcher.reconcile import reconcile
from services.launcher.steps import pod_actions
from services.launcher.view import with_refusal
from shared.messages import HandOverOrdered, Resources, TaskUpdated
from tests.launcher.builders import SMALL, UID, decided, names
from tests.launcher.test_pods import made
from tests.launcher.world import World


def manifest(uid: int = UID) -> Any:
    return pod_actions.policy_manifest(
        CreatePolicy(decision=decided(1, "c0", uid=uid), owner_uid="owner")
    )


def chooses(selector: dict[str, Any], pod: Any) -> bool:
    return selector["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_the_network_policy_admits_only_the_jobs_pods() -> None:
    spec = manifest()["spec"]
    [rule] = spec["ingress"]
    assert spec["policyTypes"] == ["Ingress"] and "egress" not in spec
    assert list(rule) == ["from"] and [list(peer) for peer in rule["from"]] == [["podSelector"]], (
        "no other door"
    )
    for word in ("c0", "p1", "w3"):
        assert chooses(spec["podSelector"], made(word)) and chooses(
            rule["from"][0]["podSelector"], made(word)
        )


def test_the_network_policy_does_not_select_an_earlier_job() -> None:
    assert not chooses(manifest(uid=8)["spec"]["podSelector"], made())
    assert not chooses(manifest(uid=8)["spec"]["ingress"][0]["from"][0]["podSelector"], made())


def test_the_network_policy_is_owned_by_the_jobs_service() -> None:
    service, meta = pods.service_manifest(decided(1, "c0"))["metadata"], manifest()["metadata"]
    assert (meta["name"], meta["namespace"], meta["labels"]) == (
        service["name"],
        "default",
        service["labels"],
    )
    assert [(o["kind"], o["uid"], o["controller"]) for o in meta["ownerReferences"]] == [
        ("Service", "owner", True)
    ]


def test_no_pod_is_created_before_the_network_policy_exists(world: World) -> None:
    world.hear(decided(1, "c0 p1"))
    [service] = reconcile(world.view, world.now, world.rules)
    world.perform(service)
    assert [type(a) for a in reconcile(world.view, world.now, world.rules)] == [CreatePolicy]
    world.settle()
    assert world.standing() == names("c0 p1")


def test_a_deleted_network_policy_is_created_again(world: World) -> None:
    world.train(decided(1, "c0 p1"))
    world.lose_policy()
    world.settle()
    assert UID in world.policies and sum(isinstance(a, CreatePolicy) for a in world.done) == 2


def test_a_refused_network_policy_abandons_the_generation_with_the_reason(world: World) -> None:
    world.hear(decided(1, "c0 p1"))
    world.perform(reconcile(world.view, world.now, world.rules)[0])
    world.view = with_refusal(world.view, UID, 1, "403 Forbidden: networkpolicies")
    world.settle()
    assert world.abandoned() == {1: "403 Forbidden: networkpolicies"} and world.standing() == []


def test_a_refused_network_policy_of_a_running_job_is_not_retried_in_a_loop() -> None:
    world = World()
    world.train(decided(1, "c0 p1"))
    world.lose_policy()
    world.view = with_refusal(world.view, UID, 1, "403 Forbidden: networkpolicies")
    assert reconcile(world.view, world.now, world.rules) == []
    world.hear(decided(2, "c0 p1 w2"))
    assert CreatePolicy in {type(a) for a in reconcile(world.view, world.now, world.rules)}


@pytest.mark.parametrize("wanted", [True, False])
def test_network_policies_can_be_disabled(wanted: bool) -> None:
    world = World(network_policies=wanted)
    world.hear(decided(1, "c0 p1"))
    world.perform(reconcile(world.view, world.now, world.rules)[0])
    found = {
        type(a)
        for a in reconcile(world.view, world.now, replace(world.rules, network_policies=wanted))
    }
    assert found == ({CreatePolicy} if wanted else {CreatePod})


def test_a_new_pod_of_a_running_job_has_the_image_of_its_pods() -> None:
    """An upgrade changes the launcher's image while a job trains.

    A chief and workers of two versions do not understand each other.
    """
    world = World(image="weir-trainer:1")
    world.train(decided(1, "c0 p1"))
    world.rules = replace(world.rules, image="weir-trainer:2")
    world.hear(decided(2, "c0 p1 w2"))
    world.settle()
    assert {pod.image for pod in world.pods.values()} == {"weir-trainer:1"}


MORE, LESS = Resources(cpu=1.5, memory_gib=2.0), Resources(cpu=0.25, memory_gib=1.0)


def test_a_new_revision_resizes_pods_in_place(world: World) -> None:
    world.train(decided(1, "c0 p1"))
    world.decide(decided(1, "c0 p1", revision=11, resources=MORE))
    assert {m.pod: (m.resources, m.revision) for m in world.all(TaskUpdated)} == {
        "net-chief-0": (MORE, 11),
        "net-ps-1": (MORE, 11),
    }
    assert len(world.all(HandOverOrdered)) == 1


def test_a_resize_and_its_reversal_are_both_published(world: World) -> None:
    world.train(decided(1, "c0"))
    world.decide(decided(1, "c0", revision=11, resources=MORE))
    world.decide(decided(1, "c0", revision=12, resources=SMALL))
    assert [m.resources for m in world.all(TaskUpdated)] == [MORE, SMALL]


def test_a_resize_is_published_after_the_node_has_applied_it(world: World) -> None:
    world.train(decided(1, "c0"))
    world.change("net-chief-0", allocated=SMALL)
    world.decide(decided(1, "c0", revision=11, resources=MORE))
    assert world.all(TaskUpdated) == []
    world.change("net-chief-0", allocated=MORE)
    world.settle()
    assert world.last(TaskUpdated).resources == MORE


def test_a_pod_that_still_trains_shrinks_only_once_the_next_generation_runs(world: World) -> None:
    world.train(decided(1, "c0 p1"))
    world.hand_over(decided(2, "c0 p1 w2", resources=LESS))
    assert [a.name for a in world.done if isinstance(a, ResizePod)] == []
    world.resume(2)
    world.settle()
    assert sorted(m.pod for m in world.all(TaskUpdated)) == ["net-chief-0", "net-ps-1"]


def test_rounding_is_no_resize(world: World) -> None:
    world.train(decided(1, "c0", resources=Resources(cpu=1 / 3, memory_gib=1.1)))
    world.change("net-chief-0", resources=Resources(cpu=0.333, memory_gib=1126 / 1024))
    world.settle()
    assert not [a for a in world.done if isinstance(a, ResizePod)]
