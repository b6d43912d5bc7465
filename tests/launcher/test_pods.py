"""Tests of the manifests of pods.

Pods have the labels of Kubernetes and of TFJob, and meet the Pod Security standard `restricted`.
"""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest
from msgspec.structs import replace

from services.launcher import pods
from services.launcher.actions import CreatePod
from services.launcher.facts import pod_fact
from services.launcher.settings import Settings
from services.trainer.settings import Settings as Trainer
from shared.messages import (
    Affinity,
    CheckpointRule,
    EnvFrom,
    EnvValueFrom,
    EnvVar,
    JobRequested,
    KeyRef,
    LabelRequirement,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    ObjectRef,
    Resources,
    RoleResources,
    Toleration,
    Volume,
)
from shared.runtime import config
from tests.deploy.restricted import violations
from tests.launcher.builders import decided, request, sent


def made(
    word: str = "w3",
    wanted: JobRequested | None = None,
    resources: Resources | None = None,
    folder: str = "",
    grace_s: float = 0.0,
    **fields: Any,
) -> Any:
    amounts = resources or Resources(cpu=0.5, memory_gib=1.5)
    decision = decided(4, word, resources=amounts)
    decision = replace(decision, request=wanted or request(), checkpoint_folder=folder)
    task = decision.tasks[0]
    name = f"net-{task.role}-{task.serial}"
    order = CreatePod(decision=decision, task=task, name=name, owner_uid="owner", grace_s=grace_s)
    return pods.pod_manifest(order, Settings(**fields))


def container(pod: Any) -> Any:
    return pod["spec"]["containers"][0]


def env(pod: Any) -> dict[str, str]:
    return {
        e["name"]: e.get("value") or e["valueFrom"]["fieldRef"]["fieldPath"]
        for e in container(pod)["env"]
    }


def test_a_pod_has_weirs_the_common_and_the_tfjob_labels() -> None:
    tags = made()["metadata"]["labels"]
    assert (
        tags["weir.dev/uid"] == "7"
        and tags["weir.dev/serial"] == "3"
        and tags["weir.dev/role"] == "worker"
    )
    assert (
        tags["app.kubernetes.io/managed-by"] == "weir"
        and tags["app.kubernetes.io/component"] == "worker"
    )
    assert (
        tags["training.kubeflow.org/replica-type"] == "worker"
        and tags["training.kubeflow.org/replica-index"] == "0"
    )
    assert "training.kubeflow.org/job-role" not in tags
    assert made("c0")["metadata"]["labels"]["training.kubeflow.org/job-role"] == "master"


def test_the_service_owns_the_pod() -> None:
    owner = made()["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Service", "net", "owner")
    service = pods.service_manifest(decided(1, "c0"))
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["selector"].items() <= made()["metadata"]["labels"].items()


def test_requests_equal_limits() -> None:
    found = container(made(resources=Resources(cpu=0.5, memory_gib=1.5, gpu=2)))["resources"]
    assert (
        found["requests"]
        == found["limits"]
        == {"cpu": "500m", "memory": "1536Mi", "nvidia.com/gpu": "2"}
    )


def test_a_resize_does_not_change_devices() -> None:
    patched = pods.resize_patch(Resources(cpu=1, memory_gib=1, gpu=2), "hard")["spec"][
        "containers"
    ][0]
    assert patched["resources"]["requests"] == {"cpu": "1000m", "memory": "1024Mi"}


def test_soft_limits_set_no_cpu_limit() -> None:
    first = container(made(wanted=request(cpu_limits="soft")))["resources"]
    then = pods.resize_patch(Resources(cpu=1, memory_gib=1), "soft")["spec"]["containers"][0][
        "resources"
    ]
    for resources in (first, then):
        assert "cpu" in resources["requests"] and "cpu" not in resources["limits"]
        assert resources["limits"]["memory"] == resources["requests"]["memory"]


def test_a_pod_is_pinned_to_its_node_and_never_restarts() -> None:
    spec = made()["spec"]
    rules = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    fields = rules["nodeSelectorTerms"][0]["matchFields"]
    assert fields == [{"key": "metadata.name", "operator": "In", "values": ["node-0"]}]
    assert spec["restartPolicy"] == "Never" and spec["terminationGracePeriodSeconds"] == 30


