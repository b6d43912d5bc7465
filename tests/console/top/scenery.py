"""A board from messages: six nodes, three running jobs, one that waits, one that is finished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.console.board.board import Board, apply, initial_board, with_reason
from services.console.log_entry import Entry
from services.whatif.event_log import LogEntry
from shared.bus.subjects import stream_holding, subject_of
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    JobAccepted,
    JobFinished,
    JobRequested,
    Message,
    OwnPod,
    ProgressReported,
    Resources,
    Role,
    Span,
    TaskPlan,
    TaskUsage,
    TrainingResumed,
)
from tests.shared.sample_messages import request

BEGAN_S = 1_795_300_000.0  # 2026-11-21 18:26:40 UTC
WHERE = "nats://127.0.0.1:4222 (.weir/connection.json)"
CORE = Resources(cpu=1.0, memory_gib=2.0)


class Scenery:
    """Adds messages to a board, one second apart. `told` has the messages."""

    def __init__(self) -> None:
        self.board, self.now_s = initial_board(), BEGAN_S
        self.told: list[Entry] = []
        self._last: dict[str, int] = {}

    def say(self, message: Message, after_s: float = 1.0) -> int:
        self.now_s += after_s
        subject = subject_of(message)
        stream = stream_holding(subject)
        self._last[stream] = sequence = self._last.get(stream, 0) + 1
        self.told.append(Entry(message, subject, stream, sequence, self.now_s))
        self.board = apply(self.board, LogEntry(self.now_s, stream, sequence, message))
        return sequence

    def asks(self, job: str, namespace: str = "default", workers: int = 8) -> dict[str, Any]:
        """Submit a job that is accepted; return the fields that all its later messages have."""
        span = Span(start=1, min=1, max=workers)
        asked: JobRequested = request(job=job, namespace=namespace, workers=span)
        uid = self.say(asked)
        about = {"job": job, "namespace": namespace, "uid": uid}
        self.say(JobAccepted(**about, request=asked, accepted_s=self.now_s))
        return {**about, "request": asked}

    def decides(
        self,
        about: dict[str, Any],
        generation: int,
        ps: int,
        nodes: Sequence[str],
        reason: str,
        **more: Any,
    ) -> None:
        """Publish a decision: one ps on each of the first `ps` nodes, and one worker on each node.

        The chief is on the first node.
        """
        roles: list[tuple[Role, str]] = [
            ("chief", nodes[0]),
            *[("ps", n) for n in nodes[:ps]],
            *[("worker", n) for n in nodes],
        ]
        tasks = tuple(
            TaskPlan(role=role, index=i, serial=i, node=node, resources=CORE)
            for i, (role, node) in enumerate(roles)
        )
        said = {
            "revision": generation,
            "generation": generation,
            "tasks": tasks,
            "batch": 128,
            "reason": reason,
        }
        self.say(AllocationDecided(**{**about, **said, "decided_s": self.now_s, **more}))

    def trains(
        self, about: dict[str, Any], generation: int, samples: int = 0, pause_s: float | None = None
    ) -> None:
        who = without_request(about)
        self.say(
            TrainingResumed(
                **who, generation=generation, step=samples // 128, samples=samples, pause_s=pause_s
            )
        )

    def reports(
        self,
        about: dict[str, Any],
        generation: int,
        losses: Sequence[float],
        from_samples: int,
        pace: float,
    ) -> None:
        for number, loss in enumerate(losses):
            samples = from_samples + round(pace * 10 * (number + 1))
            figures = {
                "epoch": samples // 60_000,
                "samples": samples,
                "total_samples": 600_000,
                "samples_per_second": pace,
            }
            usage = (TaskUsage(task="worker-1", cpu=2.5, memory_gib=1.0),)
            step = {"step": samples // 128, "generation": generation}
            self.say(
                ProgressReported(
                    **without_request(about), **figures, **step, loss=loss, usage=usage
                ),
                after_s=10.0,
            )

    def node(
        self,
        name: str,
        ours: Sequence[tuple[dict[str, Any], int]] = (),
        others: float = 0.0,
        **more: Any,
    ) -> None:
        """Report a node of eight cores. `ours`: jobs with their number of pods of one core."""
        own = tuple(
            OwnPod(
                namespace=about["namespace"],
                job=about["job"],
                pod=f"{about['job']}-worker-{i}",
                resources=CORE,
            )
            for about, count in ours
            for i in range(count)
        )
        free = Resources(cpu=8.0 - len(own) - others, memory_gib=32.0)
        size = Resources(cpu=8.0, memory_gib=64.0)
        seen = f"{len(own)}-{others}-{sorted(more.items())}"
        self.say(
            CapacityChanged(
                node=name, node_uid=name, seen=seen, allocatable=size, free=free, own=own, **more
            )
        )


def without_request(about: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in about.items() if name != "request"}


def scenery() -> Scenery:
    s = Scenery()
    for number in range(1, 7):
        s.node(f"node-{number}", others=4.0 if number == 5 else 0.0)
    over = s.asks("warm-up")
    s.say(
        JobFinished(
            **without_request(over), outcome="succeeded", samples=60_000, finished_s=s.now_s
        )
    )
    digits, clicks, text = s.asks("digits"), s.asks("clicks"), s.asks("sentiment", "team-a")
    s.decides(digits, 1, 1, ["node-1", "node-2"], "it is new, and there is room")
    s.decides(clicks, 1, 2, ["node-2", "node-3"], "it is new, and there is room")
    s.trains(digits, 1)
    s.trains(clicks, 1)
    s.reports(digits, 1, [2.31, 2.02, 1.71, 1.5, 1.32, 1.18], 0, 3_150.0)
    s.reports(clicks, 1, [0.69, 0.61, 0.58, 0.55, 0.56, 0.52, 0.51, 0.49], 0, 812.5)
    s.decides(text, 1, 1, ["node-4", "node-5"], "it is new, and there is room")
    s.decides(
        digits,
        2,
        2,
        ["node-1", "node-2", "node-6"],
        "37 % faster with 2 more workers",
        gain_s=74.0,
        cost_s=1.1,
    )
    s.trains(digits, 2, 189_000, 0.84)
    s.reports(digits, 2, [1.01, 0.88, 0.79, 0.7, 0.62, 0.57, 0.55], 189_000, 4_620.0)
    s.trains(text, 1)
    s.reports(text, 1, [0.71, 0.66, 0.6], 0, 95.25)
    waiting = s.asks("click-rate-of-the-second-season", "team-a")
    s.decides(
        clicks,
        2,
        2,
        ["node-2", "node-3", "node-6"],
        "21 % faster with 1 more worker",
        gain_s=210.0,
        cost_s=0.9,
    )
    s.node("node-1", [(digits, 5)])
    s.node("node-2", [(digits, 2), (clicks, 4)])
    s.node("node-3", [(clicks, 3)], others=2.5)
    s.node("node-4", [(text, 4)])
    s.node("node-5", [(text, 2)], others=4.0, schedulable=False)
    s.node("node-6", [(digits, 2)], others=1.25)
    for about, said in (
        (waiting, "waits for room (too little memory) for a chief, 1 ps and 1 worker"),
        (digits, "2 ps and 3 workers is what pays"),
    ):
        s.board = with_reason(s.board, f"{about['namespace']}.{about['job']}", said)
    return s


def large(nodes: int, jobs: int) -> Board:
    """Return a board of that many nodes and jobs, with one pod of one core on each node."""
    s = Scenery()
    asked = [s.asks(f"job-{number}") for number in range(jobs)]
    for number in range(nodes):
        s.node(f"node-{number}", [(asked[number % jobs], 1)] if asked else [])
    return s.board
