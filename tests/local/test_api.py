"""Tests of the API server over real HTTP with the official client."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import kubernetes
import pytest
from kubernetes.aio import client

from services.local import stack
from services.local.service import Settings, local_cluster
from tests.local.builders import container, idle, node, pod
from tests.local.conftest import NODES


async def names(kube, **query):
    return sorted(
        p.metadata.name for p in (await kube.v1.list_namespaced_pod("default", **query)).items
    )


async def test_a_new_pod_has_identity_defaults_and_phase_pending(kube):
    made = await kube.create(idle(meta={"generateName": "job-"}))
    meta = made["metadata"]
    assert (
        meta["name"].startswith("job-")
        and meta["uid"]
        and meta["creationTimestamp"]
        and meta["generation"] == 1
    )
    assert meta["namespace"] == "default" and meta["resourceVersion"].isdigit()
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert made["spec"]["terminationGracePeriodSeconds"] == 30


@pytest.mark.parametrize(
    ("body", "namespace", "refusal"),
    [
        (idle("Bad_Name!"), "default", (422, "Invalid")),
        (idle(""), "default", (422, "Invalid")),
        (idle("x", labels={"bad key!": "v"}), "default", (422, "Invalid")),
        (pod("x", container(cpu="2", limit="1")), "default", (422, "Invalid")),
        (pod("x", container(cpu="many")), "default", (422, "Invalid")),
        (pod("x", container(), container()), "default", (422, "Invalid")),
        (idle("x", meta={"namespace": "other"}), "default", (400, "BadRequest")),
        (idle("x"), "nowhere", (404, "NotFound")),
        ({**idle("x"), "kind": "Node"}, "default", (400, "BadRequest")),
    ],
)
async def test_a_bad_pod_is_refused_with_a_status(kube, body, namespace, refusal):
    assert await kube.refusal(kube.v1.create_namespaced_pod(namespace, body)) == refusal


async def test_missing_and_duplicate_objects_are_refused(kube):
    await kube.create(idle("p"))
    assert await kube.refusal(kube.v1.read_namespaced_pod("nope", "default")) == (404, "NotFound")
    assert await kube.refusal(kube.v1.create_namespaced_pod("default", idle("p"))) == (
        409,
        "AlreadyExists",
    )


async def test_custom_resources_are_refused(kube):
    """The stand-in does not have them, because Weir needs none."""
    thing = {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"},
    }
    definition = {
        "metadata": {"name": "things.example.com"},
        "spec": {**thing, "versions": [{"name": "v1", "served": True, "storage": True}]},
    }
    make = client.ApiextensionsV1Api(kube.api).create_custom_resource_definition
    assert await kube.refusal(make(definition)) == (404, "NotFound")
    custom, place = client.CustomObjectsApi(kube.api), ("example.com", "v1", "default", "things")
    made = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}}
    assert await kube.refusal(custom.create_namespaced_custom_object(*place, made)) == (
        404,
        "NotFound",
    )
    assert await kube.refusal(custom.list_namespaced_custom_object(*place)) == (404, "NotFound")


async def test_a_created_node_is_listed_as_created(kube):
    await kube.v1.create_node({**node("sim"), "metadata": {"name": "sim", "labels": {"zone": "a"}}})
    found = {n.metadata.name: n.metadata.labels for n in (await kube.v1.list_node()).items}
    assert found["sim"] == {"zone": "a"} and set(found) == {"big", "sim", "small-1", "small-2"}


async def test_lists_are_selected_sorted_and_paged(kube):
    for name, app in (("c", "x"), ("a", "x"), ("b", "y")):
        await kube.create(idle(name, labels={"app": app}))
    await kube.v1.patch_namespaced_pod("c", "default", {"metadata": {"labels": {"tier": "1"}}})
    for selector, wanted in (
        ("app=y", "b"),
        ("app in (x,z)", "ac"),
        ("app notin (y)", "ac"),
        ("app,!tier", "ab"),
    ):
        assert await names(kube, label_selector=selector) == list(wanted), selector
    assert await names(kube, field_selector="metadata.name=b") == ["b"]
    whole = await kube.v1.list_namespaced_pod("default")
    assert whole.kind == "PodList" and whole.metadata.resource_version.isdigit()
    first = await kube.v1.list_namespaced_pod("default", limit=2)
    assert [p.metadata.name for p in first.items] == [
        "a",
        "b",
    ] and first.metadata.remaining_item_count == 1
    rest = await kube.v1.list_namespaced_pod("default", limit=2, _continue=first.metadata._continue)
    assert [p.metadata.name for p in rest.items] == ["c"] and not rest.metadata._continue
    assert rest.metadata.resource_version == first.metadata.resource_version


async def test_pages_of_a_selection_skip_what_does_not_match_and_count_nothing(kube):
    """The real server does not count either: it would have to read all objects."""
    for name, app in (("a", "y"), ("b", "x"), ("c", "y"), ("d", "x"), ("e", "y")):
        await kube.create(idle(name, labels={"app": app}))
    pages, token = [], None
    while token is None or token:
        page = await kube.v1.list_pod_for_all_namespaces(
            limit=1, label_selector="app=x", _continue=token or ""
        )
        pages.append(
            ([pod.metadata.name for pod in page.items], page.metadata.remaining_item_count)
        )
        token = page.metadata._continue or ""
    assert pages == [(["b"], None), (["d"], None)]


async def test_a_stale_write_is_refused_and_an_empty_one_takes_no_revision(kube):
    old = await kube.create(idle("p"))
    new = kube.plain(
        await kube.v1.patch_namespaced_pod("p", "default", {"metadata": {"labels": {"a": "b"}}})
    )
    assert int(new["metadata"]["resourceVersion"]) > int(old["metadata"]["resourceVersion"])
    assert await kube.refusal(kube.v1.replace_namespaced_pod("p", "default", old)) == (
        409,
        "Conflict",
    )
    assert await kube.refusal(kube.v1.patch_namespaced_pod("p", "default", old)) == (
        409,
        "Conflict",
    )
    same = kube.plain(await kube.v1.replace_namespaced_pod("p", "default", new))
    assert same["metadata"]["resourceVersion"] == new["metadata"]["resourceVersion"]


async def test_spec_and_status_are_written_separately(kube):
    await kube.create(idle("p"))
    await kube.v1.patch_namespaced_pod_status(
        "p", "default", {"spec": {"activeDeadlineSeconds": 7}, "status": {"phase": "Running"}}
    )
    await kube.v1.patch_namespaced_pod("p", "default", {"status": {"phase": "Failed"}})
    found = await kube.pod("p")
    assert found["status"]["phase"] == "Running" and "activeDeadlineSeconds" not in found["spec"]
    assert await names(kube, field_selector="status.phase=Running") == ["p"]
    assert await names(kube, field_selector="status.phase=Failed") == []


async def test_labels_are_changed_by_replacement_and_by_each_kind_of_patch(kube):
    made = await kube.create(idle("p", labels={"a": "1"}))
    made["metadata"]["labels"] = {"b": "2"}
    await kube.v1.replace_namespaced_pod("p", "default", made)
    changes = [
        (
            "application/json-patch+json",
            [{"op": "add", "path": "/metadata/labels/c", "value": "3"}],
        ),
        ("application/merge-patch+json", {"metadata": {"labels": {"b": None, "d": "4"}}}),
        ("application/strategic-merge-patch+json", {"metadata": {"labels": {"d": None, "e": "5"}}}),
    ]
    for kind, change in changes:
        await kube.v1.patch_namespaced_pod("p", "default", change, _content_type=kind)
    assert (await kube.pod("p"))["metadata"]["labels"] == {"c": "3", "e": "5"}


async def test_only_a_few_fields_of_a_pod_spec_are_mutable(kube):
    await kube.create(idle("p"))
    change = {"spec": {"containers": [{"name": "main", "command": ["false"]}]}}
    assert await kube.refusal(kube.v1.patch_namespaced_pod("p", "default", change)) == (
        422,
        "Invalid",
    )
    allowed = await kube.v1.patch_namespaced_pod(
        "p", "default", {"spec": {"activeDeadlineSeconds": 9}}
    )
    assert allowed.metadata.generation == 2


async def test_conditions_are_merged_by_type(kube):
    await kube.v1.create_node(node("sim"))
    for kind in ("A", "B"):
        await kube.v1.patch_node_status(
            "sim",
            {"status": {"conditions": [{"type": kind, "status": "True"}]}},
            _content_type="application/strategic-merge-patch+json",
        )
    found = await kube.v1.read_node("sim")
    assert {"A", "B", "Ready"} == {c.type for c in found.status.conditions}


async def test_a_binding_is_made_once(kube):
    await kube.create(idle("p"))
    await kube.v1.create_node(node("sim"))
    assert await kube.bind("p", "sim") == 201
    assert (await kube.pod("p"))["spec"]["nodeName"] == "sim"
    assert await names(kube, field_selector="spec.nodeName=sim") == ["p"]
    assert await kube.bind("p", "big") == 409


async def test_an_unbound_pod_is_deleted_at_once_and_a_bound_one_by_its_kubelet(kube):
    await kube.v1.create_node(node("sim"))
    await kube.create(idle("free"))
    await kube.create(idle("held", nodeName="sim"))
    for name in ("free", "held"):
        await kube.v1.delete_namespaced_pod(name, "default")
    assert await names(kube) == ["held"]
    meta = (await kube.pod("held"))["metadata"]
    assert meta["deletionTimestamp"] and meta["deletionGracePeriodSeconds"] == 30
    await kube.v1.delete_namespaced_pod("held", "default", grace_period_seconds=0)
    assert await names(kube) == []


async def test_a_finalizer_keeps_an_object_until_it_is_removed(kube):
    await kube.create(idle("p", meta={"finalizers": ["x.example/y"]}))
    await kube.v1.delete_namespaced_pod("p", "default", grace_period_seconds=0)
    assert (await kube.pod("p"))["metadata"]["deletionTimestamp"]
    await kube.v1.patch_namespaced_pod("p", "default", {"metadata": {"finalizers": None}})
    assert await names(kube) == []


async def test_a_deletion_respects_its_preconditions_and_a_dry_run_does_nothing(kube):
    await kube.create(idle("p"))
    wrong = {"preconditions": {"uid": "another"}}
    assert await kube.refusal(kube.v1.delete_namespaced_pod("p", "default", body=wrong)) == (
        409,
        "Conflict",
    )
    await kube.v1.delete_namespaced_pod("p", "default", dry_run="All")
    assert await names(kube) == ["p"]


async def test_a_collection_is_deleted_by_label(kube):
    for name, app in (("a", "x"), ("b", "x"), ("c", "y")):
        await kube.create(idle(name, labels={"app": app}))
    await kube.v1.delete_collection_namespaced_pod("default", label_selector="app=x")
    assert await names(kube) == ["c"]


async def owned_service(kube):
    service = {
        "metadata": {"name": "job"},
        "spec": {"clusterIP": "None", "selector": {"job": "job"}},
    }
    made = await kube.v1.create_namespaced_service("default", service)
    owner = {"apiVersion": "v1", "kind": "Service", "name": "job", "uid": made.metadata.uid}
    for name in ("a", "b"):
        await kube.create(idle(name, meta={"ownerReferences": [owner]}))


async def test_dependents_are_deleted_with_their_owner(kube):
    await owned_service(kube)
    await kube.v1.delete_namespaced_service("job", "default")
    await kube.until_gone("a")
    await kube.until_gone("b")


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        (
            "namespaces/default/pods",
            idle("odd", meta={"ownerReferences": [{"kind": []}]}),
            "ownerReferences[0].kind",
        ),
        (
            "namespaces/default/pods",
            idle("odd", meta={"labels": {"a": ["b"]}}),
            "labels.a: expected a string, got an array",
        ),
        (
            "nodes",
            {**node("odd"), "status": {"conditions": ["Ready"]}},
            "conditions[0]: expected an object, got a string",
        ),
        ("nodes", {**node("odd"), "spec": {"taints": [None]}}, "taints: null"),
        (
            "nodes",
            {**node("odd"), "spec": {"unschedulable": "yes"}},
            "unschedulable: expected a boolean, got a string",
        ),
        (
            "namespaces/default/events",
            {"metadata": {"name": "odd"}, "count": True},
            "count: expected a number, got a boolean",
        ),
    ],
)
async def test_a_field_of_a_wrong_type_is_refused_by_name(kube, path, body, why):
    async with aiohttp.ClientSession(kube.cluster.url) as http:
        said = await (await http.post(f"/api/v1/{path}", json=body)).json()
    assert (said["kind"], said["code"], said["reason"]) == (
        "Status",
        400,
        "BadRequest",
    ) and why in said["message"]


async def test_orphans_stay_and_lose_their_owner_reference(kube):
    await owned_service(kube)
    await kube.v1.delete_namespaced_service("job", "default", propagation_policy="Orphan")
    await kube.until("a", lambda body: "ownerReferences" not in body["metadata"])
    assert await names(kube) == ["a", "b"]


async def test_a_foreground_deletion_deletes_the_owner_last(kube):
    await owned_service(kube)
    # The owner stays for as long as this dependent has a finalizer.
    held = {"metadata": {"finalizers": ["x.example/y"]}}
    await kube.v1.patch_namespaced_pod("a", "default", held)
    await kube.v1.delete_namespaced_service("job", "default", propagation_policy="Foreground")
    await kube.until_gone("b")
    assert (await kube.v1.read_namespaced_service("job", "default")).metadata.deletion_timestamp

    await kube.v1.patch_namespaced_pod("a", "default", {"metadata": {"finalizers": None}})
    await kube.until_gone("a")
    async with asyncio.timeout(60):
        while (await kube.v1.list_namespaced_service("default")).items:
            await asyncio.sleep(0.05)


async def test_a_terminating_namespace_deletes_its_objects_and_accepts_none(kube):
    await kube.v1.create_namespace({"metadata": {"name": "team"}})
    await kube.v1.create_namespaced_pod("team", idle("p", meta={"finalizers": ["x.example/y"]}))
    await kube.v1.delete_namespace("team")
    assert await kube.refusal(kube.v1.create_namespaced_pod("team", idle("q"))) == (
        403,
        "Forbidden",
    )
    await asyncio.sleep(0.3)
    await kube.v1.patch_namespaced_pod("p", "team", {"metadata": {"finalizers": None}})
    async with asyncio.timeout(60):
        while any(n.metadata.name == "team" for n in (await kube.v1.list_namespace()).items):
            await asyncio.sleep(0.05)
    assert await kube.refusal(kube.v1.read_namespace("team")) == (404, "NotFound")


async def test_pods_of_a_deleted_node_are_deleted(kube):
    await kube.v1.create_node(node("sim"))
    await kube.create(idle("p", nodeName="sim"))
    await kube.v1.delete_node("sim")
    await kube.until_gone("p")


async def test_a_lease_is_replaced_only_with_its_current_version(kube):
    leases = client.CoordinationV1Api(kube.api)
    made = kube.plain(
        await leases.create_namespaced_lease(
            "default", {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}}
        )
    )
    await leases.replace_namespaced_lease("l", "default", made | {"spec": {"holderIdentity": "b"}})
    assert await kube.refusal(leases.replace_namespaced_lease("l", "default", made)) == (
        409,
        "Conflict",
    )


async def test_an_event_is_the_same_in_both_its_forms(kube):
    events = client.EventsV1Api(kube.api)
    about = {"kind": "Pod", "namespace": "default", "name": "p"}
    new = {
        "metadata": {"name": "e"},
        "regarding": about,
        "note": "hello",
        "reason": "Said",
        "type": "Normal",
        "action": "Say",
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "weir",
        "reportingInstance": "w",
    }
    await events.create_namespaced_event("default", new)
    found = (
        await kube.v1.list_namespaced_event("default", field_selector="involvedObject.name=p")
    ).items
    assert [(e.message, e.source.component) for e in found] == [("hello", "weir")]
    assert (await events.read_namespaced_event("e", "default")).note == "hello"


async def test_the_synchronous_client_works(cluster):
    def ask():
        configuration = kubernetes.client.Configuration(host=cluster.url)
        with kubernetes.client.ApiClient(configuration) as api:
            version = kubernetes.client.VersionApi(api).get_code()
            return version.minor, sorted(
                n.metadata.name for n in kubernetes.client.CoreV1Api(api).list_node().items
            )

    assert await asyncio.to_thread(ask) == ("36", ["big", "small-1", "small-2"])


async def test_discovery_and_tables_are_served_for_kubectl(cluster, kube):
    await kube.create(idle("p"))
    table = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
    async with aiohttp.ClientSession(cluster.url) as session:
        groups = await (await session.get("/apis")).json()
        assert "metrics.k8s.io" in [g["name"] for g in groups["groups"]]
        for path in ("/api", "/api/v1", "/apis/events.k8s.io/v1", "/openapi/v3/api/v1", "/healthz"):
            assert (await session.get(path)).status == 200, path
        shown = await (await session.get("/api/v1/namespaces/default/pods", headers=table)).json()
        assert shown["kind"] == "Table" and shown["rows"][0]["cells"][:3] == ["p", "0/1", "Pending"]


async def test_metadata_only_requests_get_metadata_only(cluster, kube):
    await kube.create(idle("p"))
    pods, version = "/api/v1/namespaces/default/pods", "v=v1;g=meta.k8s.io,application/json"
    of_one = {"Accept": f"application/json;as=PartialObjectMetadata;{version}"}
    of_all = {"Accept": f"application/json;as=PartialObjectMetadataList;{version}"}
    async with aiohttp.ClientSession(cluster.url) as session:
        one = await (await session.get(f"{pods}/p", headers=of_one)).json()
        listed = await (await session.get(pods, headers=of_all)).json()
        async with session.get(pods, headers=of_one, params={"watch": "1"}) as watched:
            seen = json.loads(await watched.content.readline())["object"]
    assert one["kind"] == "PartialObjectMetadata" and set(one) == {"kind", "apiVersion", "metadata"}
    assert listed["kind"] == "PartialObjectMetadataList" and listed["items"] == [one] == [seen]


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Host": "evil.example"}],
)
async def test_requests_of_web_pages_are_refused(cluster, headers):
    async with (
        aiohttp.ClientSession(cluster.url) as session,
        session.get("/api/v1/pods", headers=headers) as answer,
    ):
        assert answer.status == 403


async def test_only_the_clusters_token_is_accepted(cluster, tmp_path):
    async with aiohttp.ClientSession() as session:
        wrong = {"Authorization": "Bearer nope"}
        said = await (await session.get(f"{cluster.url}/api/v1/nodes", headers=wrong)).json()
        assert (said["kind"], said["code"], said["reason"]) == ("Status", 401, "Unauthorized")
        async with local_cluster(
            NODES, tmp_path / "other", settings=Settings(token="secret")
        ) as guarded:
            right = {"Authorization": "Bearer secret"}
            codes = [
                (await session.get(f"{guarded.url}/api/v1/nodes", headers=h)).status
                for h in ({}, wrong, right)
            ]
    assert codes == [401, 401, 200]


async def test_the_kubeconfig_of_weir_up_works_with_its_token_and_with_the_url_alone(tmp_path):
    token = stack.token_file(tmp_path).read_text()
    async with local_cluster(
        NODES, tmp_path / "guarded", settings=Settings(token=token)
    ) as guarded:
        kubeconfig = stack.write_kubeconfig(tmp_path, guarded.url)
        core = kubernetes.client.CoreV1Api(
            kubernetes.config.new_client_from_config(str(kubeconfig))
        )
        assert len((await asyncio.to_thread(core.list_node)).items) == 3
        server = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{server}/api/v1/nodes") as answer,
        ):
            assert answer.status == 200  # as kubectl does over http


async def test_a_body_of_another_content_type_is_refused(cluster):
    async with aiohttp.ClientSession(cluster.url) as session:
        url = "/api/v1/namespaces/default/pods"
        for data, kind, code in (
            (
                b'{"metadata": {"name": "x"}, "spec": {"containers": "none"}}',
                "application/json",
                400,
            ),
            (b"k8s", "application/vnd.kubernetes.protobuf", 415),
            (b"{", "application/json", 400),
        ):
            async with session.post(url, data=data, headers={"Content-Type": kind}) as answer:
                assert answer.status == code and (await answer.json())["kind"] == "Status"
        async with session.delete("/api/v1/pods") as answer:
            assert answer.status == 405