def test_the_trainer_gets_its_identity_and_the_bus() -> None:
    found = env(made(trainer_nats_url="nats://bus:4222"))
    assert found["WEIR_NATS_URL"] == "nats://bus:4222"
    who = [
        found[f"WEIR_TRAINER_{word}"]
        for word in ("JOB", "NAMESPACE", "UID", "ROLE", "SERIAL", "PORTS")
    ]
    assert who == ["net", "default", "7", "worker", "3", "2222,2223"]
    paths = [found[f"WEIR_TRAINER_{word}"] for word in ("POD", "POD_UID", "NODE", "HOST")]
    assert paths == ["metadata.name", "metadata.uid", "spec.nodeName", "status.podIP"]
    assert (found["WEIR_TRAINER_CPU"], found["WEIR_TRAINER_MEMORY_GIB"]) == ("0.5", "1.5")
    assert found["GRPC_FAIL_FAST"] == "use_caller"


@pytest.mark.parametrize(
    ("asked_s", "given_s", "found_s"), [(30.0, 90.0, "90"), (300.0, 90.0, "300")]
)
def test_the_grace_period_is_what_the_job_needs_and_at_least_the_request(
    asked_s: float, given_s: float, found_s: str
) -> None:
    pod = made(wanted=request(grace_s=asked_s), grace_s=given_s)
    told = env(pod)
    assert (
        str(pod["spec"]["terminationGracePeriodSeconds"])
        == told["WEIR_TRAINER_GRACE_MOST_S"]
        == found_s
    )
    assert told["WEIR_TRAINER_GRACE_S"] == f"{asked_s:g}"


@pytest.mark.parametrize(
    ("note", "grace_s"), [("45", 45), ("-1", None), ("a while", None), ("9" * 12, None)]
)
def test_the_requested_grace_period_is_read_back_from_the_pod(
    note: str, grace_s: int | None
) -> None:
    pod = made(wanted=request(grace_s=45.0))
    assert pod["metadata"]["annotations"]["weir.dev/grace-seconds"] == "45"
    pod["metadata"] |= {"uid": "u", "annotations": {"weir.dev/grace-seconds": note}}
    fact = pod_fact(sent(pod))
    assert fact is not None and fact.grace_s == grace_s


def test_the_trainer_gets_the_checkpoint_settings() -> None:
    own = {name: text for name, text in env(made(redo_s=90)).items() if "REDO" in name}
    who = {f"WEIR_TRAINER_{word}": "1" for word in ("UID", "JOB", "POD", "POD_UID", "SERIAL")}
    assert (
        config.load_settings(Trainer, "trainer", {**own, **who, "WEIR_TRAINER_ROLE": "ps"}).redo_s
        == 90.0
    )


def test_the_trainer_gets_the_share_of_time_for_gradient_noise() -> None:
    own = {name: text for name, text in env(made(noise_share=0.0)).items() if "NOISE" in name}
    who = {f"WEIR_TRAINER_{word}": "1" for word in ("UID", "JOB", "POD", "POD_UID", "SERIAL")}
    understood = config.load_settings(Trainer, "trainer", {**own, **who, "WEIR_TRAINER_ROLE": "ps"})

    assert understood.noise_share == 0.0


def test_a_trainer_of_version_0_2_0_knows_every_setting_with_its_prefix() -> None:
    """It stops at an unknown one. Its job continues under this launcher."""
    known = [
        "CHECKPOINT_DIR",
        "CONTINUE_FROM",
        "CPU",
        "GRACE_MOST_S",
        "GRACE_S",
        "HOST",
        "JOB",
        "LAST_SAVE_S",
        "LEAVE_S",
        "MEMORY_GIB",
        "NAMESPACE",
        "NODE",
        "PEER_GRACE_S",
        "POD",
        "POD_UID",
        "PORTS",
        "PREPARE_NICE",
        "PROGRESS_S",
        "REDO_S",
        "ROLE",
        "SERIAL",
        "STUCK_EARLY_S",
        "STUCK_PATIENCE",
        "STUCK_S",
        "UID",
        "USAGE_S",
    ]
    given = {name for name in env(made()) if name.startswith("WEIR_TRAINER_")}

    assert given <= {f"WEIR_TRAINER_{name}" for name in known}


