"""Tests of the pod settings of a request: refusals, and what the pod policy allows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.allocator.admission.pod_policy_file import parse_pod_policy
from services.allocator.admission.validation import InvalidRequest, check_request
from services.allocator.settings import Rules
from shared.messages import JobRequested

ONE = {"start": 1, "min": 1, "max": 1}
REQUEST = {
    "job": "train",
    "program": {"name": "train.py", "digest": f"sha256-{'0' * 64}"},
    "epochs": 1,
    "batch": ONE,
    "ps": ONE,
    "workers": ONE,
}
REQUIRED = "required_during_scheduling_ignored_during_execution"
TERMS = f"affinity.node_affinity.{REQUIRED}.node_selector_terms"
EVERYTHING: dict[str, Any] = {
    "env": [
        {"name": "STAGE", "value": "train"},
        {"name": "KEY", "value_from": {"secret_key_ref": {"name": "bucket", "key": "key"}}},
        {"name": "SIZE", "value_from": {"config_map_key_ref": {"name": "sizes", "key": "s"}}},
    ],
    "env_from": [
        {"secret_ref": {"name": "bucket"}, "prefix": "BUCKET_"},
        {"config_map_ref": {"name": "sizes"}},
    ],
    "volumes": [
        {"name": "data", "mount_path": "/data", "claim": "data"},
        {"name": "keys", "mount_path": "/keys", "secret": "bucket"},
        {"name": "sizes", "mount_path": "/sizes", "config_map": "sizes"},
    ],
    "image": "registry/team-a/train:1",
    "service_account": "trainer",
    "image_pull_secrets": [{"name": "registry"}],
    "node_selector": {"pool": "a"},
    "tolerations": [{"key": "team", "value": "a", "effect": "NoSchedule"}],
    "priority_class": "high",
    "priority": 5,
    "labels": {"team": "a"},
    "annotations": {"example.com/cost-centre": "7 8 9"},
    "shm_gib": 0.5,
    "resources": {"worker": {"cpu": 3, "memory_gib": 4}},
}
POLICY = """
default:
  images: [weir-trainer]
