"""Tests of what deploy/ renders: valid, safe, and consistent with itself and with the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes
import kubernetes_validate
import pytest
import yaml

from services.allocator.service import Settings as AllocatorSettings
from services.console.page.service import Settings as PageSettings
from services.launcher.settings import Settings as LauncherSettings
from services.monitor.service import Settings as MonitorSettings
from services.setup.service import Settings as SetupSettings
from shared.kube.objects import job_labels
from shared.runtime import config
from shared.runtime.config import Common
from tests.deploy import custom_resources
from tests.deploy.rendered import (
    DEPLOY,
    RENDERINGS,
    environ,
    named,
    of,
    rendered,
    secrets,
    templates,
)
from tests.deploy.restricted import violations

pytestmark = pytest.mark.parametrize("name", RENDERINGS)

CURRENT = "1." + kubernetes.__version__.split(".")[0]
"""The minor version of Kubernetes that the client in constraints.txt was made for."""
PAGE = "weir-page"
SETTINGS: dict[str, type[Common]] = {
    "weir-monitor": MonitorSettings,
    "weir-allocator": AllocatorSettings,
    "weir-launcher": LauncherSettings,
    "weir-setup": SetupSettings,
}
OPTIONAL: dict[str, type[Common]] = {PAGE: PageSettings}
"""Settings of pods that only a component adds."""
CLUSTER_WIDE = {"Namespace", "ClusterRole", "ClusterRoleBinding", "PriorityClass"}
PART_OF = ("app.kubernetes.io/part-of", "weir")
STARTS_WITHIN_S = 120
"""Minimum time in s that a container gets to start, on a busy machine, before a probe kills it."""
ASK_THE_API = {"weir-monitor", "weir-launcher"}
STAND_BY = {"weir-monitor", "weir-allocator", "weir-launcher"}
BUS_CLIENT = ("weir.dev/bus", "client")


def credentials() -> dict[str, list[str]]:
    """Return the Secrets that deploy/credentials creates, with their keys."""
    made = yaml.safe_load((DEPLOY / "credentials/kustomization.yaml").read_text())[
        "secretGenerator"
    ]
    return {secret["name"]: [file.partition("=")[0] for file in secret["files"]] for secret in made}


def known(name: str) -> dict[str, type[Common]]:
    """Return the types of the settings of the services in a rendering."""
    return SETTINGS | {pod: kind for pod, kind in OPTIONAL.items() if pod in templates(name)}


def labels_of(body: dict[str, Any]) -> set[tuple[str, str]]:
    return set(body["metadata"].get("labels", {}).items())


def test_every_object_is_valid(name: str) -> None:
    """The check is strict: a field that the schema does not know is an error."""
    assert CURRENT in {
        kubernetes_validate.utils.major_minor(v) for v in kubernetes_validate.utils.all_versions()
    }
    for body in rendered(name):
        if body["kind"] in custom_resources.SCHEMAS:
            custom_resources.validate(body)
        else:
            assert kubernetes_validate.validate(body, CURRENT, strict=True) == CURRENT


def test_every_pod_is_admitted_as_restricted_and_writes_only_to_tmp(name: str) -> None:
    for template in templates(name).values():
        spec = template["spec"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert violations(spec) == []
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"]
            writable = {
                m["mountPath"]: m["name"]
                for m in container["volumeMounts"]
                if not m.get("readOnly")
            }
            assert "emptyDir" in volumes[writable.pop("/tmp")]
            assert set(writable) <= {"/data"}


def test_every_container_has_resource_requests(name: str) -> None:
    for template in templates(name).values():
        for container in template["spec"]["containers"]:
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]


def test_a_token_is_mounted_only_in_pods_that_use_the_api(name: str) -> None:
    accounts = {body["metadata"]["name"]: body for body in of(name, "ServiceAccount")}
    for pod, template in templates(name).items():
        assert template["spec"]["automountServiceAccountToken"] is (pod in ASK_THE_API)
        account = template["spec"].get("serviceAccountName")
        assert account == (pod if pod in accounts else None)
    assert {body["automountServiceAccountToken"] for body in accounts.values()} == {False}


def test_every_image_has_a_version_and_the_launcher_uses_that_of_the_overlay(name: str) -> None:
    used = {c["image"] for t in templates(name).values() for c in t["spec"]["containers"]}
    shipped = environ(name, "weir-launcher")["WEIR_LAUNCHER_IMAGE"]
    used.add(shipped)
    assert (
        environ(name, "weir-allocator")["WEIR_ALLOCATOR_IMAGES"] == shipped
    )  # a job may use no other image
    assert {image.rpartition(":")[0] for image in used} == {"weir", "weir-trainer", "nats"}
    assert len(used) == 3 and not any(image.endswith(":latest") for image in used)


def test_every_setting_in_the_manifests_is_known_to_its_service(name: str) -> None:
    settings = known(name)
    assert set(settings) == set(templates(name)) - {"weir-nats"}
    for pod, kind in settings.items():
        given = {k: v for k, v in environ(name, pod).items() if k.startswith("WEIR_")}
        service = pod.removeprefix("weir-")
        loaded = config.load_settings(kind, service, given)
        prefixes = (f"WEIR_{service.upper()}_", "WEIR_")
        fields = {min((k.removeprefix(p) for p in prefixes), key=len).lower() for k in given}
        assert fields <= set(loaded.__struct_fields__)


def test_streams_have_a_replica_on_each_server_and_cover_the_job_namespaces(
    name: str,
) -> None:
    (container,) = templates(name)["weir-setup"]["spec"]["containers"]
    told = {k: v for k, v in environ(name, "weir-setup").items() if k.startswith("WEIR_")}
    settings = config.load_settings(SetupSettings, "setup", told)
    assert container["args"] == ["services.setup"]
    assert settings.replicas == named(name, "StatefulSet", "weir-nats")["spec"]["replicas"]
    assert told["WEIR_JOB_NAMESPACES"] == environ(name, "weir-allocator")["WEIR_JOB_NAMESPACES"]


def test_no_rbac_rule_has_a_wildcard(name: str) -> None:
    roles = of(name, "ClusterRole", "Role")
    assert roles
    for rule in (rule for role in roles for rule in role["rules"]):
        assert not {"*"} & {word for words in rule.values() for word in words}


def test_every_job_namespace_binds_the_launcher_and_has_a_claim(name: str) -> None:
    spaces = environ(name, "weir-launcher")["WEIR_JOB_NAMESPACES"].split(",")
    claim = environ(name, "weir-launcher")["WEIR_LAUNCHER_CHECKPOINT_CLAIM"]
    assert environ(name, "weir-allocator")["WEIR_JOB_NAMESPACES"].split(",") == spaces
    assert sorted(b["metadata"]["namespace"] for b in of(name, "RoleBinding")) == sorted(spaces)
    claims = [b for b in of(name, "PersistentVolumeClaim") if b["metadata"]["name"] == claim]
    assert sorted(b["metadata"]["namespace"] for b in claims) == sorted(spaces)


def test_every_role_binding_names_an_existing_role_and_account(name: str) -> None:
    roles = {body["metadata"]["name"] for body in of(name, "ClusterRole")}
    accounts = {
        (body["metadata"]["namespace"], body["metadata"]["name"])
        for body in of(name, "ServiceAccount")
    }
    bindings = of(name, "RoleBinding", "ClusterRoleBinding")
    assert {body["roleRef"]["name"] for body in bindings} == roles
    for subject in (subject for body in bindings for subject in body["subjects"]):
        assert (subject["namespace"], subject["name"]) in accounts


def test_every_object_has_a_namespace_and_weirs_own_is_created(name: str) -> None:
    spaces = {
        body["metadata"].get("namespace")
        for body in rendered(name)
        if body["kind"] not in CLUSTER_WIDE
    }
    made = {body["metadata"]["name"] for body in of(name, "Namespace")}
    assert spaces - {"default"} == made and "weir-system" in made
    assert not of(name, "Job"), "it cannot be applied with another image"
    for body in of(name, "Namespace"):
        assert ("pod-security.kubernetes.io/enforce", "restricted") in labels_of(body)


def test_every_selector_matches_a_pod(name: str) -> None:
    pods = [labels_of(template) for template in templates(name).values()]
    chosen = [body["spec"]["selector"] for body in of(name, "Service")]
    chosen += [
        body["spec"]["selector"]["matchLabels"] for body in of(name, "Deployment", "StatefulSet")
    ]
    chosen += [body["spec"]["selector"]["matchLabels"] for body in of(name, "PodDisruptionBudget")]
    chosen += [
        body["spec"]["podSelector"].get("matchLabels", {}) for body in of(name, "NetworkPolicy")
    ]
    for spread in (
        s for t in templates(name).values() for s in t["spec"].get("topologySpreadConstraints", ())
    ):
        chosen.append(spread["labelSelector"]["matchLabels"])
    for labels in chosen:
        assert any(set(labels.items()) <= pod for pod in pods), labels


def test_network_policies_let_every_client_reach_the_bus(name: str) -> None:
    """Clients are the services of the rendering and the pods that the launcher creates."""
    pods = [labels_of(template) for template in templates(name).values()]
    pods.append(set(job_labels("digits", 1).items()))
    for policy in of(name, "NetworkPolicy"):
        for side in (*policy["spec"].get("ingress", ()), *policy["spec"].get("egress", ())):
            for peer in (*side.get("from", ()), *side.get("to", ())):
                wanted = set(peer.get("podSelector", {}).get("matchLabels", {}).items())
                assert any(wanted <= pod for pod in pods), wanted
    clients = {
        pod for pod, template in templates(name).items() if BUS_CLIENT in labels_of(template)
    }
    assert clients == set(known(name))


def test_every_mounted_secret_is_created_by_a_documented_command(name: str) -> None:
    """Each Secret is created by `kubectl apply -k deploy/credentials` or by cert-manager."""
    made = {(secret, key) for secret, keys in credentials().items() for key in ("", *keys)}
    issued = {body["spec"]["secretName"] for body in of(name, "Certificate")}
    mounted = {one for template in templates(name).values() for one in secrets(template["spec"])}
    assert {one for one in mounted if one[0] not in issued} <= made
    made_for = {
        pod.replace("weir-", "weir-nats-") for pod in OPTIONAL.keys() - templates(name).keys()
    }
    assert {secret for secret, _ in mounted} - issued == set(credentials()) - made_for


def test_every_pod_mounts_the_credentials_that_its_settings_name(name: str) -> None:
    for pod, template in templates(name).items():
        if pod != "weir-nats":
            (container,) = template["spec"]["containers"]
            places = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
            folder, _, key = environ(name, pod)["WEIR_NATS_CREDENTIALS"].rpartition("/")
            (volume,) = (v for v in template["spec"]["volumes"] if v["name"] == places[folder])
            assert volume["secret"]["secretName"] == pod.replace("weir-", "weir-nats-")
            assert key in credentials()[volume["secret"]["secretName"]]


def test_no_service_is_reachable_from_outside_the_cluster(name: str) -> None:
    """Every Service is of type ClusterIP, and there is no Ingress."""
    assert {body["spec"].get("type", "ClusterIP") for body in of(name, "Service")} == {"ClusterIP"}
    assert of(name, "Ingress") == []


def test_kustomizations_use_the_current_api_version(name: str) -> None:
    """Kind and version are the current ones. `rendered` fails on unknown or deprecated fields."""
    for file in DEPLOY.rglob("kustomization.yaml"):
        body = yaml.safe_load(file.read_text())
        kind = "Component" if {"components", "tls-migration"} & {*file.parts} else "Kustomization"
        version = {"Component": "v1alpha1", "Kustomization": "v1beta1"}[kind]
        assert (body["kind"], body["apiVersion"]) == (kind, f"kustomize.config.k8s.io/{version}")


@pytest.mark.parametrize("overlay", ["dev", "production"])
def test_each_image_is_named_once(name: str, overlay: str) -> None:
    text = (DEPLOY / "overlays" / overlay / "kustomization.yaml").read_text()
    named_here = [image["name"] for image in yaml.safe_load(text)["images"]]
    assert sorted(named_here) == ["nats", "weir", "weir-trainer"]
    for file in Path(DEPLOY).rglob("*.yaml"):
        assert not re.search(r"image: *(nats|weir|weir-trainer)[:@]", file.read_text())


def test_in_production_each_service_has_a_standby_and_a_disruption_budget_of_one(
    name: str,
) -> None:
    wanted = 2 if name.startswith("production") else 1
    budgets = {
        b["metadata"]["name"]: b["spec"]["maxUnavailable"] for b in of(name, "PodDisruptionBudget")
    }
    for body in (one for one in of(name, "Deployment") if one["metadata"]["name"] in STAND_BY):
        assert body["spec"]["replicas"] == wanted
        assert budgets.get(body["metadata"]["name"]) == (1 if wanted > 1 else None)
        assert body["spec"].get("strategy", {"type": "RollingUpdate"})["type"] == "RollingUpdate"
        assert "WEIR_LEASE_S" not in environ(name, body["metadata"]["name"]), (
            "it is on where nobody says otherwise"
        )


def test_in_production_the_replicas_of_a_service_spread_over_nodes(
    name: str,
) -> None:
    """Pods are counted by rollout: a new pod is kept apart from the other new pod.

    The nodes of the old pods do not matter.
    """
    for pod in STAND_BY:
        template = templates(name)[pod]
        labels, spreads = (
            template["metadata"]["labels"],
            template["spec"].get("topologySpreadConstraints", []),
        )
        found = {
            spread["topologyKey"].rpartition("/")[2]: spread["whenUnsatisfiable"]
            for spread in spreads
        }
        wanted = (
            {"hostname": "DoNotSchedule", "zone": "ScheduleAnyway"}
            if name.startswith("production")
            else {}
        )
        assert found == wanted
        for spread in spreads:
            assert spread["labelSelector"]["matchLabels"].items() <= labels.items()
            assert spread["matchLabelKeys"] == ["app.kubernetes.io/name", "pod-template-hash"]
            assert (spread["maxSkew"], spread["nodeTaintsPolicy"]) == (1, "Honor"), (
                "a drained node does not count"
            )


def test_control_plane_pods_have_a_higher_priority_than_job_pods(name: str) -> None:
    values = {body["metadata"]["name"]: body["value"] for body in of(name, "PriorityClass")}
    jobs = values[environ(name, "weir-launcher")["WEIR_LAUNCHER_PRIORITY_CLASS"]]
    for template in templates(name).values():
        assert values[template["spec"]["priorityClassName"]] > jobs
    assert not any(body.get("globalDefault") for body in of(name, "PriorityClass")), (
        "other pods stay as they are"
    )


def test_every_container_with_a_liveness_probe_has_a_startup_probe(name: str) -> None:
    for template in templates(name).values():
        (container,) = template["spec"]["containers"]
        probe = container["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] >= STARTS_WITHIN_S
        assert probe["httpGet"]["port"] == container["livenessProbe"]["httpGet"]["port"]


def test_no_pod_runs_with_the_root_group(name: str) -> None:
    for template in templates(name).values():
        assert template["spec"]["securityContext"]["runAsGroup"] > 0


def test_every_object_has_the_part_of_label(name: str) -> None:
    assert [
        (b["kind"], b["metadata"]["name"]) for b in rendered(name) if PART_OF not in labels_of(b)
    ] == []