def test_the_trainer_gets_the_stall_settings() -> None:
    patient = env(made(stuck_s=3600, stuck_early_s=0.5, stuck_patience=2))
    own = {name: text for name, text in patient.items() if "STUCK" in name}
    who = {f"WEIR_TRAINER_{word}": "1" for word in ("UID", "JOB", "POD", "POD_UID", "SERIAL")}

    understood = config.load_settings(Trainer, "trainer", {**own, **who, "WEIR_TRAINER_ROLE": "ps"})

    assert (understood.stuck_s, understood.stuck_early_s, understood.stuck_patience) == (
        3600.0,
        0.5,
        2.0,
    )


def test_a_trainer_uses_the_launchers_bus_by_default() -> None:
    assert env(made(nats_url="nats://here:4222"))["WEIR_NATS_URL"] == "nats://here:4222"


def test_the_container_has_the_name_and_command_of_a_tfjob() -> None:
    found = container(made())
    assert (found["name"], found["command"]) == ("tensorflow", ["python", "-m", "services.trainer"])
    assert found["ports"] == [{"name": "tfjob-port", "containerPort": 2222}]
    assert "ports" not in container(made(task_ports="0,0"))


def test_the_image_is_that_of_the_request_or_the_settings() -> None:
    assert container(made(image="ours:1"))["image"] == "ours:1"
    assert container(made(wanted=request(image="theirs:2")))["image"] == "theirs:2"


def test_checkpoints_are_in_the_folder_of_the_acceptance() -> None:
    def where(path: str | None, folder: str = "", root: str = "/ckpt") -> str:
        wanted = request(checkpoint=CheckpointRule(path=path))
        return env(made(wanted=wanted, folder=folder, checkpoint_dir=root))[
            "WEIR_TRAINER_CHECKPOINT_DIR"
        ]

    assert where(None, "default/net-7-x") == "/ckpt/default/net-7-x"
    assert where("gs://bucket/net", "default/net-7-x") == "gs://bucket/net/default/net-7-x"
    assert where(None, "default/net-7-x", "gs://bucket/weir") == "gs://bucket/weir/default/net-7-x"
    assert [where(path) for path in (None, "mine")] == ["/ckpt/default/net-7", "/ckpt/mine"], (
        "accepted by 0.1.0"
    )


def test_a_pod_mounts_only_its_jobs_folder_of_the_claim() -> None:
    pod = made(folder="default/net-7-x", checkpoint_claim="shared", checkpoint_dir="/ckpt")
    mounts = [m for m in container(pod)["volumeMounts"] if m["name"] == "weir-checkpoints"]
    assert mounts == [
        {
            "name": "weir-checkpoints",
            "mountPath": "/ckpt/default/net-7-x",
            "subPath": "default/net-7-x",
        },
    ]


def test_the_folder_of_an_earlier_job_is_mounted_read_only() -> None:
    wanted = request(checkpoint=CheckpointRule(continue_from="default/old-3-y"))
    pod = made(
        wanted=wanted, folder="default/net-7-x", checkpoint_claim="shared", checkpoint_dir="/ckpt"
    )
    mounts = {
        m["mountPath"]: m for m in container(pod)["volumeMounts"] if m["name"] == "weir-checkpoints"
    }
    assert (
        mounts["/ckpt/default/old-3-y"]["readOnly"]
        and "readOnly" not in mounts["/ckpt/default/net-7-x"]
    )
    assert env(pod)["WEIR_TRAINER_CONTINUE_FROM"] == "/ckpt/default/old-3-y"


def test_checkpoints_at_a_url_need_no_claim() -> None:
    wanted = request(checkpoint=CheckpointRule(path="gs://bucket/net"))
    pod = made(wanted=wanted, folder="default/net-7-x", checkpoint_claim="shared")
    assert "weir-checkpoints" not in {v["name"] for v in pod["spec"]["volumes"]}
    assert "weir-checkpoints" not in {m["name"] for m in container(pod)["volumeMounts"]}


def test_volumes_are_mounted() -> None:
    wanted = (
        Volume(name="a", mount_path="/a", claim="c"),
        Volume(name="b", mount_path="/b", host_path="/h"),
    )
    pod = made(wanted=request(volumes=wanted), checkpoint_claim="shared", checkpoint_dir="/ckpt")
    sources = {v["name"]: v for v in pod["spec"]["volumes"]}
    assert sources["a"]["persistentVolumeClaim"] == {"claimName": "c"}
    assert sources["b"]["hostPath"] == {"path": "/h"}
    assert [m["mountPath"] for m in container(pod)["volumeMounts"]] == [
        "/a",
        "/b",
        "/ckpt/default/net-7",
        "/tmp",
    ]


