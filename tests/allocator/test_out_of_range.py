"""Tests of numbers out of range from one tenant: the jobs of another namespace are decided.

This also holds after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from services.allocator.policies.contract import JobSnapshot, Target, start_target
from services.allocator.policies.registry import POLICIES
from services.allocator.service import Settings, start
from services.cli.cancel import cancel_job
from services.cli.command_line import Arguments
from services.console.bus_reader import follow_views
from shared.auth.permissions import ALLOCATOR, JOB, MONITOR, OPERATOR, SUBMITTER
from shared.bus import bus as wire
from shared.bus import programs, subjects
from shared.bus.bus import Bus
from shared.messages import (
    AllocationDecided,
    JobAccepted,
    JobFinished,
    JobRejected,
    JobRequested,
    Message,
    Program,
    ProgressReported,
    Resources,
    TrainingResumed,
)
from shared.runtime.http_server import format_metrics
from tests.allocator.builders import EVEN, node, request
from tests.allocator.test_service import QUICK, last, soon
from tests.conftest import NatsServer
from tests.shared.secured_server import credentials, guarded, visitor

WEIR = replace(QUICK, policy="weir", snapshot_s=3600.0)
"""No snapshot is written, so each start reads the whole log."""
OFFENDER = "team-a.mine"
BODY = b"def model(): ..."
STORED = programs.digest_of(BODY)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with guarded(tmp_path) as running:
        yield running


@asynccontextmanager
async def speaking(server: NatsServer, user: str, key: str = OFFENDER) -> AsyncIterator[Bus]:
    made = await wire.connect(server.url, user, credentials(user, key))
    yield made
    await made.close()


@asynccontextmanager
async def allocating(server: NatsServer, settings: Settings = WEIR) -> AsyncIterator[Bus]:
    """Run the allocator with its own credentials; the test fails if one of its tasks ends."""
    async with speaking(server, ALLOCATOR) as connection:
        await start(connection, settings)
        yield connection
        failed = [task for task in connection._tasks if task.done()]
        assert [task.exception() for task in failed] == []


async def ask(server: NatsServer, namespace: str, job: str, **fields: Any) -> int:
    """Request a job as a submitter of the namespace, with any numbers."""
    asked = request(
        job, namespace=namespace, program=Program(name="train.py", digest=STORED), **fields
    )
    async with speaking(server, SUBMITTER, f"{namespace}.any") as person:
        return await person.request(asked)


async def say_anything(server: NatsServer, message: Message, **numbers: float) -> None:
    """Publish with the job's own credentials numbers that no trainer would send."""
    body = msgspec.json.encode(msgspec.to_builtins(message) | numbers)
    async with visitor(server.url, credentials(JOB, OFFENDER)) as trainer:
        assert await trainer.may_say(subjects.subject_of(message), body)


async def set_up(operator: Bus, server: NatsServer) -> None:
    for namespace in ("team-a", "team-b"):
        await programs.store_program(operator, namespace, STORED, BODY)
    large = Resources(cpu=100, memory_gib=400)
    async with speaking(server, MONITOR) as monitor:
        await monitor.publish(replace(node(), allocatable=large, free=large))


async def decided(operator: Bus, key: str) -> AllocationDecided:
    return await last(operator, AllocationDecided, key)


async def letters(operator: Bus) -> int:
    return (await operator.js.stream_info(subjects.DEAD)).state.messages


@pytest.mark.parametrize("priority", [1024, -1075, 1_000_000, -(2**31)])
async def test_any_priority_is_handled(server: NatsServer, priority: int) -> None:
    async with speaking(server, OPERATOR) as operator:
        await set_up(operator, server)
        async with allocating(server):
            await ask(server, "team-a", "mine", priority=priority)
            assert (await decided(operator, OFFENDER)).request.priority == priority
            await ask(server, "team-b", "first")
            assert (await decided(operator, "team-b.first")).tasks


