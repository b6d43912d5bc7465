"""Tests of each service's HTTP server: liveness and readiness for Kubernetes, and metrics.

Everything is real.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from nats.js.errors import NotFoundError

from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.programs import digest_of
from shared.messages import Program
from tests.allocator.builders import node as capacity
from tests.allocator.builders import request
from tests.conftest import NatsServer
from tests.monitor.builders import node, ours, pod
from tests.shared.kube.api_server import ApiServer, serving
from tests.shared.metric_lint import problems
from tests.shared.service_process import Asked

SERVICES = ("monitor", "allocator", "launcher")
PROGRAM = b"def model(): ..."
ASKING = ("monitor", "launcher")
NOBODY = frozenset[str]()
WORK = {"monitor": "capacity", "allocator": "allocator", "launcher": "kubernetes"}
"""The metrics that only the leading replica exports start with `weir_` and this word."""


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with serving(ApiServer()) as server:
        server.put("nodes", node("n1"))
        server.put("nodes", node("n2", unschedulable=True))
        server.put("pods", pod("a"))
        server.put("pods", ours())
        yield server


def service(name: str, nats_url: str, api: ApiServer) -> Asked:
    return Asked(
        name, nats_url, **({"kube_url": api.url, "kube_retry_s": "0.05"} if name in ASKING else {})
    )


async def follows(bus: Bus, stream: str) -> bool:
    try:
        return bool(await bus.js.consumer_info(stream, f"allocator-{stream}"))
    except NotFoundError:
        return False


async def forgotten(bus: Bus, stream: str) -> None:
    """Delete the consumer of the allocator, which creates it again within seconds."""
    with contextlib.suppress(NotFoundError):
        await bus.js.delete_consumer(stream, f"allocator-{stream}")


@pytest.mark.parametrize("name", SERVICES)
async def test_a_service_is_ready_while_the_bus_answers_and_always_alive(
    name: str, bus: Bus, nats_server: NatsServer, api: ApiServer
) -> None:
    await nats_server.kill()
    async with service(name, nats_server.url, api) as asked:
        assert await asked.until("/healthz", 200) == "alive\n"
        assert await asked.until("/readyz", 503) == "not ready: waiting for its start\n"
        await nats_server.start()
        await asked.begun()
        assert (await asked.ask("/readyz")) == (200, "ready\n")
        await nats_server.kill()
        assert "the bus" in await asked.until("/readyz", 503)
        assert (await asked.ask("/healthz"))[0] == 200
        told = await asked.values()
        assert (told["weir_bus_connected", NOBODY], told["weir_ready", NOBODY]) == (0, 0)
        await nats_server.start()
        await asked.until("/readyz", 200)
        told = await asked.values()
        assert (told["weir_bus_connected", NOBODY], told["weir_ready", NOBODY]) == (1, 1)
        assert told["weir_bus_reconnects_total", NOBODY] >= 1


@pytest.mark.parametrize("name", SERVICES)
async def test_a_hanging_bus_is_detected_although_the_connection_is_open(
    name: str, bus: Bus, nats_server: NatsServer, api: ApiServer
) -> None:
    """A service that reads notices the missing heartbeat. The monitor notices when it publishes."""
    asked = service(name, nats_server.url, api)
    asked.environ["WEIR_LEASE_S"] = (
        "600"  # a service that cannot renew its lease exits, maybe before it notices
    )
    async with asked:
        await asked.begun()
        with nats_server.hung():
            api.put("pods", pod("b"))
            said = await asked.until("/readyz", 503)
            told = await asked.values()
            assert ("to store its messages" if name == "monitor" else "messages of") in said
            assert (told["weir_bus_messages_waiting", NOBODY] > 0) == (name == "monitor")
            assert (await asked.ask("/healthz"))[0] == 200
        assert await asked.until("/readyz", 200) == "ready\n"


@pytest.mark.parametrize("name", SERVICES)
async def test_a_standby_is_ready_at_once_and_reports_that_it_does_not_lead(
    name: str, bus: Bus, nats_url: str, api: ApiServer
) -> None:
    """So a rolling update that waits for it continues, and stops the leader."""
    async with service(name, nats_url, api) as first:
        await first.begun()
        async with service(name, nats_url, api) as second:
            assert await second.until("/readyz", 200) == "ready\n"
            assert (await first.values())["weir_leader", NOBODY] == 1
            told = await second.values()
            assert told["weir_leader", NOBODY] == 0
            assert not any(key.startswith(f"weir_{WORK[name]}") for key, _ in told), (
                "what it measures is its work"
            )
            await first.stop()
            async with asyncio.timeout(60):
                while (await second.values())["weir_leader", NOBODY] != 1:
                    await asyncio.sleep(0.05)
            await second.until("/readyz", 200)
            assert any(key.startswith(f"weir_{WORK[name]}") for key, _ in await second.values())


async def test_a_single_replica_leads(bus: Bus, nats_url: str, api: ApiServer) -> None:
    alone = service("allocator", nats_url, api)
    alone.environ["WEIR_LEASE_S"] = "0"
    async with alone:
        await alone.begun()
        assert (await alone.values())["weir_leader", NOBODY] == 1


@pytest.mark.parametrize("name", ASKING)
async def test_a_service_is_not_ready_before_its_first_list(
    name: str, bus: Bus, nats_url: str, api: ApiServer
) -> None:
    api.trouble = [(403, "Forbidden")] * 10_000
    async with service(name, nats_url, api) as asked:
        async with asyncio.timeout(60):
            while (
                "weir_kubernetes_requests_total",
                frozenset({"list", "403"}),
            ) not in await asked.values():
                await asyncio.sleep(0.05)
        assert "the list" in await asked.until("/readyz", 503)
        assert (await asked.ask("/healthz"))[0] == 200
        api.trouble.clear()
        assert await asked.until("/readyz", 200) == "ready\n"


async def test_a_service_whose_consumer_was_deleted_is_not_ready(
    bus: Bus, nats_url: str, api: ApiServer
) -> None:
    """For example, its consumer was deleted by somebody else. The connection still works."""
    async with service("allocator", nats_url, api) as asked:
        await asked.begun()
        async with asyncio.timeout(60):
            while (told := await asked.ask("/readyz"))[0] != 503:
                await forgotten(bus, subjects.FACTS)
        assert told[1] == f"not ready: waiting for messages of {subjects.FACTS}\n"
        assert (await asked.values())["weir_bus_connected", NOBODY] == 1
        assert await asked.until("/readyz", 200) == "ready\n"  # it has created another consumer


async def test_the_monitor_exports_cluster_capacity(
    bus: Bus, nats_url: str, api: ApiServer
) -> None:
    async with service("monitor", nats_url, api) as asked:
        await asked.begun()
        async with asyncio.timeout(60):
            while ("weir_monitor_reaction_seconds_count", NOBODY) not in (
                told := await asked.values()
            ):
                await asyncio.sleep(0.05)
        cores = {
            share: told["weir_capacity_cpu_cores", frozenset({share})]
            for share in ("allocatable", "free", "ours")
        }
        assert cores == {"allocatable": 16, "free": 14, "ours": 1}
        assert told["weir_capacity_memory_bytes", frozenset({"ours"})] == 1 << 30
        assert told["weir_capacity_nodes", frozenset({"cordoned"})] == 1
        assert told["weir_bus_messages_published_total", frozenset({"capacity.changed"})] == 2
        # Nodes and pods, quotas and limit ranges, claims and volumes.
        assert told["weir_kubernetes_requests_total", frozenset({"list", "200"})] == 6
        assert (told["process_resident_memory_bytes", NOBODY] > 1 << 20) and told[
            "weir_ready", NOBODY
        ] == 1


async def test_the_allocator_counts_decisions_and_dead_letters(
    bus: Bus, nats_url: str, api: ApiServer
) -> None:
    async with service("allocator", nats_url, api) as asked:
        digest = digest_of(PROGRAM)
        await (await bus.program_store()).put(digest, PROGRAM)
        await bus.publish(capacity(cpu=3))
        await bus.request(request(program=Program(name="train.py", digest=digest)))
        await bus.js.publish("weir.job.requested.nobody", b"{not json")
        await asked.begun()
        async with asyncio.timeout(60):
            while (told := await asked.values()).get(
                ("weir_allocator_jobs", frozenset({"starting"}))
            ) != 1:
                await asyncio.sleep(0.05)
        assert told["weir_allocator_decisions_total", frozenset({"weir", "start"})] == 1
        assert told["weir_allocator_decision_seconds_count", NOBODY] >= 1
        assert told["weir_bus_dead_letters_total", frozenset({subjects.ORDERS})] == 1
        assert told["weir_bus_messages_heard_total", frozenset({"capacity.changed"})] == 1
        assert told["weir_bus_messages_heard_total", frozenset({"job.requested"})] == 1


@pytest.mark.parametrize("name", SERVICES)
async def test_the_exported_metrics_pass_promtool(
    name: str, bus: Bus, nats_url: str, api: ApiServer
) -> None:
    async with service(name, nats_url, api) as asked:
        await asked.begun()
        _, text = await asked.ask("/metrics")
        assert "weir_ready 1.0" in text and problems(text) == []
        async with asked.session.get("/metrics") as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_without_a_port_no_server_is_started(bus: Bus, nats_url: str, api: ApiServer) -> None:
    asked = service("allocator", nats_url, api)
    asked.environ["WEIR_METRICS_PORT"] = "0"
    async with asked:
        async with asyncio.timeout(60):
            while not await follows(bus, subjects.FACTS):
                await asyncio.sleep(0.05)
        assert await asked.ask("/healthz") == (0, "")
