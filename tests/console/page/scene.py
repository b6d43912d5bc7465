"""Forty minutes of a small cluster, as the messages that its services would publish.

Four jobs start, grow, shrink and end beside the other users' pods. Every number on a screenshot
comes from these messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from services.console.board.board import Board, apply, initial_board
from services.whatif.event_log import LogEntry
from shared.bus.subjects import pattern, stream_holding
from shared.messages import (
    AllocationDecided,
    Alternative,
    CapacityChanged,
    GenerationAbandoned,
    JobAccepted,
    JobFinished,
    Message,
    OwnPod,
    Phases,
    ProgressReported,
    Resources,
    Role,
    TaskExited,
    TaskPlan,
    TaskUsage,
    TrainingResumed,
)
from tests.allocator.builders import request, span

NODES = {f"node-{number}": 4.0 for number in range(1, 9)}
ROLE_CPU: dict[Role, float] = {"chief": 0.25, "ps": 0.5, "worker": 1.0}
REPORT_S = 5.0
LEAVING_S = 40.0
"""Seconds from a job's end until its pods are gone."""
SLOW_S = 12.0
"""Seconds by which the clock that gives a job's end time is behind."""


class Job:
    """One job: when it was submitted, and its sizes (time in s, ps, workers)."""

    def __init__(
        self,
        name: str,
        uid: int,
        begins_s: float,
        sizes: list[tuple[float, int, int]],
        ends_s: float = 0.0,
    ) -> None:
        self.name, self.uid, self.begins_s, self.sizes, self.ends_s = (
            name,
            uid,
            begins_s,
            sizes,
            ends_s,
        )
        self.asked = request(
            name,
            epochs=20,
            ps=span(1, most=4),
            workers=span(1, most=8),
            batch=span(64),
            policy="weir",
        )
        self.total = 2_000_000
        self.samples = 0.0


JOBS = [
    Job("digits", 11, 60, [(66, 1, 2), (420, 2, 4), (1260, 2, 6), (1900, 1, 3)]),
    Job("clicks", 14, 240, [(250, 2, 3), (900, 1, 2), (1500, 2, 4)]),
    Job("reviews", 31, 700, [(712, 1, 2), (1300, 1, 4)], ends_s=2050),
    Job("housing", 52, 1450, [(1462, 1, 3)]),
]
STRANGERS = [
    ("node-1", 3.0, 0, 400),
    ("node-2", 3.5, 0, 1250),
    ("node-5", 2.0, 1850, 9999),
    ("node-6", 4.0, 1850, 9999),
]
LENGTH_S = 2400.0


def told(ends_s: float) -> Iterator[LogEntry]:
    """Yield all messages in order of time. The forty minutes end at `ends_s`."""
    said = sorted(_said(), key=lambda pair: pair[0])
    last = dict.fromkeys(("weir-orders", "weir-facts"), 0)
    for at_s, message in said:
        stream = stream_holding(pattern(type(message)))
        last[stream] += 1
        stored_s = ends_s - LENGTH_S + at_s
        if isinstance(message, JobFinished):
            message = replace(message, finished_s=stored_s - SLOW_S)
        yield LogEntry(stored_s, stream, last[stream], message)


def board(ends_s: float) -> Board:
    whole = initial_board()
    for each in told(ends_s):
        whole = apply(whole, each)
    return whole


# ---------------------------------------------------------------- messages


def _said() -> Iterator[tuple[float, Message]]:
    for job in JOBS:
        yield from _life(job)
    yield from _capacity()


def _life(job: Job) -> Iterator[tuple[float, Message]]:
    who: dict[str, Any] = {"job": job.name, "uid": job.uid}
    job.samples = 0.0
    yield job.begins_s, job.asked
    yield job.begins_s + 0.2, JobAccepted(**who, request=job.asked, accepted_s=0.0)
    ends = [at for at, _, _ in job.sizes[1:]] + [job.ends_s or LENGTH_S]
    for number, ((at_s, ps, workers), end_s) in enumerate(
        zip(job.sizes, ends, strict=True), start=1
    ):
        yield at_s, _decision(job, number, ps, workers)
        yield from _training(job, number, ps, workers, at_s + 6.0, end_s)
    if job.name == "housing":
        yield 1800, _decision(job, 2, 1, 6)
        yield (
            1830,
            GenerationAbandoned(
                **who, generation=2, reason="node-6 takes no pod of 1 cpu any more"
            ),
        )
    if job.name == "clicks":
        yield (
            1700,
            TaskExited(
                **who,
                generation=3,
                pod="clicks-worker-9",
                pod_uid="9",
                role="worker",
                serial=9,
                node="node-4",
                exit_code=137,
                reason="OOMKilled",
            ),
        )
    if job.ends_s:
        yield (
            job.ends_s,
            JobFinished(
                **who,
                outcome="succeeded",
                samples=job.total,
                metrics={"accuracy": 0.934},
                finished_s=0.0,
            ),
        )


