"""Tests of two allocator processes: one decides, and no decision is lost, doubled or late."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest

from shared.auth.permissions import ALLOCATOR, bucket_subject, lease_key, stream_of
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.programs import digest_of
from shared.bus.subjects import STATE
from shared.messages import AllocationDecided, JobAccepted, JobRejected, Message, Program
from shared.runtime.leadership import DEPOSED, LOOKS, LeaseEntry
from tests.allocator.builders import node, own, request, resumed
from tests.shared.bus.three_servers import three_servers

ROOT = Path(__file__).parents[2]
PROGRAM = b"def model(): ..."
LEASE_S, LONG_S, ENOUGH_S = 12.0, 60.0, 120.0
"""The tests wait for the first lease to expire. Both survive a machine that stalls for 5 s."""
SETTINGS = {
    "POLICY": "config-manager",
    "WINDOW_S": "0.05",
    "COOLDOWN_S": "0",
    "BACKOFF_S": "0.05",
    "MAX_DELAY_S": "1",
    "SNAPSHOT_S": "0.1",
    "REPEAT_S": "600",  # no fact confirms a decision here, and a busy machine is slow
}


class Replica:
    """One allocator process. `log`: its output."""

    def __init__(
        self,
        url: str,
        folder: Path,
        name: str,
        program: tuple[str, ...] = ("-m", "services.allocator"),
        lease_s: float = LEASE_S,
    ) -> None:
        named = {f"WEIR_ALLOCATOR_{key}": value for key, value in SETTINGS.items()}
        here = {
            "PYTHONPATH": str(ROOT),
            "WEIR_NATS_URL": url,
            "WEIR_LEASE_S": str(lease_s),
            "WEIR_LOG_JSON": "true",
        }
        self.environ, self.path, self.program = (
            {**os.environ, **here, **named},
            folder / f"{name}.log",
            program,
        )
        self.started: asyncio.subprocess.Process | None = None

    async def begin(self) -> None:
        with self.path.open("ab") as output:
            self.started = await asyncio.create_subprocess_exec(
                sys.executable, *self.program, env=self.environ, stdout=output, stderr=output
            )

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self.started is not None
        return self.started

    @property
    def log(self) -> str:
        return self.path.read_text()

    def leads(self) -> bool:
        return '"Leads"' in self.log

    async def stop(self) -> None:
        """Stop the process; it has to exit with 0."""
        self.process.terminate()
        assert await self.process.wait() == 0

    async def end(self) -> None:
        if self.started is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


async def until(true: Callable[[], object], within_s: float = ENOUGH_S) -> float:
    """Wait until the condition holds; return the time it took, in seconds."""
    began_s = time.monotonic()
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.02)
    return time.monotonic() - began_s


@asynccontextmanager
async def replicas(
    url: str, folder: Path, *others: Replica, lease_s: float = LEASE_S
) -> AsyncIterator[tuple[Replica, Replica]]:
    """Yield two replicas: the first one leads, the second one stands by."""
    pair = (
        Replica(url, folder, "first", lease_s=lease_s),
        Replica(url, folder, "second", lease_s=lease_s),
    )
    try:
        await pair[0].begin()
        await until(pair[0].leads)
        await pair[1].begin()
        await until(lambda: '"StandsBy"' in pair[1].log)
        yield pair
    finally:
        for replica in (*pair, *others):
            await replica.end()


async def said(bus: Bus, kind: type[Message], key: str = "default.mnist") -> list[Message]:
    """Return all messages of a kind and key that the stream holds."""
    count = (await bus.js.stream_info(subjects.ORDERS)).state.last_seq
    found = [await bus.js.get_msg(subjects.ORDERS, n) for n in range(1, count + 1)]
    wanted = subjects.pattern(kind, key)
    return [
        subjects.decode_message(wanted, raw.data or b"") for raw in found if raw.subject == wanted
    ]


async def heard(
    bus: Bus, kind: type[Message], key: str = "default.mnist", past: int = 0
) -> tuple[Message, float]:
    """Return the newest message of a kind after a sequence, and the time in s it took."""
    began_s = time.monotonic()
    async with asyncio.timeout(ENOUGH_S):
        while (found := await bus.last_message(kind, key)) is None or found.sequence <= past:
            await asyncio.sleep(0.01)
    return found.message, time.monotonic() - began_s


async def asked(bus: Bus, job: str = "mnist") -> int:
    digest = digest_of(PROGRAM)
    await (await bus.program_store()).put(digest, PROGRAM)
    return await bus.request(request(job, program=Program(name="train.py", digest=digest)))


async def test_a_killed_leader_is_replaced_when_its_lease_expires(
    nats_url: str, person: Bus, tmp_path: Path
) -> None:
    await person.publish(node(cpu=3))
    async with replicas(nats_url, tmp_path) as (first, second):
        uid = await asked(person)
        await heard(person, AllocationDecided)
        first.process.kill()
        other = await asked(person, "other")
        accepted, took_s = await heard(person, JobAccepted, "default.other")
        print(f"kill -9 to the next answer: {took_s:.2f} s with a lease of {LEASE_S} s")

    assert second.leads()
    assert isinstance(accepted, JobAccepted) and accepted.uid == other
    first_decisions = await said(person, AllocationDecided)
    assert [(m.uid, m.revision) for m in first_decisions if isinstance(m, AllocationDecided)] == [
        (uid, 1)
    ]


async def test_a_stopped_leader_is_replaced_at_once(
    nats_url: str, person: Bus, tmp_path: Path
) -> None:
    async with replicas(nats_url, tmp_path, lease_s=LONG_S) as (first, second):
        first.process.terminate()
        await asked(person)
        _, took_s = await heard(person, JobAccepted)
        print(f"SIGTERM to the next answer: {took_s:.2f} s with a lease of {LONG_S} s")
        assert await first.process.wait() == 0

    assert second.leads() and took_s < LONG_S / 2, f"a stand-by looks each {LONG_S / LOOKS} s"


async def test_a_frozen_leader_is_refused_and_exits(
    nats_url: str, person: Bus, tmp_path: Path
) -> None:
    """It wakes with unread facts in its buffers; another leader has already decided on them."""
    await person.publish(node(cpu=3))
    async with replicas(nats_url, tmp_path) as (first, second):
        uid = await asked(person)
        await heard(person, AllocationDecided)
        first.process.send_signal(signal.SIGSTOP)
        grown = await grow(person, uid)
        await until(second.leads)
        await heard(person, AllocationDecided, past=grown)
        first.process.send_signal(signal.SIGCONT)
        code = await asyncio.wait_for(first.process.wait(), ENOUGH_S)
        assert code == DEPOSED and '"Deposed"' in first.log
        assert second.process.returncode is None

    decisions = [
        m for m in await said(person, AllocationDecided) if isinstance(m, AllocationDecided)
    ]
    assert [m.revision for m in decisions] == [1, 2], "nothing is lost, doubled or late"


def leads_again(replica: Replica, before: int) -> bool:
    return replica.log.count('"Leads"') > before


def stands_by(replica: Replica, begun: int) -> bool:
    return replica.log.count('"StandsBy"') >= begun


async def grow(bus: Bus, uid: int) -> int:
    """Publish that the job runs and has room, so that another decision is due.

    Return the sequence of the last decision.
    """
    last = await bus.last_message(AllocationDecided, "default.mnist")
    assert last and isinstance(last.message, AllocationDecided)
    await bus.publish(resumed(last.message.generation, uid=uid))
    await bus.publish(
        node(cpu=9, free=6, own=own("mnist", *last.message.tasks), labels={"seen": "again"})
    )
    await bus.publish(msgspec.structs.replace(node("n2", cpu=2), seen="1"))
    return last.sequence


CAREFREE = """
import asyncio

