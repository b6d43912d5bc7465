"""Tests of the stack: a killed service is restarted, and no process is left after the end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import msgspec
import psutil
import pytest
from nats.errors import Error as NatsError
from nats.js.api import DeliverPolicy

from services.local.stack import Stack
from shared.auth import authority, keyring
from shared.auth.authority import Keys
from shared.auth.permissions import OPERATOR, Permissions
from shared.bus.bus import Bus, connect
from shared.bus.subjects import ORDERS, pattern
from shared.messages import CancelRequested, CapacityChanged
from tests.shared.secured_server import is_let_in, visitor

CLUSTER = "nodes:\n  - {name: node, cpu: 1, memory_gib: 2}\n"
NODE = pattern(CapacityChanged)


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER)
    async with Stack(tmp_path / "weir", file) as up:
        yield up


async def test_a_killed_service_is_restarted(stack: Stack) -> None:
    for name in ("monitor", "allocator", "launcher"):
        part = stack.parts[name]
        assert part.process is not None
        old = part.process.pid
        os.kill(old, signal.SIGKILL)
        async with asyncio.timeout(60):
            while part.process.pid == old:
                await asyncio.sleep(0.01)
        assert psutil.pid_exists(part.process.pid)


async def test_each_service_has_one_replica_that_leads_without_waiting(
    stack: Stack,
) -> None:
    for name in ("monitor", "allocator", "launcher"):
        process = stack.parts[name].process
        assert process is not None
        assert psutil.Process(process.pid).environ()["WEIR_LEASE_S"] == "0"


async def test_the_bus_listens_on_loopback_and_requires_its_random_credentials(
    stack: Stack,
) -> None:
    process = stack.parts["nats"].process
    assert process is not None
    addresses = {
        c.laddr.ip
        for c in psutil.Process(process.pid).net_connections()
        if c.status == psutil.CONN_LISTEN
    }

    assert addresses == {"127.0.0.1"}
    assert not await is_let_in(stack.nats_url, "")
    assert await is_let_in(stack.nats_url, Path(stack.operator).read_text())
    assert Path(stack.operator).stat().st_mode & 0o077 == 0


async def test_the_bus_syncs_acknowledged_messages_within_a_second(tmp_path: Path) -> None:
    """Each server reports its interval to an administrator of the system account."""
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER)
    async with Stack(tmp_path / "weir", file, services=(), nats_servers=3) as up:
        keys = msgspec.json.decode((up.credentials / keyring.KEYS).read_bytes(), type=Keys)
        anything = authority._user_limits(Permissions(publish=(">",), subscribe=(">",)))
        administrator = authority._credentials(
            keys.system, "root", anything, os.urandom(32), time.time()
        )
        intervals_s: list[float] = []
        async with visitor(up.nats_url, administrator) as admin:
            answers = await admin.client.subscribe(admin.client.new_inbox())
            await admin.client.publish("$SYS.REQ.SERVER.PING.JSZ", reply=answers.subject)
            async with asyncio.timeout(60):
                while len(intervals_s) < 3:
                    answer = msgspec.json.decode((await answers.next_msg(timeout=60)).data)
                    intervals_s.append(answer["data"]["config"]["sync_interval"] / 1e9)
    assert intervals_s == [0.5, 0.5, 0.5]


async def kill_and_wait(stack: Stack) -> None:
    """Kill all processes at once. None is restarted, and none can publish a last message."""
    parts = [stack.parts.pop(name) for name in [*stack.parts]]
    for part in parts:
        assert part.process is not None and part._restarter is not None
        part._restarter.cancel()
        part.process.kill()
    for part in parts:
        assert part.process is not None
        await part.process.wait()


async def node_told(stack: Stack, ready: bool) -> CapacityChanged:
    """Return the last fact of the only node, once its readiness is `ready`."""
    bus = await connect(stack.nats_url, OPERATOR, stack.operator)
    try:
        async with (
            asyncio.timeout(60),
            aclosing(bus.tail([NODE], deliver=DeliverPolicy.LAST_PER_SUBJECT)) as facts,
        ):
            async for heard in facts:
                assert isinstance(heard.message, CapacityChanged)
                if heard.message.ready == ready:
                    return heard.message
    finally:
        await bus.close()
    raise AssertionError


async def test_a_bus_of_three_servers_works_without_a_stream_leader(
    tmp_path: Path,
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER)
    async with Stack(tmp_path / "weir", file, services=(), nats_servers=3) as up:
        bus = await connect(up.nats_url, OPERATOR, up.operator)
        stored = await bus.request(CancelRequested(job="nobody", request_id="1"))
        before = await bus.js.stream_info(ORDERS)
        assert before.config.num_replicas == 3
        assert before.cluster is not None and before.cluster.leader in up.nats_parts
        lost = up.parts.pop(before.cluster.leader)
        await lost.stop()
        async with asyncio.timeout(60):
            while await next_stored(bus) is None:
                await asyncio.sleep(0.1)
        after = await bus.js.stream_info(ORDERS)
        assert after.cluster is not None and after.cluster.leader not in (
            None,
            before.cluster.leader,
        )
        raw = await bus.js.get_msg(ORDERS, stored)
        assert raw.subject == "weir.job.cancel.default.nobody"
        await bus.close()


async def next_stored(bus: Bus) -> int | None:
    """Return the sequence of one more cancellation; None while no server accepts it."""
    try:
        return await bus.request(CancelRequested(job="nobody", request_id="2"))
    except NatsError:
        return None


async def test_nodes_of_a_killed_cluster_are_reported_full_before_the_first_decision(
    tmp_path: Path,
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER)
    async with Stack(tmp_path / "weir", file, services=("monitor",)) as up:
        had = await node_told(up, ready=True)
        await kill_and_wait(up)
    async with Stack(tmp_path / "weir", file, services=()) as up:
        shut = await node_told(up, ready=False)
        assert (shut.node_uid, shut.own, shut.free) == (had.node_uid, (), had.allocatable)
        await up.start("monitor")
        assert (await node_told(up, ready=True)).node_uid != had.node_uid


async def test_no_process_remains_after_the_end(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER)
    async with Stack(tmp_path / "weir", file) as up:
        pids = [part.process.pid for part in up.parts.values() if part.process is not None]
        assert len(pids) == 5
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []
