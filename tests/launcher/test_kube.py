"""Tests of actions over real HTTP: repeated, late, refused, and while the server is away.

Also tests what is watched, and that a list of one namespace changes nothing about another.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from services.launcher import kube, pods
from services.launcher.actions import (
    Action,
    CreatePod,
    CreatePolicy,
    CreateService,
    DeletePod,
    DeleteService,
    ResizePod,
)
from services.launcher.facts import ServiceFact
from services.launcher.kube import watched_kinds
from services.launcher.reconcile import reconcile
from services.launcher.settings import Settings
from services.launcher.view import View, with_pending_action, with_pod_list, with_service_list
from shared.kube.client import Api, connect_api
from shared.messages import Resources
from shared.runtime import config
from tests.launcher.builders import decided, plan
from tests.launcher.world import World
from tests.shared.kube.api_server import ApiServer, api_server

POD = CreatePod(decision=decided(1, "w3"), task=plan("w3"), name="net-worker-3", owner_uid="s")
SERVICE = CreateService(decision=decided(1, "w3"))
POLICY = CreatePolicy(decision=decided(1, "w3"), owner_uid="s")


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with api_server() as made:
        yield made


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[Api]:
    made = await connect_api(Settings(kube_url=server.url), "test", random.Random(1).random)
    yield made
    await made.close()


async def perform(action: Action, api: Api) -> None:
    await kube.perform(action, api, Settings())


async def test_creating_an_object_is_idempotent(server: ApiServer, api: Api) -> None:
    for action in (SERVICE, POLICY, POD, POD, POLICY, SERVICE):
        await perform(action, api)
    made = [server.names(kind) for kind in ("pods", "services", "networkpolicies")]
    assert made == [["net-worker-3"], ["net"], ["net"]]


async def test_a_name_used_by_an_earlier_job_is_retried(server: ApiServer, api: Api) -> None:
    await perform(POD, api)
    server.pod("net-worker-3")["metadata"]["labels"]["weir.dev/uid"] = "1"
    with pytest.raises(kube.RetryLater):
        await perform(POD, api)


async def test_a_name_used_by_another_owner_is_refused(server: ApiServer, api: Api) -> None:
    server.put("pods", {"metadata": {"name": "net-worker-3", "namespace": "default", "uid": "x"}})
    server.put("networkpolicies", {"metadata": {"name": "net", "namespace": "default", "uid": "y"}})
    for action in (POD, POLICY):
        with pytest.raises(kube.Refused, match="taken"):
            await perform(action, api)


async def test_deleting_a_missing_object_succeeds(server: ApiServer, api: Api) -> None:
    await perform(DeletePod(namespace="default", name="net-worker-3", uid="x"), api)
    await perform(DeleteService(namespace="default", name="net", uid="x"), api)


async def test_a_pod_is_deleted_only_with_its_uid(server: ApiServer, api: Api) -> None:
    await perform(POD, api)
    with pytest.raises(kube.RetryLater, match="Conflict"):
        await perform(
            DeletePod(namespace="default", name="net-worker-3", uid="an earlier one"), api
        )
    assert server.names("pods") == ["net-worker-3"]
    uid = server.pod("net-worker-3")["metadata"]["uid"]
    await perform(DeletePod(namespace="default", name="net-worker-3", uid=uid, grace_s=3), api)
    assert server.names("pods") == [] and server.calls[-1][2]["gracePeriodSeconds"] == 3


async def test_a_resize_uses_the_resize_subresource(server: ApiServer, api: Api) -> None:
    await perform(POD, api)
    task = plan("w3", Resources(cpu=2, memory_gib=4))
    await perform(
        ResizePod(namespace="default", name="net-worker-3", uid="x", task=task, revision=2), api
    )
    assert server.pod("net-worker-3")["spec"]["containers"][0]["resources"]["limits"] == {
        "cpu": "2000m",
        "memory": "4096Mi",
    }


@pytest.mark.parametrize(
    ("code", "reason"), [(403, "Forbidden"), (404, "NotFound"), (422, "Invalid")]
)
async def test_permanent_api_errors_are_refusals(
    server: ApiServer, api: Api, code: int, reason: str
) -> None:
    server.trouble = [(code, reason)]
    with pytest.raises(kube.Refused, match=reason):
        await perform(POD, api)


@pytest.mark.parametrize("code", [401, 429, 500, 503])
async def test_transient_api_errors_are_retried(server: ApiServer, api: Api, code: int) -> None:
    server.trouble = [(code, "Busy")]
    with pytest.raises(kube.RetryLater):
        await perform(POD, api)


async def test_an_unreachable_server_is_retried() -> None:
    api = await connect_api(
        Settings(kube_url="http://127.0.0.1:9", kube_timeout_s=1.0), "test", random.Random(1).random
    )
    with pytest.raises(kube.RetryLater):
        await perform(POD, api)
    await api.close()


def test_a_manifest_is_deterministic() -> None:
    assert pods.pod_manifest(POD, Settings()) == pods.pod_manifest(POD, Settings())


def test_without_namespaces_all_namespaces_are_watched_together() -> None:
    assert watched_kinds(Settings()) == [
        ("nodes", ""),
        ("services", ""),
        ("networkpolicies", ""),
        ("pods", ""),
    ]


def test_with_namespaces_only_nodes_are_watched_cluster_wide() -> None:
    found = config.load_settings(Settings, "launcher", {"WEIR_JOB_NAMESPACES": "a,b"})
    kinds = ("services", "networkpolicies", "pods")
    assert watched_kinds(found) == [
        ("nodes", ""),
        *((kind, namespace) for kind in kinds for namespace in ("a", "b")),
    ]


def test_disabled_network_policies_are_not_watched() -> None:
    assert "networkpolicies" not in dict(watched_kinds(Settings(network_policies=False)))


def test_a_list_of_one_namespace_keeps_the_others() -> None:
    world = World()
    world.train(decided(1, "c0 p1"))
    pods = [pod for own in world.view.pods.values() for pod in own.values()]
    elsewhere = with_pod_list(world.view, [], "elsewhere")
    assert elsewhere.pods == world.view.pods
    assert (
        all(
            pod.deleted
            for own in with_pod_list(world.view, [], "default").pods.values()
            for pod in own.values()
        )
        and pods
    )


def test_an_object_deleted_before_its_watch_event_is_created_again() -> None:
    """A cluster that lost its state removes a pod whose owner it does not know.

    No watch reports the deletion.
    """
    world = World()
    world.hear(decided(1, "c0 p1"))
    world.settle()
    pod = next(action for action in world.done if isinstance(action, CreatePod))
    lost = with_pod_list(world.view, [])
    unseen = with_pending_action(lost, pod.key())
    assert pod.key() not in {a.key() for a in reconcile(unseen, world.now, world.rules)}

    again = reconcile(with_pod_list(unseen, []), world.now, world.rules)

    assert pod.key() in {action.key() for action in again}


def test_services_of_two_namespaces_are_separate() -> None:
    one = ServiceFact(namespace="a", name="net", uid="s1", job_uid=1)
    two = replace(one, namespace="b", uid="s2", job_uid=2)
    both = with_service_list(with_service_list(View(), [one], "a"), [two], "b")
    assert both.services == {1: one, 2: two}
    assert with_service_list(both, [], "a").services == {2: two}
    assert with_service_list(both, []).services == {}
