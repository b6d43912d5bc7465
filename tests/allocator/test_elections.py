"""An allocator that starts while three nats-servers elect waits for their leader, and then
decides.
"""

from __future__ import annotations

from pathlib import Path

from shared.auth.permissions import stream_of
from shared.bus.subjects import STATE
from shared.messages import AllocationDecided, JobAccepted
from tests.allocator.builders import node
from tests.allocator.test_replicas import Replica, asked, heard, until
from tests.shared.bus.three_servers import three_servers


async def test_the_allocator_starts_without_a_stream_leader(
    tmp_path: Path,
) -> None:
    async with three_servers(tmp_path) as servers, servers.connection() as bus:
        await bus.publish(node(cpu=3))
        uid = await asked(bus)
        for name in ("n1", "n2"):  # one of three elects nobody
            await servers.servers[name].kill()
        allocator = Replica(servers.url, tmp_path, "allocator", lease_s=0)
        await allocator.begin()
        try:
            await until(lambda: '"AnswerWaits"' in allocator.log)
            await servers.servers["n1"].start()
            await heard(bus, AllocationDecided)
            accepted, _ = await heard(bus, JobAccepted)
            assert isinstance(accepted, JobAccepted) and accepted.uid == uid
            assert allocator.process.returncode is None, allocator.log
        finally:
            await allocator.end()


async def test_the_allocator_starts_during_an_election_of_its_first_stream(tmp_path: Path) -> None:
    async with three_servers(tmp_path) as servers, servers.connection() as bus:
        await bus.publish(node(cpu=3))
        await asked(bus)
        leader = await servers.leader(bus, stream_of(STATE))
        survivor = next(server for server in servers.servers.values() if server is not leader)
        allocator = Replica(survivor.url, tmp_path, "allocator", lease_s=0)
        await leader.kill()
        await allocator.begin()
        try:
            await heard(bus, AllocationDecided)
            assert allocator.process.returncode is None, allocator.log
        finally:
            await allocator.end()