from services.allocator.service import Allocator, Settings, start
from shared.bus import consumer
from shared.bus.bus import Bus
from shared.messages import AllocationDecided
from shared.runtime import app, leadership

has_decided, delayed = asyncio.Event(), []
on_fact, publish = Allocator.on_fact, Bus.publish
async def fold_later(self, stored):
    await has_decided.wait()
    await on_fact(self, stored)
async def fold_decisions_later(self, stored):
    message = stored.message
    if isinstance(message, AllocationDecided) and message.revision > 1:
        delayed.append(asyncio.ensure_future(fold_later(self, stored)))
    else:
        await on_fact(self, stored)
async def publish_and_note(self, message, **options):
    try:
        return await publish(self, message, **options)
    finally:
        if isinstance(message, AllocationDecided):
            has_decided.set()
Allocator.on_fact, Bus.publish = fold_decisions_later, publish_and_note

consumer.HEARTBEAT_S, consumer.EXPIRES_S = 600.0, 3600.0
leadership.Lease.must_lead = lambda self: None
async def keep(self):
    pass
leadership.Lease.renew_forever = keep
app.run_service("allocator", Settings, leadership.with_leadership("allocator", start))
"""
"""An allocator that checks neither its lease nor the silence of the bus, and reads the second
decision of another one only after its own.

