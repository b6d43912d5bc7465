"""Tests of overlays with changed namespace, prefix, labels and images, and of two on one cluster.

The tests look up names, addresses and selectors as Kubernetes would.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from shared.kube.objects import job_labels
from tests.deploy.rendered import COMPONENTS, DEPLOY, OWN, Body, environment, kustomized

NAMESPACE, PREFIX, JOBS, LABEL = "stage", "two-", "stage-jobs", {"team": "ml"}
OVERLAYS = ("dev", "production")
MOVED = (
    {"namespace": NAMESPACE},
    {"namePrefix": PREFIX},
    {"namespace": NAMESPACE, "namePrefix": PREFIX},
)
CLUSTER_WIDE = {"Namespace", "ClusterRole", "ClusterRoleBinding", "PriorityClass"}
WORKLOADS = ("Deployment", "StatefulSet")
MADE_ELSEWHERE = {"weir-nats-tls"} | {
    f"weir-nats-{user}" for user in ("server", "monitor", "allocator", "launcher", "setup", "page")
}
"""Secrets without prefix, by cert-manager and by `kubectl apply -k deploy/credentials`."""
MUTABLE = {"Deployment": {"template"}, "StatefulSet": {"template"}}
"""Fields of a workload's `spec` that a new image may change; Kubernetes refuses other changes."""


def overlay(name: str, *without: str, **more: Any) -> list[Body]:
    """Return what an overlay renders with every component, in a kustomization with more fields."""
    added = [f"components/{one}" for one in COMPONENTS if one not in (*OWN.get(name, ()), *without)]
    return kustomized([f"overlays/{name}"], added, **more)


def named(bodies: Sequence[Body], kind: str) -> set[tuple[str, str]]:
    """Return namespace and name of all objects of a kind."""
    found = [body["metadata"] for body in bodies if body["kind"] == kind]
    return {(meta.get("namespace", ""), meta["name"]) for meta in found}


def workloads(bodies: Sequence[Body]) -> Iterator[tuple[Body, Body]]:
    """Yield every workload with the spec of its pods."""
    for body in bodies:
        if body["kind"] in WORKLOADS:
            yield body, body["spec"]["template"]["spec"]


def references(body: Body, pod: Body) -> Iterator[tuple[str, str]]:
    """Yield the kind and name of each object that a pod needs."""
    yield "PriorityClass", pod["priorityClassName"]
    if "serviceAccountName" in pod:
        yield "ServiceAccount", pod["serviceAccountName"]
    if body["kind"] == "StatefulSet":
        yield "Service", body["spec"]["serviceName"]
    for each in (each for container in pod["containers"] for each in container.get("env", ())):
        if source := each.get("valueFrom", {}).get("configMapKeyRef"):
            yield "ConfigMap", source["name"]
    for volume in pod["volumes"]:
        for part in [volume, *volume.get("projected", {}).get("sources", ())]:
            if "configMap" in part:
                yield "ConfigMap", part["configMap"]["name"]
            if "secret" in part:
                yield "Secret", part["secret"].get("secretName") or part["secret"]["name"]


@pytest.mark.parametrize("more", MOVED, ids=" ".join)
@pytest.mark.parametrize("name", OVERLAYS)
def test_every_object_is_in_the_overlays_namespace_and_its_references_exist(
    name: str, more: dict[str, str]
) -> None:
    bodies = overlay(name, **more)
    home = more.get("namespace", "weir-system")
    spaces = {b["metadata"].get("namespace") for b in bodies if b["kind"] not in CLUSTER_WIDE}
    assert spaces == {home} and named(bodies, "Namespace") == {("", home)}
    for body, pod in workloads(bodies):
        for kind, wanted in references(body, pod):
            there = named(bodies, kind) | {(home, secret) for secret in MADE_ELSEWHERE}
            assert ("" if kind in CLUSTER_WIDE else home, wanted) in there, (
                body["metadata"]["name"],
                kind,
                wanted,
            )
    for binding in (b for b in bodies if b["kind"] == "ClusterRoleBinding"):
        assert ("", binding["roleRef"]["name"]) in named(bodies, "ClusterRole")
        for subject in binding["subjects"]:
            assert (subject["namespace"], subject["name"]) in named(bodies, "ServiceAccount")
    for certificate in (b for b in bodies if b["kind"] == "Certificate"):
        assert (home, certificate["spec"]["issuerRef"]["name"]) in named(bodies, "Issuer")