def _decision(job: Job, number: int, ps: int, workers: int) -> AllocationDecided:
    grows = number > 1 and workers > job.sizes[max(number - 2, 0)][2]
    why = (
        "its gang fits"
        if number == 1
        else "free cores would end it sooner"
        if grows
        else "another job waits for its minimum"
    )
    tried = Alternative(
        ps=ps,
        workers=workers + 1,
        batch=64,
        why="the ps would be the bottleneck: 4 % faster for 1 core",
    )
    return AllocationDecided(
        job=job.name,
        uid=job.uid,
        generation=number,
        revision=number,
        request=job.asked,
        tasks=tuple(_tasks(job, ps, workers)),
        batch=64,
        reason=why,
        alternatives=(tried,),
        gain_s=140.0 if grows else 0.0,
        cost_s=0.6 if grows else 0.0,
    )


def _tasks(job: Job, ps: int, workers: int) -> Iterator[TaskPlan]:
    names, shift = list(NODES), job.uid
    roles: list[Role] = ["chief", *["ps"] * ps, *["worker"] * workers]  # type: ignore[list-item]
    for index, role in enumerate(roles):
        size = Resources(cpu=ROLE_CPU[role], memory_gib=1)
        yield TaskPlan(
            role=role,
            index=index,
            serial=index,
            node=names[(shift + index) % len(names)],
            resources=size,
        )


def _training(
    job: Job, number: int, ps: int, workers: int, from_s: float, to_s: float
) -> Iterator[tuple[float, Message]]:
    pause, phases = (
        0.4 + 0.1 * workers,
        Phases(drain_s=0.1, save_s=0.1, restore_s=0.2, first_step_s=0.1 * workers),
    )
    first = number == 1
    yield (
        from_s,
        TrainingResumed(
            job=job.name,
            uid=job.uid,
            generation=number,
            step=round(job.samples / 64),
            samples=round(job.samples),
            previous=None if first else number - 1,
            pause_s=None if first else pause,
            phases=Phases() if first else phases,
        ),
    )
    speed = 180.0 * min(workers, 2.6 * ps) ** 0.85
    for step in range(1, int((to_s - from_s) / REPORT_S)):
        wave = 1 + 0.05 * math.sin(step * 1.7 + job.uid)
        job.samples += speed * wave * REPORT_S
        yield from_s + step * REPORT_S, _report(job, number, speed * wave, workers)


def _report(job: Job, number: int, speed: float, workers: int) -> ProgressReported:
    loss = 0.08 + 2.2 * math.exp(-job.samples / 180_000) * (1 + 0.04 * math.sin(job.samples))
    usage = tuple(TaskUsage(task=f"worker-{n}", cpu=0.82, memory_gib=0.7) for n in range(workers))
    return ProgressReported(
        job=job.name,
        uid=job.uid,
        generation=number,
        step=round(job.samples / 64),
        epoch=int(20 * job.samples / job.total),
        samples=round(job.samples),
        total_samples=job.total,
        samples_per_second=speed,
        loss=loss,
        usage=usage,
    )


def _capacity() -> Iterator[tuple[float, Message]]:
    """Yield a fact of every node at each time at which a node changes."""
    times = {0.0, *(at for _, _, *span_s in STRANGERS for at in span_s if at < LENGTH_S)}
    times |= {at + 2.0 for job in JOBS for at, _, _ in job.sizes}
    times |= {job.ends_s + LEAVING_S for job in JOBS if job.ends_s}
    for at_s in sorted(times):
        for name, cpu in NODES.items():
            yield at_s + 0.01, _node(name, cpu, at_s)


def _node(name: str, cpu: float, at_s: float) -> CapacityChanged:
    own = tuple(
        OwnPod(namespace="default", job=job.name, pod=task.pod(job.name), resources=task.resources)
        for job in JOBS
        for task in _standing(job, at_s)
        if task.node == name
    )
    others = sum(
        amount for node, amount, begins, ends in STRANGERS if node == name and begins <= at_s < ends
    )
    held = sum(pod.resources.cpu for pod in own)
    return CapacityChanged(
        node=name,
        node_uid=name,
        seen=str(at_s),
        allocatable=Resources(cpu=cpu, memory_gib=16),
        free=Resources(cpu=max(cpu - held - others, 0.0), memory_gib=16 - len(own) - 2 * others),
        schedulable=not (name == "node-8" and at_s > 1800),
        own=own,
        observed_s=at_s,
    )


def _standing(job: Job, at_s: float) -> Iterator[TaskPlan]:
    sizes = [size for size in job.sizes if size[0] + 2.0 <= at_s]
    if sizes and not (job.ends_s and at_s >= job.ends_s + LEAVING_S):
        yield from _tasks(job, *sizes[-1][1:])