namespaces:
  default:
    images: [registry/team-a/]
    claims: [data]
    secrets: [buck*]
    config_maps: [sizes]
    service_accounts: [trainer]
    image_pull_secrets: [registry]
    priority_classes: [high]
    labels: [team]
    annotations: [example.com/*]
    node_pools: [{pool: a}]
    tolerations: [{key: team, operator: Exists}]
    largest_task: {cpu: 4, memory_gib: 8}
    highest_priority: 5
"""


def answer(rules: Rules | None = None, **fields: Any) -> JobRequested | InvalidRequest:
    body = msgspec.json.encode({**REQUEST, **fields})
    return check_request(body, rules) if rules else check_request(body)


def reasons(rules: Rules | None = None, **fields: Any) -> list[str]:
    found = answer(rules, **fields)
    return list(found.reasons) if isinstance(found, InvalidRequest) else []


def affinity(*terms: Any) -> dict[str, Any]:
    return {"node_affinity": {REQUIRED: {"node_selector_terms": list(terms)}}}


# ---------------------------------------------------------------- format


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"env": [{"name": "A"}]}, "env[0]: A needs either value or value_from"),
        (
            {"env": [{"name": "A", "value": "b", "value_from": {}}]},
            "env[0]: A needs either value or value_from",
        ),
        (
            {"env": [{"name": "A", "value_from": {}}]},
            "env[0].value_from: needs either secret_key_ref or config_map_key_ref",
        ),
        (
            {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
            "env: A occurs 2 times",
        ),
        (
            {"env": [{"name": "A", "value": 3}]},
            "env[0].value: must be a string: write '3' in quotes",
        ),
        (
            {"env": [{"name": "A", "value": True}]},
            "env[0].value: must be a string: write 'true' in quotes",
        ),
        ({"env": [{"name": "1A", "value": ""}]}, "env[0].name: Expected the name of a variable"),
        (
            {"env": [{"name": "A", "valueFrom": {}}]},
            "env[0].valueFrom: no such field; did you mean 'value_from'?",
        ),
        *[
            ({"env": [{"name": name, "value": ""}]}, f"env[0].name: '{name}' is reserved")
            for name in ("WEIR_NATS_URL", "TF_CONFIG", "NATS_URL", "PYTHONPATH", "LD_PRELOAD")
        ],
        ({"env_from": [{}]}, "env_from[0]: needs either secret_ref or config_map_ref"),
        (
            {"env_from": [{"secret_ref": {"name": "s"}, "prefix": "WEIR_"}]},
            "env_from[0].prefix: variables that begin with 'WEIR_' are reserved",
        ),
        (
            {"env_from": [{"secret_ref": {"name": "train-nats-0a1b2c3d-4e5f"}}]},
            "env_from[0].secret_ref.name: 'train-nats-0a1b2c3d-4e5f' has the credentials of a job",
        ),
        (
            {"volumes": [{"name": "a", "mount_path": "/a", "claim": "c", "secret": "s"}]},
            "volumes[0]: needs one of claim, secret, config_map and host_path",
        ),
        (
            {"labels": {"weir.dev/job": "other"}},
            "labels: 'weir.dev/job' is reserved, as all of weir.dev",
        ),
        (
            {"labels": {"training.kubeflow.org/job-name": "x"}},
            "labels: 'training.kubeflow.org/job-name' is reserved, as all of kubeflow.org",
        ),
        (
            {"annotations": {"container.apparmor.security.beta.kubernetes.io/x": "unconfined"}},
            "annotations: 'container.apparmor.security.beta.kubernetes.io/x' is reserved",
        ),
        ({"labels": {"team": 3}}, "labels.team: must be a string: write '3' in quotes"),
        (
            {"tolerations": [{"operator": "Exists", "value": "x"}]},
            "tolerations[0].value: has to be absent if operator is Exists",
        ),
        ({"tolerations": [{}]}, "tolerations[0].key: is required if operator is Equal"),
        (
            {"tolerations": [{"key": "a", "toleration_seconds": 5}]},
            "tolerations[0].toleration_seconds: not supported",
        ),
        ({"affinity": affinity()}, f"{TERMS}: needs at least one term"),
        ({"affinity": affinity({})}, f"{TERMS}[0]: needs match_expressions or match_fields"),
        (
            {"affinity": affinity({"match_expressions": [{"key": "a", "operator": "In"}]})},
            f"{TERMS}[0].match_expressions[0]: In needs values",
        ),
        (
            {
                "affinity": affinity(
                    {"match_expressions": [{"key": "a", "operator": "Gt", "values": ["x"]}]}
                )
            },
            f"{TERMS}[0].match_expressions[0]: Gt needs one value, a whole number",
        ),
        (
            {"affinity": affinity({"match_fields": [{"operator": "In", "values": []}]})},
            f"{TERMS}[0].match_fields[0].values: needs exactly one name of a node",
        ),
        (
            {"affinity": {"pod_affinity": {}}},
            "affinity.pod_affinity: not supported: Weir itself puts the tasks of a job near each",
        ),
        (
            {"affinity": {"podAntiAffinity": {}}},
            "affinity.podAntiAffinity: not supported: Weir itself chooses the nodes",
        ),
        ({"nodeSelector": {}}, "nodeSelector: no such field; did you mean 'node_selector'?"),
        (
            {"serviceAccountName": "x"},
            "serviceAccountName: no such field; did you mean 'service_account'?",
        ),
        (
            {"shm_gib": 2},
            "shm_gib: 2 is more than the 1 GiB of a worker, and /dev/shm is a part of it",
        ),
        (
            {
                "shm_gib": 0.5,
                "volumes": [{"name": "a", "mount_path": "/dev/shm/", "claim": "c"}],
            },
            "volumes[0].mount_path: /dev/shm is already mounted by shm_gib",
        ),
        (
            {"workers": [{"count": 2}, {"count": 1}]},
            "workers: all tasks of a role have the same resources; for others, submit another job",
        ),
        (
            {"resources": {"worker": [{"gpu": 1}, {"gpu": 0}]}},
            "resources.worker: all tasks of a role have the same resources",
        ),
        (
            {"resources": {"worker": {"gpu": 4}}},
            "resources.worker.gpu: 4 devices, but a task uses only one; use more workers",
        ),
    ],
)
def test_what_no_cluster_allows_is_refused_with_its_place(
    fields: dict[str, Any], reason: str
) -> None:
    found = reasons(**fields)

    assert any(each.startswith(reason) for each in found), found


def test_a_request_with_all_settings_is_read_as_it_was_written() -> None:
    found = answer(**EVERYTHING)

    assert isinstance(found, JobRequested)
    assert msgspec.json.decode(msgspec.json.encode(found))["env"] == EVERYTHING["env"]


def test_a_request_without_settings_is_written_without_them() -> None:
    found = answer()

    assert isinstance(found, JobRequested)
    written = msgspec.json.decode(msgspec.json.encode(found))
    assert not written.keys() & EVERYTHING.keys()


# ---------------------------------------------------------------- pod policy


def test_without_a_policy_a_request_may_have_claims_and_nothing_else_of_the_cluster() -> None:
    found = reasons(Rules(images=()), **EVERYTHING)

    none_is = "is not allowed in namespace 'default'; none is"
    refused = {each.partition(": ")[0] for each in found if none_is in each}
    assert refused == {
        "env[1].value_from.secret_key_ref.name",
        "env[2].value_from.config_map_key_ref.name",
        "env_from[0].secret_ref.name",
        "env_from[1].config_map_ref.name",
        "volumes[1].secret",
        "volumes[2].config_map",
        "service_account",
        "image_pull_secrets[0].name",
        "node_selector",
        "tolerations[0]",
        "priority_class",
        "labels",
        "annotations",
    }
    assert len(found) == len(refused)


def test_plain_variables_and_shared_memory_need_no_permission() -> None:
    assert reasons(Rules(), env=[{"name": "STAGE", "value": "x"}], shm_gib=0.5) == []


def test_the_policy_allows_what_it_lists() -> None:
    assert reasons(Rules(pod_rules=parse_pod_policy(POLICY)), **EVERYTHING) == []


def test_another_namespace_has_the_default_section_only() -> None:
    found = reasons(
        Rules(pod_rules=parse_pod_policy(POLICY)), **{**EVERYTHING, "namespace": "other"}
    )

    assert any(each.startswith("image: 'registry/team-a/train:1'") for each in found), found
    assert any(each.startswith("volumes[0].claim: 'data' is not allowed") for each in found), found
    assert len(found) == 15


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"volumes": [{"name": "a", "mount_path": "/a", "claim": "other"}]},
            "volumes[0].claim: 'other' is not allowed in namespace 'default'; allowed: data (claims"
            " of WEIR_ALLOCATOR_POD_POLICY)",
        ),
        (
            {"env_from": [{"secret_ref": {"name": "huge"}}]},
            "env_from[0].secret_ref.name: 'huge' is not allowed in namespace 'default'; allowed:"
            " buck*",
        ),
        ({"service_account": "admin"}, "service_account: 'admin' is not allowed"),
        (
            {"tolerations": [{"operator": "Exists"}]},
            "tolerations[0]: *:* is not allowed in namespace 'default'; allowed: team:*",
        ),
        (
            {"resources": {"ps": {"cpu": 5}}},
            "resources.ps.cpu: 5 is more than 4, the largest in namespace 'default'",
        ),
        ({"priority": 6}, "priority: 6 is more than 5, the highest in namespace 'default'"),
        ({"image": "registry/team-b/x"}, "image: 'registry/team-b/x' is not allowed in namespace"),
        ({"annotations": {"other.com/x": ""}}, "annotations: 'other.com/x' is not allowed"),
    ],
)
def test_a_refusal_names_what_the_policy_allows(fields: dict[str, Any], reason: str) -> None:
    found = reasons(Rules(pod_rules=parse_pod_policy(POLICY)), **fields)

    assert len(found) == 1 and found[0].startswith(reason), found


def test_images_of_the_setting_are_allowed_beside_those_of_the_policy() -> None:
    rules = Rules(images=("weir-trainer",), pod_rules=parse_pod_policy(POLICY))

    assert reasons(rules, image="weir-trainer:1") == []
    assert reasons(rules, image="registry/team-a/x") == []


def test_with_a_policy_an_empty_setting_allows_no_image() -> None:
    assert reasons(Rules(images=(), pod_rules=parse_pod_policy("")), image="any") == [
        "image: 'any' is not allowed; WEIR_ALLOCATOR_IMAGES allows none"
    ]
    assert reasons(Rules(images=()), image="any") == []


def test_the_lower_one_of_two_highest_priorities_holds() -> None:
    rules = Rules(max_priority=3, pod_rules=parse_pod_policy(POLICY))

    assert len(reasons(rules, priority=4)) == 1
    assert len(reasons(rules, priority=6)) == 2
