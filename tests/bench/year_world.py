"""Simulated launcher and trainers of `year.py`: they publish messages and create pods."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from shared.bus import programs
from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage
from shared.messages import (
    EVICTED,
    AllocationDecided,
    JobFinished,
    JobRequested,
    Program,
    ProgressReported,
    Resources,
    RoleResources,
    Span,
    TaskExited,
    TaskPlan,
    TaskReady,
    TaskStarted,
    TrainingResumed,
)
from tests.monitor.builders import container, node, ours
from tests.shared.kube.api_server import ApiServer

PROGRAM = b"def model(): ..."
PS, WORKERS = 2, 5
TASK = Resources(cpu=0.25, memory_gib=0.25)
DECIDED_WITHIN_S = 120.0
PAUSE_S = 0.5


class Lost(Exception):
    """There was no decision for a job that needed one."""


class Job:
    """One simulated job: its decisions as they come, and the generation that trains."""

    def __init__(self, name: str) -> None:
        self.name, self.uid = name, 0
        self.decisions = asyncio.Queue[AllocationDecided]()
        self.runs: AllocationDecided | None = None
        self.step = 0

    @property
    def generation(self) -> int:
        return self.runs.generation if self.runs else 0

    def about(self) -> dict[str, Any]:
        return {"job": self.name, "uid": self.uid, "generation": self.generation}


class World:
    """Jobs on a simulated cluster, which the real monitor observes."""

    def __init__(self, bus: Bus, api: ApiServer) -> None:
        self.bus, self.api = bus, api
        self.jobs: dict[str, Job] = {}
        self.hand_overs, self.finished = 0, 0
        self.progress: set[asyncio.Task[None]] = set()

    def add_nodes(self, busy: int, idle: int) -> list[str]:
        """Add nodes for jobs, and nodes that are too small for tasks; return all names."""
        names = [*(f"busy-{n}" for n in range(busy)), *(f"idle-{n}" for n in range(idle))]
        for name in names:
            self.api.put(
                "nodes", node(name, cpu="16" if name.startswith("busy") else "100m", memory="64Gi")
            )
        return names

    async def begin(self) -> None:
        await programs.store_program(self.bus, "default", programs.digest_of(PROGRAM), PROGRAM)
        await self.bus.follow((AllocationDecided,), self._on_decision, {})

    async def _on_decision(self, heard: StoredMessage) -> None:
        message = heard.message
        if isinstance(message, AllocationDecided) and message.job in self.jobs:
            self.jobs[message.job].decisions.put_nowait(message)

    # ------------------------------------------------------------ the life of a job

    async def whole_life(self, name: str, hand_overs: int) -> None:
        job = await self.start(name)
        for _ in range(hand_overs):
            await self.hand_over(job)
        await self.bus.publish(
            JobFinished(
                job=name, uid=job.uid, outcome="succeeded", finished_s=time.time(), samples=job.step
            )
        )
        assert job.runs
        self._set_pods(job, [])
        del self.jobs[name]
        self.finished += 1

    async def start(self, name: str) -> Job:
        """Request a job and let it train."""
        job = self.jobs[name] = Job(name)
        job.uid = await self.bus.publish(_request(name))
        await self._enact(job, await self._decision(job))
        return job

    async def hand_over(self, job: Job) -> None:
        """Evict a worker, wait for a decision without it, and let the new generation train."""
        await self.evict(job)
        await self._enact(job, await self._decision(job))
        self.hand_overs += 1

    async def evict(self, job: Job) -> None:
        assert job.runs
        task = next(task for task in job.runs.tasks if task.role == "worker")
        self.api.remove("pods", task.pod(job.name))
        await self.bus.publish(
            TaskExited(**_of_pod(job, task), node=task.node, exit_code=137, reason=EVICTED)
        )

    async def _decision(self, job: Job) -> AllocationDecided:
        try:
            async with asyncio.timeout(DECIDED_WITHIN_S):
                while True:
                    decision = await job.decisions.get()
                    if (
                        decision.uid == job.uid
                        and decision.generation > job.generation
                        and decision.tasks
                    ):
                        return decision
        except TimeoutError as error:
            raise Lost(job.name) from error

    async def _enact(self, job: Job, decision: AllocationDecided) -> None:
        before = job.runs
        job.runs = decision
        known = {task.pod(job.name) for task in before.tasks} if before else set()
        for task in decision.tasks:
            if task.pod(job.name) not in known:
                await self.bus.publish(TaskStarted(**_of_pod(job, task), node=task.node))
                await self.bus.publish(
                    TaskReady(**_of_pod(job, task), node=task.node, host="::1", ports=(1, 2))
                )
        self._set_pods(job, list(decision.tasks))
        job.step += 1
        resumed = TrainingResumed(**job.about(), step=job.step, samples=job.step)
        if before:
            resumed = replace(resumed, previous=before.generation, pause_s=PAUSE_S)
        await self.bus.publish(resumed)

    def _set_pods(self, job: Job, tasks: list[TaskPlan]) -> None:
        """Create and delete pods of a job, so that exactly these exist."""
        wanted = {task.pod(job.name): task for task in tasks}
        there = {name for name in self.api.names("pods") if name.startswith(f"{job.name}-")}
        for name in there - wanted.keys():
            self.api.remove("pods", name)
        for name in wanted.keys() - there:
            pod = ours(name, wanted[name].node, job.name)
            pod["spec"]["containers"] = [container("250m", "256Mi")]
            self.api.put("pods", pod)

    # ------------------------------------------------------------ reports

    async def report_for_ever(self, every_s: float) -> None:
        """Let every training job report, in turn, within `every_s`."""
        while True:
            for job in list(self.jobs.values()):
                await self.report(job)
                await asyncio.sleep(every_s / max(1, len(self.jobs)))
            await asyncio.sleep(0.0 if self.jobs else every_s)

    async def report(self, job: Job) -> None:
        if job.runs is None:
            return
        job.step += 1
        amounts: dict[str, Any] = {
            "step": job.step,
            "samples": job.step,
            "total_samples": 10**9,
            "samples_per_second": 100.0,
        }
        await self.bus.publish(ProgressReported(**job.about(), epoch=0, **amounts))


def lanes(jobs: int, concurrent: int) -> Iterator[range]:
    """Return one range of job numbers for each lane; its jobs run one after the other."""
    return (range(first, jobs, concurrent) for first in range(concurrent))


def _of_pod(job: Job, task: TaskPlan) -> dict[str, Any]:
    pod = task.pod(job.name)
    return {
        **job.about(),
        "pod": pod,
        "pod_uid": f"uid-{pod}",
        "role": task.role,
        "serial": task.serial,
    }


def _request(name: str) -> JobRequested:
    return JobRequested(
        job=name,
        program=Program(name="train.py", digest=programs.digest_of(PROGRAM)),
        epochs=1,
        batch=Span(start=32, min=32, max=32),
        ps=Span(start=PS, min=PS, max=PS),
        workers=Span(start=WORKERS, min=WORKERS, max=WORKERS),
        resources=RoleResources(chief=TASK, ps=TASK, worker=TASK),
        request_id=name,
    )