def test_a_pod_is_read_back_as_created() -> None:
    body = made()
    body["metadata"]["uid"] = "u"
    fact = pod_fact(sent(body))
    assert fact and (fact.job_uid, fact.role, fact.serial, fact.generation) == (7, "worker", 3, 4)
    assert fact.resources == fact.created_with == Resources(cpu=0.5, memory_gib=1.5)


CLAIM = Volume(name="data", mount_path="/data", claim="examples")


@pytest.mark.parametrize("word", ["c0", "p1", "w3"])
@pytest.mark.parametrize(
    "settings", [{}, {"run_as_user": 1000, "checkpoint_claim": "shared", "home": ""}], ids=str
)
def test_pods_of_every_role_meet_the_restricted_standard(
    word: str, settings: dict[str, Any]
) -> None:
    wanted = request(volumes=(CLAIM,), image="theirs:2")
    assert (
        violations(made(word, wanted, Resources(cpu=1, memory_gib=1, gpu=1), **settings)["spec"])
        == []
    )


def test_a_host_path_violates_the_restricted_standard() -> None:
    wanted = request(volumes=(Volume(name="data", mount_path="/data", host_path="/srv"),))
    assert violations(made(wanted=wanted)["spec"]) == ["volume data: hostPath"]


def test_the_root_file_system_is_read_only_and_tmp_is_limited() -> None:
    pod = made(tmp_gib=0.5)
    assert container(pod)["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"name": "weir-tmp", "mountPath": "/tmp"} in container(pod)["volumeMounts"]
    assert {"name": "weir-tmp", "emptyDir": {"sizeLimit": "512Mi"}} in pod["spec"]["volumes"]
    assert env(pod)["HOME"] == "/tmp" and "HOME" not in env(made(home=""))


def test_a_pod_has_no_api_token() -> None:
    assert made()["spec"]["automountServiceAccountToken"] is False


def test_a_pod_has_a_non_root_group_and_the_configured_priority() -> None:
    assert made()["spec"]["securityContext"]["runAsGroup"] == 65532
    assert (
        made(run_as_user=1000, run_as_group=1000)["spec"]["securityContext"]["runAsGroup"] == 1000
    )
    with pytest.raises(config.BadSettings, match="RUN_AS_GROUP"):
        config.load_settings(Settings, "launcher", {"WEIR_LAUNCHER_RUN_AS_GROUP": "0"})
    assert "priorityClassName" not in made()["spec"]
    assert made(priority_class="weir-jobs")["spec"]["priorityClassName"] == "weir-jobs"


def test_the_user_is_that_of_the_image_or_the_settings_and_never_root() -> None:
    def loaded(user: str) -> Settings:
        return config.load_settings(Settings, "launcher", {"WEIR_LAUNCHER_RUN_AS_USER": user})

    assert "runAsUser" not in made()["spec"]["securityContext"]
    assert (
        made(run_as_user=loaded("1000").run_as_user)["spec"]["securityContext"]["runAsUser"] == 1000
    )
    with pytest.raises(config.BadSettings, match="RUN_AS_USER"):
        loaded("0")


# ---------------------------------------------------------------- the settings of a request

POOLS = NodeSelector(
    node_selector_terms=(
        NodeSelectorTerm(
            match_expressions=(LabelRequirement(key="pool", operator="In", values=("a", "b")),)
        ),
        NodeSelectorTerm(match_expressions=(LabelRequirement(key="gpu", operator="Exists"),)),
    )
)
SETTINGS: dict[str, Any] = {
    "env": (
        EnvVar(name="STAGE", value="train"),
        EnvVar(name="TF_CPP_MIN_LOG_LEVEL", value="0"),
        EnvVar(
            name="KEY", value_from=EnvValueFrom(secret_key_ref=KeyRef(name="bucket", key="key"))
        ),
        EnvVar(
            name="SIZE",
            value_from=EnvValueFrom(config_map_key_ref=KeyRef(name="sizes", key="size")),
        ),
    ),
    "env_from": (
        EnvFrom(secret_ref=ObjectRef(name="bucket"), prefix="BUCKET_"),
        EnvFrom(config_map_ref=ObjectRef(name="sizes")),
    ),
    "volumes": (
        Volume(name="keys", mount_path="/keys", secret="bucket"),
        Volume(name="sizes", mount_path="/sizes", config_map="sizes"),
    ),
    "service_account": "trainer",
    "image_pull_secrets": (ObjectRef(name="registry"),),
    "node_selector": {"disk": "ssd"},
    "affinity": Affinity(
        node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=POOLS)
    ),
    "tolerations": (
        Toleration(key="team", value="a", effect="NoSchedule"),
        Toleration(operator="Exists"),
    ),
    "priority_class": "high",
    "labels": {"team": "a", "weir.dev/job": "other"},
    "annotations": {"example.com/cost": "7", "weir.dev/generation": "9"},
    "shm_gib": 0.5,
}