async def test_numbers_out_of_range_do_not_affect_other_jobs(
    server: NatsServer,
) -> None:
    tiny = replace(EVEN, worker=Resources(cpu=5e-324, memory_gib=1.0))
    async with speaking(server, OPERATOR) as operator:
        await set_up(operator, server)
        async with allocating(server):
            await ask(server, "team-a", "tiny", resources=tiny)
            refused = await last(operator, JobRejected, "team-a.tiny")
            assert refused.reasons == (
                (
                    "resources.worker.cpu: 4.94066e-324 is less than 0.001, the least that a task"
                    " may have"
                ),
            )
            uid = await ask(server, "team-a", "mine")
            ours = await decided(operator, OFFENDER)
            about = {
                "job": "mine",
                "namespace": "team-a",
                "uid": uid,
                "generation": ours.generation,
            }
            before = await letters(operator)
            resumed = TrainingResumed(**about, step=0, samples=0, previous=0)
            await say_anything(server, resumed, pause_s=1.7e308)
            said = ProgressReported(
                **about, step=1, epoch=0, samples=5, total_samples=99, samples_per_second=1.0
            )
            await say_anything(server, said, samples_per_second=1e300)
            await ask(server, "team-b", "first")
            assert (await decided(operator, "team-b.first")).tasks
            await soon(lambda: found_letters(operator, before + 2))
        async with allocating(server):
            await ask(server, "team-b", "second")
            assert (await decided(operator, "team-b.second")).tasks
            assert await cancelled(operator, "team-a", "mine") == "cancelled"


async def found_letters(operator: Bus, number: int) -> JobRequested | None:
    """Return a value once there are this many dead letters, else None."""
    return request() if await letters(operator) == number else None


async def cancelled(operator: Bus, namespace: str, job: str) -> str:
    """Cancel a job as `weir cancel` does; return its outcome."""
    assert await cancel_job(operator, Arguments(job=job, namespace=namespace, timeout=60.0)) == 0
    return (await last(operator, JobFinished, f"{namespace}.{job}")).outcome


async def test_a_policy_failing_with_one_job_decides_the_others_also_after_a_restart(
    server: NatsServer,
    monkeypatch: pytest.MonkeyPatch,
    failures_set_aside: None,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fragile(cluster: Any, jobs: Sequence[JobSnapshot], now: float) -> list[Target]:
        if any(job.key == OFFENDER for job in jobs):
            raise OverflowError("by design")
        return [start_target(job, "starts") for job in jobs]

    monkeypatch.setitem(POLICIES, "fragile", fragile)
    settings = replace(WEIR, policy="fragile")
    async with speaking(server, OPERATOR) as operator:
        await set_up(operator, server)
        async with allocating(server, settings) as service:
            await ask(server, "team-a", "mine")
            await last(operator, JobAccepted, OFFENDER)
            await ask(server, "team-b", "first")
            assert (await decided(operator, "team-b.first")).tasks
            shown = await reason_shown(operator, OFFENDER)
            assert (
                shown == "set aside: policy 'fragile' failed for this job: OverflowError: by design"
            )
            counted = [
                line
                for line in format_metrics(service.health.measures()).splitlines()
                if "failures_total{" in line
            ]
            assert [
                line for line in counted if 'policy="fragile"' in line and not line.endswith(" 0")
            ]
        async with allocating(server, settings):
            await ask(server, "team-b", "second")
            assert (await decided(operator, "team-b.second")).tasks
            assert await cancelled(operator, "team-a", "mine") == "cancelled"
    logged = capfd.readouterr()
    assert (logged.out + logged.err).count("JobSetAside") == 2, "once a start"


async def reason_shown(operator: Bus, key: str) -> str:
    """Return the reason why a job was set aside, as `weir jobs` shows it."""
    namespace, _, job = key.partition(".")
    async with asyncio.timeout(60), aclosing(follow_views(operator, namespace)) as changes:
        async for views in changes:
            found = [
                view.why
                for view in views.values()
                if view.job == job and view.why.startswith("set aside")
            ]
            if found:
                return found[0]
    raise AssertionError(f"nothing is shown of {key}")
