"""Tests of RBAC on a real run: monitor and launcher have exactly the permissions that they use.

Both run with the settings of overlays/dev. A proxy records their requests to the API server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from services.launcher import pods
from services.launcher import service as launcher
from services.launcher.events import COMPONENT
from services.launcher.settings import Settings as LauncherSettings
from services.local.cluster_spec import NodeSpec
from services.local.service import Cluster, local_cluster
from services.monitor import service as monitor
from services.monitor.service import Settings as MonitorSettings
from shared.auth import keyring
from shared.bus import bus as wire
from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    JobFinished,
    Message,
    TaskStarted,
    TaskUpdated,
)
from shared.runtime import config
from shared.runtime.config import Common
from tests.deploy.listening import Call, Door, listening
from tests.deploy.rendered import environ, of
from tests.launcher.builders import JOB, SMALL, UID, decided

OVERLAY, WITHIN_S = "dev", 60
SLEEPER = ["python", "-c", "import time; time.sleep(600)"]
C = TypeVar("C", bound=Common)


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setattr(pods, "COMMAND", SLEEPER)
    async with local_cluster(
        [NodeSpec(name="node", cpu=4, memory_gib=8)], tmp_path / "cluster"
    ) as made:
        yield made


@pytest.fixture
async def door(cluster: Cluster) -> AsyncIterator[Door]:
    async with listening(cluster.url) as made:
        yield made


def allowed(account: str) -> set[Call]:
    """Return the permissions of a service account.

    Those bound by a RoleBinding are for requests in namespaces only.
    """
    roles = {body["metadata"]["name"]: body["rules"] for body in of(OVERLAY, "ClusterRole")}
    return {
        Call(body["kind"] == "RoleBinding", group, resource, verb)
        for body in of(OVERLAY, "ClusterRoleBinding", "RoleBinding")
        if account in [subject["name"] for subject in body["subjects"]]
        for rule in roles[body["roleRef"]["name"]]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def settings(kind: type[C], service: str, door: Door, **more: Any) -> C:
    """Return the overlay's settings of a service, with the proxy as its API server."""
    told = {
        name: value
        for name, value in environ(OVERLAY, f"weir-{service}").items()
        if "_NATS_" not in name
    }
    return replace(config.load_settings(kind, service, told), kube_url=door.url, **more)


class Heart:
    """Collects the messages that it gets from the bus."""

    def __init__(self) -> None:
        self.said: list[Message] = []

    async def on_said(self, heard: StoredMessage) -> None:
        self.said.append(heard.message)

    def count(self, kind: type[Message]) -> int:
        return sum(isinstance(message, kind) for message in self.said)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not true():
            await asyncio.sleep(0.02)


def written(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the Kubernetes Events of the launcher."""
    bodies = [stored.body for stored in cluster.store.objects["events"].values()]
    return [body for body in bodies if body["source"] == {"component": COMPONENT}]


def on_node(decision: AllocationDecided) -> AllocationDecided:
    return replace(decision, tasks=tuple(replace(task, node="node") for task in decision.tasks))


async def test_the_monitors_role_has_exactly_the_permissions_it_uses(
    nats_url: str, bus: Bus, door: Door
) -> None:
    own, heart = await wire.connect(nats_url, "monitor"), Heart()
    await bus.follow([CapacityChanged], heart.on_said, {})
    await monitor.start(own, settings(MonitorSettings, "monitor", door))
    await until(lambda: heart.said and {call.verb for call in door.calls} == {"list", "watch"})
    await until(lambda: len({call.resource for call in door.calls if call.verb == "watch"}) == 6)
    await own.close()

    assert door.calls == allowed("weir-monitor")


async def test_the_launchers_role_has_exactly_the_permissions_it_uses(
    nats_url: str, bus: Bus, cluster: Cluster, door: Door, tmp_path: Path
) -> None:
    """A job starts, is resized in place, shrinks and ends. Each creation is sent twice."""
    keyring.write_credentials(tmp_path / "keys", 0.0)
    here = {
        "kube_retry_s": 0.05,
        "task_ports": "0,0",
        "signing_key": str(tmp_path / "keys" / keyring.JOBS),
    }

    def there(kind: str) -> set[str]:
        return {name for _, name in cluster.store.objects[kind] if name.startswith(JOB)}

    own, heart = await wire.connect(nats_url, "launcher"), Heart()
    await bus.follow([TaskStarted, TaskUpdated], heart.on_said, {})
    await launcher.start(own, settings(LauncherSettings, "launcher", door, **here))
    await bus.publish(on_node(decided(1, "p1 w2", revision=1)))
    await until(lambda: heart.count(TaskStarted) == 2)
    await bus.publish(on_node(decided(1, "p1 w2", revision=2, resources=replace(SMALL, cpu=0.75))))
    await until(lambda: heart.count(TaskUpdated) == 2)
    await bus.publish(on_node(decided(2, "p1", revision=3)))
    await until(lambda: there("pods") == {f"{JOB}-ps-1"})
    await bus.publish(JobFinished(job=JOB, uid=UID, outcome="cancelled"))
    await until(lambda: not there("pods") and not there("services"))
    await until(lambda: {"Decided", "Cancelled"} <= {event["reason"] for event in written(cluster)})
    await own.close()

    assert door.calls == allowed("weir-launcher")


@pytest.mark.parametrize("account", ["weir-allocator", "weir-setup", "default"])
def test_no_other_account_has_api_permissions(account: str) -> None:
    assert allowed(account) == set()
