"""What is looked at, and that what one namespace shows says nothing of another."""

from __future__ import annotations

from msgspec.structs import replace

from services.launcher.actions import CreatePod
from services.launcher.facts import ServiceFact
from services.launcher.reconcile import reconcile
from services.launcher.settings import Settings
from services.launcher.view import View, asked, pods_listed, services_listed
from services.launcher.watch import watched
from shared.runtime import config
from tests.launcher.builders import decided
from tests.launcher.world import World


def test_without_namespaces_all_is_looked_at_once() -> None:
    assert watched(Settings()) == [
        ("nodes", ""),
        ("services", ""),
        ("networkpolicies", ""),
        ("pods", ""),
    ]


def test_with_namespaces_only_nodes_are_looked_at_everywhere() -> None:
    found = config.load_settings(Settings, "launcher", {"WEIR_JOB_NAMESPACES": "a,b"})
    kinds = ("services", "networkpolicies", "pods")
    assert watched(found) == [
        ("nodes", ""),
        *((kind, namespace) for kind in kinds for namespace in ("a", "b")),
    ]


def test_who_makes_no_policies_looks_at_none() -> None:
    assert "networkpolicies" not in dict(watched(Settings(network_policies=False)))


def test_a_list_of_one_namespace_leaves_the_others_as_they_are() -> None:
    world = World()
    world.train(decided(1, "c0 p1"))
    pods = [pod for own in world.view.pods.values() for pod in own.values()]
    elsewhere = pods_listed(world.view, [], "elsewhere")
    assert elsewhere.pods == world.view.pods
    assert (
        all(
            pod.gone
            for own in pods_listed(world.view, [], "default").pods.values()
            for pod in own.values()
        )
        and pods
    )


def test_what_was_made_and_gone_before_it_could_be_shown_is_made_again() -> None:
    """A cluster that lost everything removes a pod whose owner it does not know, while nobody
    watches.
    """
    world = World()
    world.hear(decided(1, "c0 p1"))
    world.settle()
    pod = next(action for action in world.done if isinstance(action, CreatePod))
    lost = pods_listed(world.view, [])
    unseen = asked(lost, pod.key())
    assert pod.key() not in {a.key() for a in reconcile(unseen, world.now, world.rules)}

    again = reconcile(pods_listed(unseen, []), world.now, world.rules)

    assert pod.key() in {action.key() for action in again}


def test_services_of_two_namespaces_are_known_side_by_side() -> None:
    one = ServiceFact(namespace="a", name="net", uid="s1", job_uid=1)
    two = replace(one, namespace="b", uid="s2", job_uid=2)
    both = services_listed(services_listed(View(), [one], "a"), [two], "b")
    assert both.services == {1: one, 2: two}
    assert services_listed(both, [], "a").services == {2: two}
    assert services_listed(both, []).services == {}
