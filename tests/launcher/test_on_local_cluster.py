"""Tests of the launcher on a local cluster: pods are processes, and cpu changes in place."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from services.launcher import pods
from services.launcher.service import start
from services.launcher.settings import Settings
from services.local.cluster_spec import NodeSpec
from services.local.controllers import new_system_object
from services.local.kubelet.pod_status import pod_limits
from services.local.objects.bodies import with_meta, with_spec
from services.local.objects.kinds import BY_NAME, NAMESPACE, NODE, Kind
from services.local.service import Cluster, local_cluster
from shared.bus import bus as wire
from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage
from shared.messages import (
    AllocationDecided,
    EnvFrom,
    EnvValueFrom,
    EnvVar,
    GenerationAbandoned,
    JobFinished,
    KeyRef,
    Message,
    ObjectRef,
    Resources,
    TaskExited,
    TaskStarted,
    TaskUpdated,
    Toleration,
    Volume,
)
from tests.launcher.builders import JOB, SMALL, UID, decided, names, request

SAID: tuple[type[Message], ...] = (TaskStarted, TaskExited, TaskUpdated, GenerationAbandoned)
POLICIES = "networkpolicies.networking.k8s.io"
SECRET, CONFIG_MAP = BY_NAME["v1", "Secret"], BY_NAME["v1", "ConfigMap"]
SLEEPER = ["python", "-c", "import time; time.sleep(600)"]


class Stage:
    def __init__(self, bus: Bus, cluster: Cluster) -> None:
        self.bus, self.cluster, self.said = bus, cluster, list[Any]()

    async def on_said(self, heard: StoredMessage) -> None:
        self.said.append(heard.message)

    def all(self, kind: type[Message]) -> list[Any]:
        return [message for message in self.said if isinstance(message, kind)]

    def names(self, kind: str) -> list[str]:
        return sorted(name for _, name in self.cluster.store.objects[kind])

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not true():
                await asyncio.sleep(0.01)


@pytest.fixture(params=[()], ids=["everywhere"])
async def stage(
    nats_url: str,
    bus: Bus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> AsyncIterator[Stage]:
    """Yield a launcher on a local cluster. Parameter: the namespaces of jobs."""
    monkeypatch.setattr(pods, "COMMAND", SLEEPER)
    async with local_cluster(
        [NodeSpec(name="node", cpu=4, memory_gib=8)], tmp_path / "cluster"
    ) as cluster:
        made = Stage(bus, cluster)
        await bus.follow(SAID, made.on_said, {})
        launcher = Settings(
            kube_url=cluster.url, kube_retry_s=0.05, task_ports="0,0", job_namespaces=request.param
        )
        own = await wire.connect(nats_url, "launcher")
        await start(own, launcher)
        yield made
        await own.close()


def on_node(decision: AllocationDecided) -> AllocationDecided:
    return replace(decision, tasks=tuple(replace(task, node="node") for task in decision.tasks))


async def test_pods_run_resize_fail_and_are_deleted(stage: Stage) -> None:
    await stage.bus.publish(on_node(decided(1, "p1 w2", revision=1)))
    await stage.until(lambda: len(stage.all(TaskStarted)) == 2)
    more = replace(SMALL, cpu=0.75)
    await stage.bus.publish(on_node(decided(1, "p1 w2", revision=2, resources=more)))
    await stage.until(lambda: len(stage.all(TaskUpdated)) == 2)
    assert {fact.resources for fact in stage.all(TaskUpdated)} == {
        Resources(cpu=0.75, memory_gib=1.0)
    }
    assert stage.names("pods") == names("p1 w2") and JOB in stage.names("services")
    assert stage.names(POLICIES) == [JOB]
    await stage.bus.publish(JobFinished(job=JOB, uid=UID, outcome="cancelled"))
    await stage.until(lambda: not stage.names("pods") and JOB not in stage.names("services"))
    await stage.until(lambda: not stage.names(POLICIES))
    assert stage.all(TaskExited) == []


async def test_soft_limits_change_the_cpu_weight_of_a_pod_only(stage: Stage) -> None:
    soft = request(cpu_limits="soft")
    await stage.bus.publish(on_node(replace(decided(1, "w2", revision=1), request=soft)))
    await stage.until(lambda: len(stage.all(TaskStarted)) == 1)
    more = replace(SMALL, cpu=0.75)
    await stage.bus.publish(
        on_node(replace(decided(1, "w2", revision=2, resources=more), request=soft))
    )
    await stage.until(lambda: len(stage.all(TaskUpdated)) == 1)
    [pod] = [kept.body for kept in stage.cluster.store.objects["pods"].values()]
    [status] = pod["status"]["containerStatuses"]
    assert status["resources"] == {
        "requests": {"cpu": "750m", "memory": "1024Mi"},
        "limits": {"memory": "1024Mi"},
    }
    assert pod_limits(pod).cpu is None and pod_limits(pod).cpu_request == 750
    assert pod["status"]["qosClass"] == "Burstable" and status["restartCount"] == 0


def add_namespace(cluster: Cluster, name: str) -> None:
    body = new_system_object(cluster.store, NAMESPACE, name, spec={}, status={"phase": "Active"})
    cluster.store.create(NAMESPACE, body)


@pytest.mark.parametrize("stage", [("team-a", "team-b")], indirect=True)
async def test_jobs_run_only_in_their_namespaces(stage: Stage) -> None:
    for name in ("team-a", "team-b"):
        add_namespace(stage.cluster, name)
    for uid, name in enumerate(("team-a", "team-b", "default"), start=1):
        wanted = decided(1, "p1 w2", uid=uid)
        await stage.bus.publish(
            on_node(
                replace(wanted, namespace=name, request=replace(wanted.request, namespace=name))
            )
        )
    await stage.until(lambda: len(stage.all(TaskStarted)) == 4 and stage.all(GenerationAbandoned))
    [given_up] = stage.all(GenerationAbandoned)
    assert given_up.namespace == "default"
    assert given_up.reason == "jobs do not run in namespace default, but in team-a, team-b"
    assert {fact.namespace for fact in stage.all(TaskStarted)} == {"team-a", "team-b"}
    await stage.bus.publish(JobFinished(job=JOB, namespace="team-a", uid=1, outcome="cancelled"))
    await stage.until(lambda: len(stage.cluster.store.objects["pods"]) == 2)
    assert {namespace for namespace, _ in stage.cluster.store.objects["pods"]} == {"team-b"}
    assert stage.all(TaskExited) == []


PRINTER = """
import json, os, pathlib, time
names = ("STAGE", "KEY", "BUCKET_key", "SIZE", "KEY_FILE", "WEIR_TRAINER_JOB")
found = {name: os.environ.get(name) for name in names}
found["file"] = pathlib.Path(os.environ["KEY_FILE"]).read_text()
pathlib.Path(os.environ["OUT"]).write_text(json.dumps(found))
time.sleep(600)
"""


def add_data(cluster: Cluster, kind: Kind, name: str, **fields: Any) -> None:
    body = new_system_object(cluster.store, kind, name, "default", **fields)
    cluster.store.create(kind, body)


async def test_pods_have_the_variables_secrets_labels_and_nodes_of_their_request(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods, "COMMAND", ["python", "-c", PRINTER])
    out = tmp_path / "printed.json"
    wanted = request(
        env=(
            EnvVar(name="STAGE", value="train"),
            EnvVar(name="OUT", value=str(out)),
            EnvVar(name="KEY_FILE", value="/etc/keys/key"),
            EnvVar(
                name="KEY",
                value_from=EnvValueFrom(secret_key_ref=KeyRef(name="bucket", key="key")),
            ),
        ),
        env_from=(
            EnvFrom(secret_ref=ObjectRef(name="bucket"), prefix="BUCKET_"),
            EnvFrom(config_map_ref=ObjectRef(name="sizes")),
        ),
        volumes=(Volume(name="keys", mount_path="/etc/keys", secret="bucket"),),
        labels={"team": "a"},
        annotations={"example.com/cost": "7"},
        image_pull_secrets=(ObjectRef(name="registry"),),
        service_account="trainer",
        priority_class="high",
        node_selector={"pool": "a"},
        tolerations=(Toleration(key="team", value="a"),),
        shm_gib=0.25,
    )
    decision = replace(decided(1, "w2", revision=1), request=wanted)
    await stage.bus.publish(on_node(decision))
    await stage.until(lambda: stage.all(GenerationAbandoned) or stage.names("pods"))
    store = stage.cluster.store
    # The pod waits for a node of its pool.
    await stage.until(lambda: "didn't match Pod's node affinity" in str(only_pod(stage)))
    taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
    store.change(NODE, "", "node", lambda body: with_meta(body, labels={"pool": "a"}))
    store.change(NODE, "", "node", lambda body: with_spec(body, taints=[taint]))
    # Then it waits for its Secret.
    await stage.until(lambda: "CreateContainerConfigError" in str(only_pod(stage)))
    add_data(stage.cluster, CONFIG_MAP, "sizes", data={"SIZE": "7"})
    add_data(stage.cluster, SECRET, "bucket", data={"key": base64.b64encode(b"x y").decode()})
    await stage.until(out.exists)
    await stage.until(out.read_text)

    assert json.loads(out.read_text()) == {
        "STAGE": "train",
        "KEY": "x y",
        "BUCKET_key": "x y",
        "SIZE": "7",
        "KEY_FILE": str(stage.cluster.context.volumes_of(only_pod(stage)) / "keys" / "key"),
        "WEIR_TRAINER_JOB": JOB,
        "file": "x y",
    }
    pod = only_pod(stage)
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["annotations"]["example.com/cost"] == "7"
    spec = pod["spec"]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert (spec["serviceAccountName"], spec["priorityClassName"]) == ("trainer", "high")
    assert {"name": "weir-shm", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}} in spec[
        "volumes"
    ]


def only_pod(stage: Stage) -> Any:
    [kept] = stage.cluster.store.objects["pods"].values()
    return kept.body
