"""Simulated trainers and kubelets: they publish the messages of a job without processes.

Pods run as soon as they are bound to a node. They prepare, hand over and report over the bus as
real trainers do. They end a random time after they are deleted, those of one job on one node
together.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import aiohttp

from services.cli.trial import Trial
from shared.kube.objects import JOB_LABEL, ROLE_LABEL, SERIAL_LABEL, UID_LABEL
from shared.messages import (
    CheckpointSaved,
    ClusterSpecPublished,
    GenerationAbandoned,
    GenerationPrepared,
    HandOverOrdered,
    JobFinished,
    Message,
    ModelProfile,
    ProgressReported,
    Role,
    TaskReady,
    TrainingResumed,
)
from tests.bench.crowd import MERGE, PODS
from tests.trainer.fleet import PROGRAMS

BATCH = 64
TOTAL = 100_000_000
"""Examples of each job: more than a job can apply here, so that no job ends by itself."""
REPORT_S = 0.2
PREPARE_S, PAUSE_S, GOES_S = (0.05, 0.3), (0.1, 0.5), (0.05, 1.5)
PROFILE = ModelProfile(parameters=1_000_000, bytes=4_000_000, variables=20)
GONE = 404


def speed(ps: int, workers: int) -> float:
    """Return examples per second: a concave surface.

    A step of 64 examples takes a / w + b + c w / p + d (w + p) s.
    """
    return BATCH / (1.0 / workers + 0.02 + 0.01 * workers / ps + 0.001 * (workers + ps))


class SimulatedJob:
    """All trainers of one job."""

    def __init__(self, watched: Trial, name: str, uid: int, chance: random.Random) -> None:
        self.watched, self.name, self.uid, self.chance = watched, name, uid, chance
        self.specs: dict[int, ClusterSpecPublished] = {}
        self.ready: dict[str, TaskReady] = {}
        self.running: int | None = None
        self.ended = False
        self.step, self.samples, self.paused_s = 0, 0.0, 0.0

    def fields(self, generation: int) -> dict[str, Any]:
        return {"job": self.name, "uid": self.uid, "generation": generation}

    async def publish(self, message: Message) -> None:
        await self.watched.bus.publish(message)

    def draw(self, between: tuple[float, float]) -> float:
        return self.chance.uniform(*between)

    # ------------------------------------------------------------ received messages

    async def on_message(self, message: Message) -> None:
        if isinstance(message, ClusterSpecPublished):
            self.specs[message.generation] = message
            await self.prepare(message)
        elif isinstance(message, HandOverOrdered):
            await self.take_over(message)
        elif isinstance(message, GenerationAbandoned):
            self.specs.pop(message.generation, None)
        elif isinstance(message, JobFinished):
            self.ended = True

    async def on_pod(self, pod: dict[str, Any]) -> None:
        """Publish that a pod of the job is ready."""
        meta = pod["metadata"]
        serial = int(meta["labels"][SERIAL_LABEL])
        port = 20_000 + 2 * serial
        self.ready[meta["name"]] = TaskReady(
            **self.fields(0),
            pod=meta["name"],
            pod_uid=meta["uid"],
            role=meta["labels"][ROLE_LABEL],
            serial=serial,
            node=pod["spec"]["nodeName"],
            host="127.0.0.1",
            ports=(port, port + 1),
        )
        await self.publish(self.ready[meta["name"]])

    async def prepare(self, spec: ClusterSpecPublished) -> None:
        await asyncio.sleep(self.draw(PREPARE_S))
        for pod in (self.ready[task.pod] for task in spec.tasks):
            fields = self.fields(spec.generation)
            prepared = GenerationPrepared(
                **fields,
                pod=pod.pod,
                pod_uid=pod.pod_uid,
                role=pod.role,
                serial=pod.serial,
                seconds=0.1,
            )
            await self.publish(prepared)

    async def take_over(self, order: HandOverOrdered) -> None:
        if (
            self.ended
            or order.generation not in self.specs
            or order.generation <= (self.running or 0)
        ):
            return
        pause_s = self.draw(PAUSE_S)
        self.running, previous = None, order.previous
        if previous is not None:
            await self.publish(
                CheckpointSaved(
                    **self.fields(previous),
                    step=self.step,
                    samples=int(self.samples),
                    path=f"{self.name}/{self.step}",
                    seconds=pause_s / 2,
                    final=True,
                    successor=order.generation,
                )
            )
            await asyncio.sleep(pause_s)
        self.step += 1
        await self.publish(
            TrainingResumed(
                **self.fields(order.generation),
                step=self.step,
                samples=int(self.samples),
                previous=previous,
                pause_s=None if previous is None else pause_s,
            )
        )
        self.running = order.generation

    # ------------------------------------------------------------ training

    async def train(self) -> None:
        """Report progress until the job ends."""
        while not self.ended:
            await asyncio.sleep(REPORT_S)
            if self.running is not None:
                await self.report(self.running)

    async def report(self, generation: int) -> None:
        counts: dict[Role, int] = {"chief": 0, "ps": 0, "worker": 0}
        for task in self.specs[generation].tasks:
            counts[task.role] += 1
        rate = speed(counts["ps"], counts["worker"])
        self.samples += rate * REPORT_S
        self.step += 1
        await self.publish(
            ProgressReported(
                **self.fields(generation),
                step=self.step,
                epoch=0,
                samples=int(self.samples),
                total_samples=TOTAL,
                samples_per_second=rate,
                profile=PROFILE,
                reported_s=time.time(),
            )
        )

    async def finish(self) -> None:
        self.ended = True
        generation = self.running or max(self.specs)
        await self.publish(
            JobFinished(**self.fields(generation), outcome="succeeded", finished_s=time.time())
        )


class Kubelets:
    """The kubelets of the nodes: pods run when they are bound, and end some time after deletion."""

    def __init__(self, http: aiohttp.ClientSession, watched: Trial, chance: random.Random) -> None:
        self.http, self.watched, self.chance = http, watched, chance
        self.jobs: dict[int, SimulatedJob] = {}
        self.started: set[str] = set()
        self.going: set[str] = set()
        self.delays: dict[tuple[str, str], float] = {}

    def program(self, job: str) -> Path:
        return PROGRAMS / "counting.py"

    def begin(self, job: str, uid: int) -> None:
        trainers = SimulatedJob(self.watched, job, uid, random.Random(self.chance.random()))
        self.jobs[uid] = trainers
        self.watched.bus.spawn(trainers.train())

    def length(self, chance: random.Random, succeeds: bool) -> dict[str, Any]:
        return {}

    async def finish(self, job: str) -> None:
        await next(trainers for trainers in self.jobs.values() if trainers.name == job).finish()

    async def listen(self) -> None:
        """Pass each message to the trainers of its job, in order."""
        queues: dict[int, asyncio.Queue[Message]] = {}
        number = 0
        while True:
            while number < len(self.watched.heard):
                message: Any = self.watched.heard[number].message
                number += 1
                uid = getattr(message, "uid", None)
                if uid not in self.jobs:
                    continue
                if uid not in queues:
                    queues[uid] = asyncio.Queue()
                    self.watched.bus.spawn(self._serve(self.jobs[uid], queues[uid]))
                queues[uid].put_nowait(message)
            self.watched.changed.clear()
            await self.watched.changed.wait()

    async def _serve(self, job: SimulatedJob, queue: asyncio.Queue[Message]) -> None:
        while not job.ended:
            await job.on_message(await queue.get())

    async def on_event(self, event: dict[str, Any]) -> None:
        """Start or end a pod of Weir after its change."""
        pod = event["object"]
        meta, node = pod["metadata"], pod["spec"].get("nodeName")
        if event["type"] == "DELETED" or not node:
            return
        if "deletionTimestamp" in meta:
            if meta["uid"] not in self.going:
                self.going.add(meta["uid"])
                self.watched.bus.spawn(self._go(meta, node))
        elif meta["uid"] not in self.started and int(meta["labels"][UID_LABEL]) in self.jobs:
            self.started.add(meta["uid"])
            self.watched.bus.spawn(self._run(pod))

    async def _run(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        path, body = f"{PODS}/{meta['name']}/status", {"status": {"phase": "Running"}}
        async with self.http.patch(path, json=body, headers=MERGE) as answer:
            if answer.status == GONE:
                return
            answer.raise_for_status()
        await self.jobs[int(meta["labels"][UID_LABEL])].on_pod(pod)

    async def _go(self, meta: dict[str, Any], node: str) -> None:
        place = meta["labels"][JOB_LABEL], node
        if place not in self.delays:
            self.delays[place] = self.chance.uniform(*GOES_S)
        await asyncio.sleep(self.delays[place])
        async with self.http.delete(f"{PODS}/{meta['name']}?gracePeriodSeconds=0"):
            pass