It acts like one that is frozen between the check and the write.
"""


def spoke_late(log: str) -> bool:
    """Return True if the replica has tried to publish its decision.

    The server refuses it because of a newer decision, or (soon after) ignores it because of its id,
    which is that of the other decision.
    """
    return '"DecidedOnAnOldState"' in log or '"AllocationDecided"' in log


async def test_a_late_write_of_an_old_leader_is_refused_by_the_server(
    nats_url: str, person: Bus, tmp_path: Path
) -> None:
    await person.publish(node(cpu=3))
    late = Replica(nats_url, tmp_path, "late", ("-c", CAREFREE))
    async with replicas(nats_url, tmp_path, late) as (first, second):
        uid = await asked(person)
        await heard(person, AllocationDecided)
        await second.stop()
        await first.stop()
        await late.begin()
        await person.request(request("empty"))
        await heard(person, JobRejected, "default.empty")  # it is running
        late.process.send_signal(signal.SIGSTOP)
        grown = await grow(person, uid)
        second.path.write_text("")
        await second.begin()
        await until(second.leads)
        decided, _ = await heard(person, AllocationDecided, past=grown)
        late.process.send_signal(signal.SIGCONT)
        await until(lambda: spoke_late(late.log))
        await asyncio.sleep(0.5)

    decisions = [
        m for m in await said(person, AllocationDecided) if isinstance(m, AllocationDecided)
    ]
    assert [m.revision for m in decisions] == [1, 2] and decisions[-1] == decided


@pytest.mark.parametrize(
    ("signalled", "turns"), [(signal.SIGKILL, 2), (signal.SIGTERM, 4)], ids=["killed", "stopped"]
)
async def test_alternating_leaders_give_each_answer_once(
    nats_url: str, person: Bus, tmp_path: Path, signalled: signal.Signals, turns: int
) -> None:
    await person.publish(node(cpu=64))
    async with replicas(nats_url, tmp_path) as pair:
        for turn in range(turns):
            leader, other = pair[turn % 2], pair[(turn + 1) % 2]
            jobs = [f"job-{turn}-{n}" for n in range(4)]
            asking = asyncio.ensure_future(asyncio.gather(*(asked(person, job) for job in jobs)))
            await asyncio.sleep(0.03 * turn)
            led_before = other.log.count('"Leads"')
            leader.process.send_signal(signalled)
            await asking
            await leader.process.wait()
            await until(partial(leads_again, other, led_before))
            await leader.begin()
            await until(partial(stands_by, leader, begun=2 + turn // 2))
        names = [f"job-{turn}-{n}" for turn in range(turns) for n in range(4)]
        for name in names:
            await heard(person, AllocationDecided, f"default.{name}")
        await asyncio.sleep(0.5)
    for name in names:
        assert len(await said(person, JobAccepted, f"default.{name}")) == 1
        decisions = [m for m in await said(person, AllocationDecided, f"default.{name}")]
        assert [m.revision for m in decisions if isinstance(m, AllocationDecided)] == [
            *range(1, len(decisions) + 1)
        ]
    held = msgspec.json.decode(
        (await (await person.bucket(STATE)).get(lease_key(ALLOCATOR))).value or b"", type=LeaseEntry
    )
    assert held.term >= 1 + turns and bucket_subject(STATE, lease_key(ALLOCATOR)).endswith(
        "leader.allocator"
    )


async def test_the_allocator_starts_without_a_stream_leader(
    tmp_path: Path,
) -> None:
    async with three_servers(tmp_path) as servers, servers.connection() as bus:
        await bus.publish(node(cpu=3))
        uid = await asked(bus)
        for name in ("n1", "n2"):  # one of three servers elects no leader
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
