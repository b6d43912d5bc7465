"""Tests of the launcher with an API server that fails at random.

Each pod is created once, each exit is reported once, and nothing is left at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from shared.bus.bus import Bus
from shared.messages import GenerationAbandoned, JobFinished, TaskExited, TaskStarted
from shared.runtime import process
from tests.launcher.builders import JOB, UID, decided, names
from tests.launcher.test_service import SAID, Stage
from tests.shared.kube.api_server import serving
from tests.shared.kube.flaky_api_server import PATIENCE_S, RudeServer

QUICK = {"kube_timeout_s": PATIENCE_S, "kube_watch_s": 1, "kube_rate": 1e3, "kube_burst": 100}
FIRST, SECOND = "c0 p1 w2 w3", "c0 p1 w3 w4 w5"
ENDED = {
    "phase": "Failed",
    "containerStatuses": [{"state": {"terminated": {"reason": "Error", "exitCode": 3}}}],
}


async def trouble(server: RudeServer) -> None:
    """Fail the server as a whole, again and again at random times."""
    while True:
        await asyncio.sleep(server.chance.random() * 0.3)
        await server.chance.choice((restarts, expires, hangs_up))(server)


async def restarts(server: RudeServer) -> None:
    await server.restart(0.05)


async def expires(server: RudeServer) -> None:
    server.forget()
    server.expire()


async def hangs_up(server: RudeServer) -> None:
    server.hang_up()


@pytest.fixture(params=range(4))
async def stage(nats_url: str, bus: Bus, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with serving(RudeServer(request.param)) as server:
        server.node("node-0")
        made = Stage(nats_url, bus, server)
        await bus.follow(SAID, made.on_said, {})
        troubling = asyncio.create_task(trouble(server))
        await made.begin(**QUICK)
        yield made
        await process.cancel_tasks(troubling)
        await made.kill()


def made(server: RudeServer) -> list[str]:
    """Return the names of all pods that were created, each as often as it was created."""
    events = (
        change for _, kind, change in server.history if kind == "pods" and change["type"] == "ADDED"
    )
    return sorted(change["object"]["metadata"]["name"] for change in events)


async def test_random_api_faults_cause_no_duplicate_and_no_leftover(
    stage: Stage,
) -> None:
    server = stage.server
    assert isinstance(server, RudeServer)

    await stage.train(decided(1, FIRST), FIRST, 1)
    await stage.heard(TaskStarted, 4)
    server.status("net-worker-2", **ENDED)
    exited = await stage.heard(TaskExited)
    await stage.train(decided(2, SECOND), SECOND, 2)
    await stage.heard(TaskStarted, 6)
    await stage.until(lambda: server.names("pods") == names(SECOND))
    await stage.bus.publish(JobFinished(job=JOB, uid=UID, outcome="succeeded"))
    await stage.until(lambda: not server.names("pods") and not server.names("services"))

    assert (exited.pod, exited.exit_code, stage.all(TaskExited)) == ("net-worker-2", 3, [exited])
    assert (
        made(server)
        == sorted(fact.pod for fact in stage.all(TaskStarted))
        == sorted({*names(FIRST), *names(SECOND)})
    )
    assert stage.all(GenerationAbandoned) == [] and len(server.met) > 3
