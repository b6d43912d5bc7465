"""Tests of the backup of the bus: it is restored after its volumes are lost."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from nats.errors import Error as NatsError

from services.__main__ import weir
from shared.bus import bus as wire
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.messages import JobFinished
from tests.deploy import restricted
from tests.deploy.rendered import DEPLOY, KUBECTL, named
from tests.deploy.servers import Secrets
from tests.deploy.test_nats import SERVERS, WITHIN_S, Three, made

ENDS_S = 60.0


def rendered(folder: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [str(KUBECTL), "kustomize", str(DEPLOY / folder)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("folder", ["backup", "recover"])
def test_backup_pods_are_admitted_and_mount_volumes_that_exist(folder: str) -> None:
    pods = rendered(folder)

    assert [line for pod in pods for line in restricted.violations(pod["spec"])] == []
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for pod in pods
        for volume in pod["spec"]["volumes"]
    }
    if folder == "recover":
        assert claims == {"weir-checkpoints"}
        return
    bus = named("production", "StatefulSet", "weir-nats")
    (template,) = bus["spec"]["volumeClaimTemplates"]
    names = [
        f"{template['metadata']['name']}-weir-nats-{number}"
        for number in range(bus["spec"]["replicas"])
    ]
    assert claims == {*names} and {pod["metadata"]["namespace"] for pod in pods} == {"weir-system"}


@pytest.fixture
def asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeout of a request: servers without a leader do not answer."""
    monkeypatch.setattr(wire, "ANSWER_S", 2.0)


async def stored(bus: Bus) -> int:
    """Return the number of orders, once all three servers hold the stream."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                info = await bus.js.stream_info(subjects.ORDERS)
                if info.cluster and all(replica.current for replica in info.cluster.replicas or ()):
                    return int(info.state.messages)
            except NatsError:
                pass
            await asyncio.sleep(0.1)


@pytest.mark.usefixtures("asks_again")
async def test_three_servers_are_restored_from_copies_of_their_volumes(
    secrets: Secrets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The volumes are copied while the servers are off, as the recipe says.

    Messages that are stored after the copy are lost.
    """
    three, credentials = Three(tmp_path, secrets), secrets["weir-nats-allocator"]["nats.creds"]
    monkeypatch.setenv("WEIR_NATS_CREDENTIALS", str(tmp_path / "credentials/setup.creds"))
    volumes = [tmp_path / str(number) / "data" for number in range(SERVERS)]
    async with three.running() as servers:
        await made(three.url, "--replicas", "3")
        await said(three.url, credentials, "one")
        for server in servers:
            server.terminate()
        async with asyncio.timeout(ENDS_S):
            await asyncio.gather(*(server.wait() for server in servers))
    for number, volume in enumerate(volumes):
        shutil.copytree(volume, tmp_path / f"backup-{number}")
    async with three.running():
        await said(three.url, credentials, "two")

    for number, volume in enumerate(volumes):
        shutil.rmtree(volume)
        shutil.copytree(tmp_path / f"backup-{number}", volume)

    async with three.running():
        bus = await wire.connect(three.url, "allocator", credentials)
        assert await stored(bus) == 1
        assert await bus.publish(JobFinished(job="three", uid=3, outcome="cancelled")) == 2
        await wait_for_streams(three.url)
        await bus.close()


async def wait_for_streams(url: str) -> None:
    """Wait until every stream is available; some may still elect their leaders."""
    async with asyncio.timeout(WITHIN_S):
        while await asyncio.to_thread(weir, ["streams", "verify", "--nats", url]):
            await asyncio.sleep(0.2)


async def said(url: str, credentials: str, job: str) -> None:
    bus = await wire.connect(url, "allocator", credentials)
    async with asyncio.timeout(WITHIN_S):
        await bus.publish(JobFinished(job=job, uid=1, outcome="cancelled"))
    await bus.close()
