"""One job on a stack, watched from submission to end, with pods of tenants beside it. For the demo
and benches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from nats.js.api import DeliverPolicy

from services.cli import program_file
from services.cli.program_source import read_program
from services.console.report import runs
from services.console.report.runs import CpuSample, Run
from services.local.cluster_spec import TenantSpec
from services.local.controllers import pod_spec
from services.local.stack import Stack
from shared.bus import bus
from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage
from shared.bus.subjects import DEFAULT_NAMESPACE
from shared.messages import (
    JobFinished,
    JobRejected,
    JobRequested,
    ProgressReported,
    TrainingResumed,
)
from shared.runtime import process

NAMESPACE = "tenants"
SAMPLE_S = 0.5
EVERYTHING = (
    ["weir.job.>", "weir.allocation.>", "weir.cluster.>"],
    ["weir.task.>", "weir.training.>", "weir.capacity.>"],
)


class Failed(Exception):
    """The job did not do what the trial needs; the text has the reason."""


class Tenants:
    """Pods that do not belong to Weir, created over the cluster's API."""

    def __init__(self, kube_url: str, headers: Mapping[str, str]) -> None:
        self._headers = headers
        self._pods = f"{kube_url}/api/v1/namespaces/{NAMESPACE}/pods"
        self._namespaces = f"{kube_url}/api/v1/namespaces"
        self._count = 0

    async def come(self, node: str, cpu: float) -> str:
        """Put a pod that burns `cpu` cores on a node; returns its name."""
        self._count += 1
        name = f"tenant-{self._count}"
        spec = pod_spec(TenantSpec(node=node, cpu=cpu))
        async with aiohttp.ClientSession(headers=self._headers) as http:
            await http.post(self._namespaces, json={"metadata": {"name": NAMESPACE}})
            async with http.post(
                self._pods, json={"metadata": {"name": name}, "spec": spec}
            ) as answer:
                answer.raise_for_status()
        return name

    async def leave(self, name: str) -> None:
        async with (
            aiohttp.ClientSession(headers=self._headers) as http,
            http.delete(f"{self._pods}/{name}") as answer,
        ):
            answer.raise_for_status()


@dataclass
class Trial:
    """The messages and measurements of a job. `heard` grows while the job runs; `changed` is set at
    each message.
    """

    stack: Stack
    bus: Bus
    tenants: Tenants
    broken: asyncio.Future[None]
    heard: list[StoredMessage] = field(default_factory=list)
    cpu: list[CpuSample] = field(default_factory=list)
    enforced: bool = False
    submitted_s: float = 0.0
    saying: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def submit(self, request: dict[str, Any], program: Path) -> tuple[int, JobRequested]:
        """Store the program and submit the job; return its uid and the published request."""
        source = read_program(program)
        namespace = request.get("namespace", DEFAULT_NAMESPACE)
        await program_file.store_program(self.bus, source.body, namespace)
        self.submitted_s = time.time()
        asked = msgspec.convert({**request, "program": source.reference}, JobRequested)
        return await self.bus.request(asked), asked

    def of(self, kind: type[Any]) -> list[Any]:
        """Return every message of a kind, in the order of arrival."""
        return [h.message for h in self.heard if isinstance(h.message, kind)]

    async def until(self, holds: Callable[[], Any], timeout_s: float, what: str) -> Any:
        """Wait until `holds` returns a true value, called again at each message; return the value.
        Raise `Failed` after `timeout_s` seconds.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not (found := holds()):
                    self._raise_if_over(what)
                    self.changed.clear()
                    await self.changed.wait()
                return found
        except TimeoutError as error:
            raise Failed(f"timed out after {timeout_s:g} s: waiting for {what}") from error

    def _raise_if_over(self, what: str) -> None:
        if self.broken.done():
            self.broken.result()
        for rejected in self.of(JobRejected):
            raise Failed("\n".join(rejected.reasons))
        for finished in self.of(JobFinished):
            raise Failed(f"the job {finished.outcome} before {what}\n{finished.cause}")

    async def await_finish(self, timeout_s: float) -> JobFinished:
        """Return the end of the job. Raise `Failed` unless it succeeded."""
        over: JobFinished = await self.until(
            lambda: next(iter(self.of(JobFinished)), None), timeout_s, "the end"
        )
        if over.outcome != "succeeded":
            raise Failed(f"the job {over.outcome}: {over.cause}")
        return over

    def as_run(self, name: str, epochs: int) -> Run:
        """Return the figures of a finished job, for a picture."""
        resumed = [h.stored_s for h in self.heard if isinstance(h.message, TrainingResumed)]
        end_s = self.of(JobFinished)[-1].finished_s
        used = runs.utilisation_over_time(self.cpu)
        return Run(
            name=name,
            total_s=end_s - self.submitted_s,
            epoch_s=runs.epoch_seconds(self.of(ProgressReported), resumed[0], epochs),
            utilisation=[(s - self.submitted_s, u) for s, u in used if s <= end_s],
            hand_overs=[s - self.submitted_s for s in resumed[1:]],
        )

    # ------------------------------------------------------------ watching

    async def collect_messages(self, filters: list[str]) -> None:
        async for heard in self.bus.tail(filters, deliver=DeliverPolicy.ALL):
            self.heard.append(heard)
            self.changed.set()

    async def sample_cpu(self) -> None:
        """Read the CPU seconds of all pods, counted by the kernel, twice a second."""
        async with aiohttp.ClientSession(headers=self.stack.kube_headers) as http:
            while True:
                self.cpu.append(await self._read_cpu_sample(http))
                await asyncio.sleep(SAMPLE_S)

    async def _read_cpu_sample(self, http: aiohttp.ClientSession) -> CpuSample:
        async with http.get(f"{self.stack.kube_url}/debug/cpu-seconds") as answer:
            document = await answer.json()
        self.enforced = bool(document["enforced"])
        nodes = document["nodes"].values()
        return CpuSample(
            at_s=time.time(),
            seconds=sum(n["seconds"] for n in nodes),
            allocatable=sum(n["allocatable"] for n in nodes),
        )


@asynccontextmanager
async def trial(stack: Stack, ca: str = "") -> AsyncIterator[Trial]:
    """Watch a stack. A failure of the watch also ends every wait. `ca`: the certificate authority
    of a bus with TLS.
    """
    connection = await bus.connect(stack.nats_url, "trial", stack.operator, ca)
    broken = asyncio.ensure_future(connection.raise_failure())
    watched = Trial(stack, connection, Tenants(stack.kube_url, stack.kube_headers), broken)
    broken.add_done_callback(lambda _: watched.changed.set())
    for filters in EVERYTHING:
        connection.spawn(watched.collect_messages(filters))
    connection.spawn(watched.sample_cpu())
    try:
        yield watched
    finally:
        await process.cancel_tasks(broken)
        await connection.close()
