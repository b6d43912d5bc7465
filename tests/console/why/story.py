"""A log of a job that grows and of another that ends; its messages are 0.1 s apart."""

from __future__ import annotations

from typing import Any

from services.console.log_entry import Entry
from services.console.why.rules import Known
from shared.bus.subjects import FACTS, ORDERS, stream_holding, subject_of
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    CheckpointSaved,
    ClusterSpecPublished,
    GenerationPrepared,
    HandOverOrdered,
    JobAccepted,
    JobFinished,
    Message,
    OwnPod,
    ProgressReported,
    Resources,
    Role,
    TaskAddress,
    TaskPlan,
    TaskReady,
    TaskStarted,
    TrainingResumed,
)
from tests.shared.sample_messages import request

APART_S = 0.1
SMALL: tuple[tuple[Role, int], ...] = (("chief", 0), ("ps", 1), ("worker", 2))
LARGE: tuple[tuple[Role, int], ...] = (*SMALL, ("worker", 3))


class Log:
    """Two streams whose sequences start at 1, or at `first`."""

    def __init__(self, **first: int) -> None:
        self.entries: list[Entry] = []
        self._last = {ORDERS: first.get("orders", 1) - 1, FACTS: first.get("facts", 1) - 1}

    def say(self, message: Message) -> Entry:
        subject = subject_of(message)
        stream = stream_holding(subject)
        self._last[stream] += 1
        stored_s = 1_700_000_000 + APART_S * len(self.entries)
        self.entries.append(Entry(message, subject, stream, self._last[stream], stored_s))
        return self.entries[-1]

    def known(self) -> Known:
        return Known(self.entries)


class Job:
    """Appends the messages that the services and the trainers of a job publish."""

    def __init__(self, log: Log, name: str) -> None:
        self.log, self.name = log, name
        self.requested = log.say(request(job=name))
        self.accepted = log.say(
            JobAccepted(**self.about(0), request=request(job=name), accepted_s=1.0)
        )
        self.revision = 0

    def about(self, generation: int) -> dict[str, Any]:
        return {"job": self.name, "uid": self.requested.sequence, "generation": generation}

    def pod(self, role: str, serial: int) -> str:
        return f"{self.name}-{role}-{serial}"

    def decided(self, generation: int, tasks: tuple[tuple[Role, int], ...], cause: str) -> Entry:
        self.revision += 1
        plans = tuple(
            TaskPlan(role=role, index=0, serial=serial, node="n1", resources=Resources(cpu=0.5))
            for role, serial in tasks
        )
        return self.log.say(
            AllocationDecided(
                **self.about(generation),
                revision=self.revision,
                request=request(job=self.name),
                tasks=plans,
                batch=32,
                reason="grow",
                cause=cause,
            )
        )

    def task(
        self, kind: type[Message], generation: int, role: Role, serial: int, **more: Any
    ) -> Entry:
        pod = self.pod(role, serial)
        about = {
            **self.about(generation),
            "pod": pod,
            "pod_uid": f"{pod}-uid",
            "role": role,
            "serial": serial,
        }
        return self.log.say(kind(**about, **more))

    def stands(self, generation: int, role: Role, serial: int) -> tuple[Entry, Entry]:
        started = self.task(TaskStarted, generation, role, serial, node="n1")
        return started, self.task(
            TaskReady, generation, role, serial, node="n1", host="10.0.0.1", ports=(1, 2)
        )

    def published(self, generation: int, tasks: tuple[tuple[Role, int], ...]) -> Entry:
        there = tuple(
            TaskAddress(role=r, index=0, pod=self.pod(r, s), host="10.0.0.1", port=1)
            for r, s in tasks
        )
        spec: dict[str, Any] = {
            "revision": self.revision,
            "request": request(job=self.name),
            "tasks": there,
            "batch": 32,
        }
        return self.log.say(ClusterSpecPublished(**self.about(generation), **spec))

    def prepared(self, generation: int, role: Role, serial: int, **more: Any) -> Entry:
        return self.task(GenerationPrepared, generation, role, serial, **more)

    def handed_over(self, generation: int) -> Entry:
        return self.log.say(
            HandOverOrdered(**self.about(generation), previous=generation - 1 or None)
        )

    def saved(self, generation: int, step: int, **more: Any) -> Entry:
        return self.log.say(
            CheckpointSaved(
                **self.about(generation), step=step, samples=step, path="/c", seconds=0.5, **more
            )
        )

    def resumed(self, generation: int, step: int) -> Entry:
        return self.log.say(TrainingResumed(**self.about(generation), step=step, samples=step))

    def reported(self, generation: int, step: int) -> Entry:
        figures = {"epoch": 0, "total_samples": 1000, "samples_per_second": 10.0}
        return self.log.say(
            ProgressReported(**self.about(generation), step=step, samples=step, **figures)
        )

    def finished(self, generation: int, outcome: str = "succeeded") -> Entry:
        return self.log.say(JobFinished(**self.about(generation), outcome=outcome))


def node(seen: str, *own: str, job: str = "digits") -> CapacityChanged:
    """Return a fact of node n1. `own`: names of the job's pods on it."""
    held = tuple(
        OwnPod(namespace="default", job=job, pod=pod, resources=Resources(cpu=0.5)) for pod in own
    )
    size = Resources(cpu=4.0, memory_gib=8.0)
    return CapacityChanged(
        node="n1", node_uid="n1-uid", seen=seen, allocatable=size, free=size, own=held
    )


class Growth:
    """The job `digits` starts small and grows when node n1 becomes free. Each entry has a name."""

    def __init__(self) -> None:
        self.log = Log()
        self.full = self.log.say(node("full"))
        self.job = Job(self.log, "digits")
        self.first = self.job.decided(1, SMALL, self.job.accepted.message.id())  # type: ignore[union-attr]
        self.stood = [entry for task in SMALL for entry in self.job.stands(1, *task)]
        self.spec1 = self.job.published(1, SMALL)
        self.prepared1 = [self.job.prepared(1, *task) for task in SMALL]
        self.began = self.job.handed_over(1)
        self.trains1 = self.job.resumed(1, 0)
        self.reports1 = [self.job.reported(1, step) for step in (10, 20, 30, 40, 50)]
        self.freed = self.log.say(node("freed"))
        self.second = self.job.decided(2, LARGE, "n1-uid.freed")
        self.newcomer = self.job.stands(2, "worker", 3)
        self.spec2 = self.job.published(2, LARGE)
        self.prepared2 = [self.job.prepared(2, *task) for task in LARGE]
        self.ordered = self.job.handed_over(2)
        self.drained = self.job.saved(1, 60, final=True, successor=2)
        self.trains2 = self.job.resumed(2, 60)
        self.reports2 = [self.job.reported(2, step) for step in (70, 80)]
        self.end = self.job.finished(2)
