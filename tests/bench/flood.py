"""A hostile namespace on the bus: `make bench-flood` (about 4 minutes).

A nats-server with accounts, and the real allocator as a process. Two namespaces: clients with
credentials of `team-a` publish as fast as they can, each kind for BENCH_FLOOD_S: first those of a
submitter, then those of one job (`flood_side.py`, a separate process); then clients with the job's
credentials request consumers instead of publishing. At the same time `team-b` works: every
BENCH_EACH_S its submitter requests a job with a new name. When it is decided, the launcher
publishes an order for it, the trainer of the job publishes a fact and writes to its ledger, and the
submitter cancels the job.

Figures of `team-b`, in each phase (`quiet`: without a flood):

    decided_*       from before the request is published to the decision, as a consumer receives it
    facts_*         from before a fact of its trainer is published to the same
    orders_*        the launcher's order, the trainer's entry in the ledger and the cancellation,
                    each until acknowledged
    refused         requests, orders, facts and entries that the server refused; none is repeated
    undecided       requests that were not decided within WITHIN_S

Figures of the server: messages and bytes of each stream at the end, its largest memory, and how
many durable consumers each kind of credentials could create, of BENCH_CONSUMERS attempts.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil
from nats.errors import Error as NatsError

from services.cli import program_file
from shared.auth.permissions import (
    ALLOCATOR,
    JOB,
    LAUNCHER,
    MONITOR,
    OPERATOR,
    SUBMITTER,
    bucket_subject,
    reader_names,
    submitter_consumers,
)
from shared.bus import bus as wire
from shared.bus.bus import Bus
from shared.bus.client import connect_client
from shared.bus.subjects import DEAD, FACTS, LEDGER, ORDERS, pattern
from shared.messages import (
    AllocationDecided,
    CancelRequested,
    GenerationAbandoned,
    Message,
    Program,
    Resources,
    TrainingResumed,
)
from tests.allocator.builders import node, request
from tests.bench.flood_side import CONSUMERS
from tests.bench.report import finish, percentile, say
from tests.conftest import NatsServer
from tests.shared.secured_server import credentials, guarded

FLOOD_S = float(os.environ.get("BENCH_FLOOD_S", "60"))
QUIET_S = float(os.environ.get("BENCH_QUIET_S", "15"))
EACH_S = float(os.environ.get("BENCH_EACH_S", "0.5"))
CONSUMERS_TRIED = int(os.environ.get("BENCH_CONSUMERS", "300"))
WITHIN_S = 60.0
HOSTILE, PEACEFUL = "team-a", "team-b"
STREAMS = (ORDERS, FACTS, DEAD, f"KV_{LEDGER}")
PROGRAM = b"def model(): ...\n"


def large_node() -> Message:
    """Return a node with capacity for all jobs: the bus is measured, and not the placement."""
    room = Resources(cpu=100_000, memory_gib=100_000)
    return msgspec.structs.replace(node("n1"), allocatable=room, free=room)


@dataclass
class Phase:
    """The measured times in s of the peaceful namespace."""

    decided: list[float] = field(default_factory=list)
    facts: list[float] = field(default_factory=list)
    orders: list[float] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    undecided: int = 0
    published: int = 0

    def figures(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            f"{name}_jobs": len(self.decided),
            f"{name}_undecided": self.undecided,
        }
        for what in ("decided", "facts", "orders"):
            times = getattr(self, what) or [0.0]
            for share in (0.5, 0.99, 1.0):
                found[f"{name}_{what}_p{round(share * 100)}_ms"] = percentile(times, share) * 1000
        return found | {f"{name}_refused": len(self.refused), f"{name}_published": self.published}


class Tenant:
    """The peaceful namespace: its submitter, the launcher, and the trainer of one job."""

    def __init__(
        self, submitter: Bus, launcher: Bus, trainer: Bus, watcher: Bus, digest: str
    ) -> None:
        self.submitter, self.launcher, self.trainer, self.watcher = (
            submitter,
            launcher,
            trainer,
            watcher,
        )
        self.digest, self.count, self.phase = digest, 0, Phase()
        self.heard: dict[str, asyncio.Future[float]] = {}

    async def watch(self, kind: type[Message]) -> None:
        async for heard in self.watcher.tail([pattern(kind, f"{PEACEFUL}.*")]):
            named = heard.message.key() if kind is AllocationDecided else heard.message.id()
            waiting = self.heard.get(f"{kind.__name__}.{named}")
            if waiting is not None and not waiting.done():
                waiting.set_result(time.monotonic())

    async def work(self, phase: Phase, seconds: float) -> None:
        """Request a job every `EACH_S`, without waiting for the last one."""
        self.phase, end_s, tasks = phase, time.monotonic() + seconds, []
        while time.monotonic() < end_s:
            tasks.append(asyncio.ensure_future(self.one_job()))
            await asyncio.sleep(EACH_S)
        await asyncio.gather(*tasks)

    async def one_job(self) -> None:
        self.count += 1
        number = self.count
        name = f"job-{number}"
        program = Program(name="train.py", digest=self.digest)
        asked = request(name, namespace=PEACEFUL, program=program, request_id=f"r{number}")
        decided_s = await self._until(AllocationDecided, asked.key(), self.submitter, asked)
        if decided_s is None:
            self.phase.undecided += 1
        else:
            self.phase.decided.append(decided_s)
        order = GenerationAbandoned(
            job=name, namespace=PEACEFUL, uid=1 << 40, generation=1, reason="a probe"
        )
        await self._acknowledged(self.launcher.publisher.publish_once(order))
        await self._acknowledged(
            self.trainer.client.request(
                bucket_subject(LEDGER, f"{PEACEFUL}.mine"), b"{}", timeout=WITHIN_S
            )
        )
        fact = TrainingResumed(
            job="mine", namespace=PEACEFUL, uid=1 << 40, generation=1, step=number, samples=0
        )
        if (
            fact_s := await self._until(TrainingResumed, fact.id(), self.trainer, fact)
        ) is not None:
            self.phase.facts.append(fact_s)
        cancel = CancelRequested(job=name, namespace=PEACEFUL, request_id=f"c{number}")
        await self._acknowledged(self.submitter.publisher.publish_once(cancel))

    async def _until(
        self, kind: type[Message], named: str, speaker: Bus, said: Message
    ) -> float | None:
        """Publish once; return the time in s until a message of a kind is received, or None."""
        waiting = self.heard[f"{kind.__name__}.{named}"] = (
            asyncio.get_running_loop().create_future()
        )
        began_s = time.monotonic()
        try:
            await speaker.publisher.publish_once(said)
            heard_s: float = await asyncio.wait_for(waiting, WITHIN_S)
            return heard_s - began_s
        except NatsError as error:
            self.phase.refused.append(f"{said.id()}: {error!r}")
        except TimeoutError:
            say(f"{said.id()} was not followed by {kind.__name__} within {WITHIN_S:g} s")
        return None

    async def _acknowledged(self, saying: Awaitable[Any]) -> None:
        began_s = time.monotonic()
        try:
            answer = await saying
        except NatsError as error:
            self.phase.refused.append(repr(error))
            return
        if b'"error"' in getattr(answer, "data", b""):
            self.phase.refused.append(answer.data.decode())
        else:
            self.phase.orders.append(time.monotonic() - began_s)


class Bench:
    def __init__(self, server: NatsServer, folder: Path, stack: AsyncExitStack) -> None:
        self.server, self.folder, self.stack = server, folder, stack
        self.most_memory = 0

    async def bus(self, user: str, key: str = f"{PEACEFUL}.mine") -> Bus:
        made = await wire.connect(self.server.url, user, credentials(user, key))
        self.stack.push_async_callback(made.close)
        return made

    def file(self, user: str, key: str) -> Path:
        path = self.folder / f"{user}-{key}.creds"
        path.write_text(credentials(user, key))
        return path

    async def start_allocator(self) -> asyncio.subprocess.Process:
        settings = {
            "WEIR_NATS_URL": self.server.url,
            "WEIR_NATS_CREDENTIALS": str(self.file(ALLOCATOR, "any.any")),
            "WEIR_LEASE_S": "0",
            "WEIR_METRICS_PORT": "0",
            "WEIR_LOG_LEVEL": "warning",
        }
        with (self.folder / "allocator.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "services.allocator",
                env={**os.environ, **settings},
                stdout=log,
                stderr=log,
            )
        self.stack.push_async_callback(self._end, process)
        return process

    @staticmethod
    async def _end(process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            process.kill()
        await process.wait()

    async def tenant(self) -> Tenant:
        """Create the peaceful namespace, on a cluster with capacity for all its jobs."""
        operator = await self.bus(OPERATOR)
        for namespace in (HOSTILE, PEACEFUL):
            digest = await program_file.store_program(operator, PROGRAM, namespace)
        await (await self.bus(MONITOR)).publish(large_node())
        launcher, trainer = await self.bus(LAUNCHER), await self.bus(JOB)
        return Tenant(await self.bus(SUBMITTER), launcher, trainer, operator, digest)

    @asynccontextmanager
    async def flood(self, kind: str, digest: str) -> AsyncIterator[list[int]]:
        """Let a process publish as fast as the server accepts; append the number of messages."""
        user = SUBMITTER if kind == SUBMITTER else JOB
        words = (
            self.server.url,
            kind,
            f"{HOSTILE}.mine",
            str(self.file(user, f"{HOSTILE}.mine")),
            digest,
        )
        side = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.bench.flood_side", *words, stdout=asyncio.subprocess.PIPE
        )
        self.stack.push_async_callback(self._end, side)
        assert side.stdout
        await side.stdout.readline()
        published: list[int] = []
        yield published
        side.terminate()
        published.append(int(await asyncio.wait_for(side.stdout.readline(), WITHIN_S)))

    async def measure_memory(self) -> None:
        process = psutil.Process(self.server.pid)
        while True:
            self.most_memory = max(self.most_memory, process.memory_info().rss)
            await asyncio.sleep(0.2)

    async def consumers(self, user: str, pattern_of: str) -> int:
        """Return how many durable consumers with this filter the credentials can create."""
        client = await connect_client(self.server.url, credentials(user, f"{HOSTILE}.mine"))
        made = 0
        names = (
            submitter_consumers(HOSTILE) if user == SUBMITTER else reader_names(HOSTILE, "mine", 0)
        )
        names += [f"hoard-{number}" for number in range(CONSUMERS_TRIED - len(names))]
        for name in names:
            config = {
                "name": name,
                "durable_name": name,
                "filter_subject": pattern_of,
                "ack_policy": "explicit",
            }
            subject = f"{client.api}.CONSUMER.CREATE.{ORDERS}.{name}.{pattern_of}"
            try:
                body = json.dumps({"stream_name": ORDERS, "config": config}).encode()
                made += b'"error"' not in (await client.request(subject, body, timeout=5)).data
            except NatsError:  # these credentials may not use the name
                continue
        await client.close()
        return made

    async def result(self) -> dict[str, Any]:
        operator = await self.bus(OPERATOR)
        found: dict[str, Any] = {"server_mb": self.most_memory / (1 << 20)}
        for stream in STREAMS:
            state = (
                await operator.retry_until_answered(partial(operator.js.stream_info, stream))
            ).state  # the server may still have waiting requests
            found |= {f"{stream}_messages": state.messages, f"{stream}_bytes": state.bytes}
        return found


async def main(folder: Path) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(guarded(folder))
        bench = Bench(server, folder, stack)
        tenant, allocator = await bench.tenant(), await bench.start_allocator()
        tasks = [
            asyncio.ensure_future(tenant.watch(kind))
            for kind in (AllocationDecided, TrainingResumed)
        ]
        tasks.append(asyncio.ensure_future(bench.measure_memory()))
        async with asyncio.timeout(WITHIN_S):  # until the allocator has started
            await tenant.one_job()
        figures: dict[str, Any] = {}
        for name in ("quiet", SUBMITTER, JOB, CONSUMERS):
            phase = Phase()
            if name == "quiet":
                await tenant.work(phase, QUIET_S)
            else:
                async with bench.flood(name, tenant.digest) as published:
                    await tenant.work(phase, FLOOD_S)
                phase.published = published[0]
            figures |= phase.figures(name)
            say(f"{name}: {json.dumps(phase.figures(name))} {phase.refused[:3]}")
        if allocator.returncode is not None:
            raise RuntimeError((folder / "allocator.log").read_text()[-2_000:])
        figures |= await bench.result()
        figures["submitter_consumers"] = await bench.consumers(SUBMITTER, f"weir.*.*.{HOSTILE}.*")
        figures["job_consumers"] = await bench.consumers(JOB, f"weir.cluster.*.{HOSTILE}.mine")
        for task in tasks:
            task.cancel()
        figures["allocator_log_bytes"] = (folder / "allocator.log").stat().st_size
        return figures


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as place:
        finish(asyncio.run(main(Path(place))))
