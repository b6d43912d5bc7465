"""Tests of the translation of a TFJob: each field that is lost is named once, with a remedy."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

import msgspec
import pytest
import yaml

from services.allocator.admission.validation import InvalidRequest, check_request
from services.allocator.settings import Rules
from services.cli.tfjob import WISHES, Asked, read_manifest, translate_tfjob
from services.console.job_file import complete_fields, encode_fields
from services.console.trouble import Trouble
from shared.messages import JobRequested, Resources, RoleResources, Span, Volume
from tests.cli.tfjobs import LARGE, SMALL

PROGRAM = {"name": "train.py", "digest": "sha256-" + "0" * 64}
SAID = {"epochs": 10, "batch": 64}


def asked(text: str = SMALL, **wishes: object) -> Asked:
    raw, beside = read_manifest(text, "job.yaml")
    return translate_tfjob(raw, {**dict.fromkeys(WISHES), **SAID, **wishes}, beside)  # type: ignore[arg-type]


def request(found: Asked) -> JobRequested:
    """Return the request as the allocator reads it; it must be valid."""
    body = encode_fields(complete_fields(found.fields, PROGRAM, "r1"), "job.yaml")
    checked = check_request(body, Rules(host_paths=("/",), images=()))
    assert not isinstance(checked, InvalidRequest), checked.reasons
    return checked


def changed(path: str, value: object, text: str = SMALL) -> str:
    """Return the manifest with `value` at `path`."""
    return yaml.safe_dump(replaced(yaml.safe_load(text), path, value), sort_keys=False)


def replaced(raw: Any, path: str, value: object) -> Any:
    *way, last = path.split(".")
    part = found = deepcopy(raw)
    for word in way:
        part = part[int(word) if word.isdigit() else word]
    part[int(last) if last.isdigit() else last] = value
    return found


WORKER = "spec.tfReplicaSpecs.Worker.template.spec"


def test_a_small_tfjob_keeps_name_size_image_and_resources() -> None:
    found = request(asked())
    assert (found.job, found.namespace, found.image) == (
        "dist-mnist",
        "vision",
        "registry.example/vision/mnist:1.4",
    )
    assert (found.ps, found.workers) == (Span(start=2, min=1, max=2), Span(start=4, min=1, max=4))
    assert (found.epochs, found.batch) == (10, Span(start=64, min=64, max=64))
    ps, worker = Resources(cpu=1, memory_gib=2), Resources(cpu=2, memory_gib=4, gpu=1)
    assert found.resources == RoleResources(ps=ps, worker=worker)


def test_a_small_tfjob_loses_nothing() -> None:
    found = asked()
    assert found.describe_remarks("wrong") == found.describe_remarks("lost") == []
    assert found.describe_remarks("moot") == [
        (
            "no Chief: every job has a chief, which distributes the work; add a Chief to set its"
            " resources"
        ),
        (
            "image registry.example/vision/mnist:1.4: must have Weir's trainer in it (FROM"
            " weir-trainer); --image IMAGE sets another, --image '' the cluster's"
        ),
        "PS, Worker: restartPolicy: a lost task is replaced, and training continues",
        "Worker: command: is not run: Weir trains PROGRAM",
        "Worker: args: are not used: write their values into PROGRAM",
    ]


def test_maximum_sizes_are_options() -> None:
    found = request(asked(**{"max-ps": 5, "max-workers": 32}))
    assert (found.ps.max, found.workers.max) == (5, 32)


def test_options_have_precedence_over_annotations() -> None:
    found = asked(LARGE, epochs=None, batch=512)
    assert found.program == "train.py"
    assert (found.fields["epochs"], found.fields["batch"]) == (3, 512)
    assert (found.fields["ps"]["max"], found.fields["workers"]["max"]) == (4, 16)


def test_a_large_tfjob_keeps_claims_paths_and_timeouts() -> None:
    found = request(asked(LARGE))
    assert found.volumes == (
        Volume(name="data", mount_path="/data", claim="clicks-data"),
        Volume(name="logs", mount_path="/var/log/train", host_path="/var/log/train"),
    )
    assert found.grace_s == 60
    each = Resources(cpu=0.5, memory_gib=3)
    assert found.resources == RoleResources(chief=each, ps=each, worker=each)


def test_lost_fields_of_a_large_tfjob_are_named_once_with_their_path() -> None:
    where = "Chief, PS, Worker: "
    lost = asked(LARGE).describe_remarks("lost")
    assert [line.removeprefix(where).partition(":")[0] for line in lost] == [
        "activeDeadlineSeconds",
        "serviceAccountName",
        "nodeSelector",
        "securityContext",
        "initContainers",
        "mount /data, readOnly",
        "env DATA_DIR",
        "resource ephemeral-storage",
        "container tensorboard",
        "volume cache (emptyDir)",
        "volume token (secret)",
    ]
    assert all(line.startswith(where) for line in lost[1:])


def test_fields_that_weir_handles_differently_are_named() -> None:
    moot = [
        re.sub("^Chief.*?: ", "", line).partition(":")[0]
        for line in asked(LARGE).describe_remarks("moot")
    ]
    assert moot == [
        "Evaluator",
        "image registry.example/ads/clicks",
        "successPolicy",
        "cleanPodPolicy",
        "backoffLimit",
        "schedulingPolicy",
        "restartPolicy",
        "tolerations",
        "imagePullPolicy",
        "workingDir",
        "ports",
        "resource cpu",
        "resource memory",
        "volume scratch (emptyDir)",
        "PersistentVolumeClaim in the same file",
    ]


@pytest.mark.parametrize("field", ["epochs", "batch"])
def test_missing_required_fields_are_named(field: str) -> None:
    [why] = asked(**{field: None}).describe_remarks("wrong")
    assert (
        why.startswith(f"{field}: no TFJob has ")
        and f"--{field} N" in why
        and f"weir.dev/{field}" in why
    )


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("metadata.name", None, "metadata.name: is missing"),
        (
            "metadata.annotations",
            {"weir.dev/epoch": "3"},
            "annotation weir.dev/epoch: is not known; use epochs,",
        ),
        ("spec.tfReplicaSpecs", {}, "spec.tfReplicaSpecs: has no Worker and no Chief"),
        (
            "spec.tfReplicaSpecs.Helper",
            {"replicas": 1},
            "Helper: is not a replica type; use PS, Worker,",
        ),
        ("spec.tfReplicaSpecs.Worker.replicas", 0, "spec.tfReplicaSpecs: worker has 0 replicas"),
        (
            "spec.tfReplicaSpecs.Chief",
            {"replicas": 2},
            "spec.tfReplicaSpecs: a job has one Chief (or Master)",
        ),
        (
            f"{WORKER}.containers.0.name",
            "main",
            "Worker: has no container called tensorflow, as a TFJob must",
        ),
        (
            f"{WORKER}.containers.0.resources.limits.cpu",
            "two",
            "Worker: resource cpu: 'two' is not a quantity",
        ),
    ],
)
def test_unsupported_fields_are_named(path: str, value: object, why: str) -> None:
    assert any(
        told.startswith(why) for told in asked(changed(path, value)).describe_remarks("wrong")
    )


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (f"{WORKER}.hostNetwork", True, "Worker: hostNetwork: a job's pods have no privileges"),
        (f"{WORKER}.somethingNew", {"a": 1}, "Worker: somethingNew: Weir does not support it"),
        (
            f"{WORKER}.tolerations",
            [{"key": "spot"}],
            "Worker: tolerations: is not taken from a TFJob",
        ),
        (
            f"{WORKER}.containers.0.image",
            "another",
            "images: all tasks of a job use the same image",
        ),
        (
            f"{WORKER}.containers.0.securityContext",
            {"privileged": True},
            "Worker: securityContext: pods are restricted",
        ),
        (
            f"{WORKER}.containers.0.envFrom",
            [{"secretRef": {"name": "s"}}],
            "Worker: envFrom: is not taken from a TFJob; a job file has `env_from`",
        ),
        ("spec.runPolicy", {"suspend": True}, "suspend: submit the job at the time of its start"),
        (
            "spec.runPolicy",
            {"schedulingPolicy": {"priorityClass": "high"}},
            "schedulingPolicy: give --priority N",
        ),
        ("spec.activeDeadlineSeconds", 60, "activeDeadlineSeconds: no job has a deadline"),
    ],
)
def test_lost_fields_that_training_may_need_are_reported(
    path: str, value: object, why: str
) -> None:
    assert any(
        told.startswith(why) for told in asked(changed(path, value)).describe_remarks("lost")
    )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{WORKER}.hostNetwork", False),
        (f"{WORKER}.serviceAccountName", "default"),
        (f"{WORKER}.automountServiceAccountToken", False),
        (f"{WORKER}.nodeSelector", {}),
        (f"{WORKER}.affinity", None),
        ("spec.runPolicy", {"suspend": False}),
        ("status", {"conditions": []}),
    ],
)
def test_fields_that_hold_anyway_are_not_reported(path: str, value: object) -> None:
    assert asked(changed(path, value)).remarks == asked().remarks


def test_without_ps_one_is_added_and_a_single_chief_becomes_a_worker() -> None:
    chief = yaml.safe_load(SMALL)["spec"]["tfReplicaSpecs"]["Worker"] | {"replicas": 1}
    alone = asked(changed("spec.tfReplicaSpecs", {"Master": chief}))
    found = request(alone)
    assert (found.ps, found.workers) == (Span(start=1, min=1, max=1), Span(start=1, min=1, max=1))
    assert found.resources and found.resources.worker == Resources(cpu=2, memory_gib=4, gpu=1)
    assert [why.partition(":")[0] for why in alone.describe_remarks("moot")][:2] == [
        "no PS",
        "no Worker",
    ]


def test_the_image_can_be_replaced_or_left_to_the_cluster() -> None:
    assert asked(image="ours:2").fields["image"] == "ours:2"
    assert "image" not in asked(image="").fields
    assert not [why for why in asked(image="").describe_remarks("moot") if why.startswith("image")]


def test_replica_types_are_case_insensitive() -> None:
    spec = yaml.safe_load(SMALL)["spec"]["tfReplicaSpecs"]
    small = asked(
        changed("spec.tfReplicaSpecs", {name.lower(): replica for name, replica in spec.items()})
    )
    assert small.fields == asked().fields


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [", "is not YAML"),
        ("", "has 0 TFJobs, and one is needed; there is nothing"),
        ("kind: PyTorchJob", "has 0 TFJobs, and one is needed; there is PyTorchJob"),
        (f"{SMALL}---{SMALL}", "has 2 TFJobs"),
        (
            SMALL.replace("kubeflow.org/v1", "kubeflow.org/v1beta2"),
            "has apiVersion kubeflow.org/v1beta2; only kubeflow.org/v1",
        ),
        (
            changed("spec.tfReplicaSpecs.Worker.replicas", "many"),
            r"this is not a TFJob: Expected `int \| null`, got `str`",
        ),
        (
            "kind: TFJob\napiVersion: kubeflow.org/v1",
            "this is not a TFJob: Object missing required field",
        ),
    ],
)
def test_a_file_without_a_tfjob_is_wrong_use(text: str, why: str) -> None:
    with pytest.raises(Trouble, match=why) as told:
        asked(text)
    assert told.value.code == 2


def test_any_manifest_gives_an_answer() -> None:
    """Replace each part of the manifest by values of other types.

    The result is fields or a `Trouble` with a text; no other exception is raised.
    """
    raw, wishes = yaml.safe_load(LARGE.partition("---")[2]), {**dict.fromkeys(WISHES), **SAID}
    for path in places(raw):
        for value in (None, 7, "word", [], [None], {}, {"a": None}):
            found = replaced(raw, path, value)
            try:
                if "." not in path:  # only these are parsed as a file: YAML is slow
                    found, _ = read_manifest(yaml.safe_dump(found), "job.yaml")
                msgspec.json.encode(translate_tfjob(found, wishes).fields)
            except Trouble as told:
                assert str(told)


def places(part: Any, path: str = "") -> list[str]:
    found = (
        part.items()
        if isinstance(part, dict)
        else enumerate(part)
        if isinstance(part, list)
        else ()
    )
    here = [(f"{path}.{name}".lstrip("."), inner) for name, inner in found if "." not in str(name)]
    return [
        place
        for where, inner in here
        for place in ([where] if isinstance(part, dict) else []) + places(inner, where)
    ]
