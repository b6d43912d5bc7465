"""Builders of a log; its messages are one second apart unless a test says otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from services.console.board.board import Board, apply, initial_board
from services.whatif.event_log import LogEntry
from shared.bus.subjects import pattern, stream_holding
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    JobFinished,
    JobRequested,
    Message,
    OwnPod,
    ProgressReported,
    Resources,
    TaskPlan,
    TaskUsage,
)
from tests.allocator.builders import UID, node, request

ONE = Resources(cpu=1, memory_gib=1)


class Log:
    """Appends messages to a log and folds them into a board."""

    def __init__(self, board: Board | None = None) -> None:
        self.board, self.now_s = board or initial_board(), 0.0
        self.told: list[LogEntry] = []
        self.last = {"weir-orders": 0, "weir-facts": 0}

    def say(self, *messages: Message, after_s: float = 1.0) -> Board:
        for message in messages:
            self.now_s += after_s
            stream = stream_holding(pattern(type(message)))
            self.last[stream] += 1
            self.told.append(LogEntry(self.now_s, stream, self.last[stream], message))
            self.board = apply(self.board, self.told[-1])
        return self.board


def folded(told: Iterable[LogEntry]) -> Board:
    board = initial_board()
    for each in told:
        board = apply(board, each)
    return board


def tasks(ps: int = 1, workers: int = 1, where: str = "n1") -> tuple[TaskPlan, ...]:
    roles = ["chief", *["ps"] * ps, *["worker"] * workers]
    return tuple(
        TaskPlan(role=role, index=index, serial=index, node=where, resources=ONE)  # type: ignore[arg-type]
        for index, role in enumerate(roles)
    )


def decided(
    generation: int = 1,
    ps: int = 1,
    workers: int = 1,
    job: str = "mnist",
    asked: JobRequested | None = None,
    **more: Any,
) -> AllocationDecided:
    usual: dict[str, Any] = {"reason": "capacity is free", "batch": 32, "revision": generation}
    return AllocationDecided(
        job=job,
        uid=UID,
        generation=generation,
        request=asked or request(job),
        tasks=tasks(ps, workers),
        **(usual | more),
    )


def holding(
    name: str = "n1", pods: int = 0, job: str = "mnist", cpu: float = 8, **more: Any
) -> CapacityChanged:
    """Return a fact of a node with `pods` pods of one core each."""
    own = tuple(
        OwnPod(namespace="default", job=job, pod=f"{job}-worker-{i}", resources=ONE)
        for i in range(pods)
    )
    return node(name, cpu=cpu, free=cpu - pods - more.pop("others", 0), own=own, **more)


def progress(
    samples: int,
    generation: int = 1,
    speed: float = 100.0,
    loss: float | None = 0.5,
    cpu: float = 1.5,
    job: str = "mnist",
) -> ProgressReported:
    return ProgressReported(
        job=job,
        uid=UID,
        generation=generation,
        step=samples // 10,
        epoch=0,
        samples=samples,
        total_samples=1000,
        samples_per_second=speed,
        loss=loss,
        usage=(TaskUsage(task="worker-0", cpu=cpu, memory_gib=1),),
    )


def finished(outcome: Any = "succeeded", job: str = "mnist", **more: Any) -> JobFinished:
    return JobFinished(job=job, uid=UID, outcome=outcome, finished_s=99.0, **more)