@pytest.mark.parametrize("more", MOVED, ids=" ".join)
@pytest.mark.parametrize("name", OVERLAYS)
def test_every_service_has_the_address_of_the_bus(name: str, more: dict[str, str]) -> None:
    bodies = overlay(name, "tls", **more)
    home = more.get("namespace", "weir-system")
    (servers,) = (b for b in bodies if b["kind"] == "StatefulSet")
    stem, service = servers["metadata"]["name"], servers["spec"]["serviceName"]
    assert stem == f"{more.get('namePrefix', '')}weir-nats"
    for body in deployments(bodies):
        assert environment(bodies, body)["WEIR_NATS_URL"] == f"nats://{service}.{home}.svc:4222"
    routes = [
        urlsplit(v).netloc
        for k, v in environment(bodies, servers).items()
        if k.startswith("ROUTE_")
    ]
    assert routes == [f"{stem}-{number}.{service}.{home}.svc:6222" for number in range(3)]
    (launcher,) = (
        b for b in deployments(bodies) if b["metadata"]["name"].endswith("weir-launcher")
    )
    assert ("", environment(bodies, launcher)["WEIR_LAUNCHER_PRIORITY_CLASS"]) in named(
        bodies, "PriorityClass"
    )


@pytest.mark.parametrize("components", [("tls", "page"), ("page", "tls")], ids="+".join)
def test_the_page_trusts_the_bus_authority_in_either_order_of_the_components(
    components: Sequence[str],
) -> None:
    bodies = kustomized(["overlays/production"], [f"components/{name}" for name in components])
    (page,) = (b for b in deployments(bodies) if b["metadata"]["name"] == "weir-page")
    (volume,) = (v for v in page["spec"]["template"]["spec"]["volumes"] if v["name"] == "ca")
    (container,) = page["spec"]["template"]["spec"]["containers"]
    (mount,) = (m for m in container["volumeMounts"] if m["name"] == "ca")
    assert volume["secret"] == {
        "secretName": "weir-nats-tls",
        "items": [{"key": "ca.crt", "path": "ca.crt"}],
    }
    assert environment(bodies, page)["WEIR_NATS_CA"] == f"{mount['mountPath']}/ca.crt"


@pytest.mark.parametrize("more", MOVED, ids=" ".join)
def test_the_certificate_covers_the_names_of_the_servers(more: dict[str, str]) -> None:
    with_tls = kustomized(["overlays/production"], ["components/tls"], ["tls-names"], **more)
    (certificate,) = (b for b in with_tls if b["kind"] == "Certificate" and "dnsNames" in b["spec"])
    service = f"{more.get('namePrefix', '')}weir-nats.{more.get('namespace', 'weir-system')}.svc"
    assert certificate["spec"]["dnsNames"] == [service, f"*.{service}", "localhost"]


def written_in_readme(file: str) -> dict[str, Any]:
    """Return the kustomization that deploy/README.md shows as `file`, except its resources."""
    block = (DEPLOY / "README.md").read_text().split(f"    # {file}\n")[1].split("\n\n")[0]
    shown: dict[str, Any] = yaml.safe_load(textwrap.dedent(block))
    return {field: value for field, value in shown.items() if field != "resources"}


@pytest.mark.parametrize("name", OVERLAYS)
def test_two_installations_share_no_object(name: str) -> None:
    """The second installation is the one that deploy/README.md describes."""
    first = [*overlay(name), *kustomized([f"overlays/{name}/jobs"])]
    second = kustomized([f"overlays/{name}"], **written_in_readme("stage/kustomization.yaml"))
    jobs = kustomized(
        [f"overlays/{name}/jobs"], **written_in_readme("stage/jobs/kustomization.yaml")
    )
    assert objects(first) & objects([*second, *jobs]) == set()
    (binding,) = (b for b in jobs if b["kind"] == "RoleBinding")
    assert ("", binding["roleRef"]["name"]) in named(second, "ClusterRole")
    (subject,) = binding["subjects"]
    assert (subject["namespace"], subject["name"]) in named(second, "ServiceAccount")
    (allocator,) = (
        b for b in deployments(second) if b["metadata"]["name"] == f"{PREFIX}weir-allocator"
    )
    assert environment(second, allocator)["WEIR_JOB_NAMESPACES"] == JOBS
    assert named(jobs, "PersistentVolumeClaim") == {(JOBS, "weir-checkpoints")}