def with_settings() -> Any:
    return made(wanted=request(**SETTINGS), priority_class="of-the-cluster")


def test_a_pod_has_the_settings_of_its_request() -> None:
    pod = with_settings()
    spec, main = pod["spec"], container(pod)
    variables = {each["name"]: each for each in main["env"]}
    assert len(variables) == len(main["env"]), "no name occurs twice"
    assert variables["STAGE"] == {"name": "STAGE", "value": "train"}
    assert variables["TF_CPP_MIN_LOG_LEVEL"]["value"] == "0"
    assert variables["KEY"]["valueFrom"] == {"secretKeyRef": {"name": "bucket", "key": "key"}}
    assert variables["SIZE"]["valueFrom"] == {"configMapKeyRef": {"name": "sizes", "key": "size"}}
    assert main["envFrom"] == [
        {"prefix": "BUCKET_", "secretRef": {"name": "bucket"}},
        {"configMapRef": {"name": "sizes"}},
    ]
    volumes = {each.pop("name"): each for each in spec["volumes"]}
    assert volumes["keys"] == {"secret": {"secretName": "bucket", "defaultMode": 0o440}}
    assert volumes["sizes"] == {"configMap": {"name": "sizes"}}
    assert volumes["weir-shm"] == {"emptyDir": {"medium": "Memory", "sizeLimit": "512Mi"}}
    mounts = {each["name"]: each for each in main["volumeMounts"]}
    assert mounts["keys"]["readOnly"] and mounts["sizes"]["readOnly"]
    assert mounts["weir-shm"]["mountPath"] == "/dev/shm"
    assert spec["serviceAccountName"] == "trainer" and not spec["automountServiceAccountToken"]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["nodeSelector"] == {"disk": "ssd"} and spec["priorityClassName"] == "high"
    assert spec["tolerations"] == [
        {"operator": "Equal", "key": "team", "value": "a", "effect": "NoSchedule"},
        {"operator": "Exists"},
    ]


def test_weirs_own_labels_and_annotations_win() -> None:
    meta = with_settings()["metadata"]
    assert meta["labels"]["team"] == "a" and meta["labels"]["weir.dev/job"] == "net"
    assert meta["annotations"]["example.com/cost"] == "7"
    assert meta["annotations"]["weir.dev/generation"] == "4"


def test_every_term_of_a_request_is_bound_to_the_chosen_node() -> None:
    affinity = with_settings()["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    chosen = [{"key": "metadata.name", "operator": "In", "values": ["node-0"]}]
    assert [term["matchFields"] for term in terms] == [chosen, chosen]
    assert terms[0]["matchExpressions"] == [{"key": "pool", "operator": "In", "values": ["a", "b"]}]
    assert terms[1]["matchExpressions"] == [{"key": "gpu", "operator": "Exists"}]


def test_no_variable_of_a_request_can_refer_to_the_credentials() -> None:
    """Kubernetes replaces `$(NAME)` only by variables that are listed before it."""
    names = [each["name"] for each in container(with_settings())["env"]]
    weirs = [name.startswith("WEIR_") for name in names]
    assert weirs.index(True) > names.index("SIZE")


def test_a_pod_with_all_settings_is_restricted_and_valid() -> None:
    pod = with_settings()
    assert violations(pod["spec"]) == []
    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)


def test_all_tasks_of_a_job_with_devices_tolerate_their_taint() -> None:
    card = Resources(cpu=1, memory_gib=1, gpu=1)
    wanted = request(resources=RoleResources(worker=card))
    for word in ("w3", "p1"):
        assert made(word, wanted)["spec"]["tolerations"] == [
            {"operator": "Exists", "key": "nvidia.com/gpu"}
        ]