def objects(bodies: Sequence[Body]) -> set[tuple[str, str, str]]:
    return {(b["kind"], b["metadata"].get("namespace", ""), b["metadata"]["name"]) for b in bodies}


def deployments(bodies: Sequence[Body]) -> list[Body]:
    return [body for body in bodies if body["kind"] == "Deployment"]


def selectors(bodies: Sequence[Body]) -> Iterator[dict[str, str]]:
    for body in bodies:
        spec = body.get("spec", {})
        if body["kind"] == "Service":
            yield spec["selector"]
        if body["kind"] in (*WORKLOADS, "PodDisruptionBudget"):
            yield spec["selector"]["matchLabels"]
        if body["kind"] == "NetworkPolicy":
            yield spec["podSelector"].get("matchLabels", {})
            for side in (*spec.get("ingress", ()), *spec.get("egress", ())):
                for peer in (*side.get("from", ()), *side.get("to", ())):
                    yield peer.get("podSelector", {}).get("matchLabels", {})
    for _, pod in workloads(bodies):
        yield from (
            spread["labelSelector"]["matchLabels"]
            for spread in pod.get("topologySpreadConstraints", ())
        )


@pytest.mark.parametrize("in_selectors", [False, True])
@pytest.mark.parametrize("name", OVERLAYS)
def test_additional_labels_do_not_change_selectors(name: str, in_selectors: bool) -> None:
    added = [{"pairs": LABEL, "includeTemplates": True, "includeSelectors": in_selectors}]
    bodies = overlay(name, labels=added)
    pods = [body["spec"]["template"]["metadata"]["labels"] for body, _ in workloads(bodies)]
    for wanted in selectors(bodies):
        assert any(wanted.items() <= pod.items() for pod in pods), wanted
    policies = {b["metadata"]["name"]: b["spec"] for b in bodies if b["kind"] == "NetworkPolicy"}
    (trainers,) = (
        peer for peer in policies["weir-nats"]["ingress"][0]["from"] if "namespaceSelector" in peer
    )
    (rule,) = trainers["podSelector"]["matchExpressions"]
    assert "matchLabels" not in trainers["podSelector"], (
        "trainers have the launcher's labels, and no others"
    )
    assert rule["operator"] == "In" and job_labels("digits", 1)[rule["key"]] in rule["values"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_image_comes_from_the_configured_registry(name: str) -> None:
    images = [
        {"name": one, "newName": f"registry.example/{one}"}
        for one in ("nats", "weir", "weir-trainer")
    ]
    bodies = overlay(name, images=images)
    used = {container["image"] for _, pod in workloads(bodies) for container in pod["containers"]}
    environs = [environment(bodies, body) for body in deployments(bodies)]
    used |= {
        env[k]
        for env in environs
        for k in ("WEIR_LAUNCHER_IMAGE", "WEIR_ALLOCATOR_IMAGES")
        if k in env
    }
    assert {image.partition(":")[0] for image in used} == {image["newName"] for image in images}


@pytest.mark.parametrize("name", OVERLAYS)
def test_a_new_image_changes_only_mutable_fields(name: str) -> None:
    """The same image changes nothing. No object is a Job, a Pod or a CronJob."""
    tags = [
        [{"name": one, "newTag": tag} for one in ("nats", "weir", "weir-trainer")]
        for tag in ("1", "1", "2")
    ]
    first, again, other = (overlay(name, images=each) for each in tags)
    assert first == again
    for before, after in zip(first, other, strict=True):
        changed = {field for field in before if before[field] != after[field]}
        assert changed <= ({"spec"} if before["kind"] in MUTABLE else set()), before["kind"]
        for field in changed:
            inner = {each for each in before[field] if before[field][each] != after[field][each]}
            assert inner <= MUTABLE[before["kind"]]
    assert {body["kind"] for body in first} & {"Job", "Pod", "CronJob"} == set()
