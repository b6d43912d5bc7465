"""The log of one job with all that a report shows.

It contains a growth that paid off, a crash, an abandoned change and a full disk. Times are seconds
of the log; the job is submitted at second 10.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from services.console.board.board import Board, apply, initial_board
from services.console.report.account import Passes, fold_epochs
from services.whatif.event_log import LogEntry
from shared.bus.subjects import pattern, stream_holding
from shared.messages import (
    AllocationDecided,
    Alternative,
    CapacityChanged,
    CheckpointFailed,
    GenerationAbandoned,
    JobFinished,
    Message,
    OwnPod,
    Phases,
    ProgressReported,
    Resources,
    TaskExited,
    TaskPlan,
    TaskUsage,
    TrainingResumed,
)
from tests.allocator.builders import accepted, node, request

ASKED_S, EXAMPLES, EPOCHS, UID = 10.0, 12_000, 6, 1
CORE = Resources(cpu=0.5, memory_gib=1)


class Log:
    """Appends messages at given times and folds them as `weir report` does."""

    def __init__(self) -> None:
        self.board, self.passes, self.told = initial_board(), Passes(), list[LogEntry]()
        self.last = {"weir-orders": 0, "weir-facts": 0}

    def say(self, at_s: float, *messages: Message) -> Log:
        for message in messages:
            stream = stream_holding(pattern(type(message)))
            self.last[stream] += 1
            told = LogEntry(at_s, stream, self.last[stream], message)
            self.board, self.passes = apply(self.board, told), fold_epochs(self.passes, told)
            self.told.append(told)
        return self


def plan(ps: int, workers: int) -> tuple[TaskPlan, ...]:
    roles: list[Any] = ["chief", *["ps"] * ps, *["worker"] * workers]
    return tuple(
        TaskPlan(role=role, index=at, serial=at, node="n1", resources=CORE)
        for at, role in enumerate(roles)
    )


def decided(generation: int, ps: int, workers: int, at_s: float, **more: Any) -> AllocationDecided:
    usual = {
        "reason": "the policy wants it",
        "batch": 32,
        "revision": generation,
        "decided_s": at_s,
    }
    asked = request("digits", epochs=EPOCHS)
    about = {
        "job": "digits",
        "uid": UID,
        "generation": generation,
        "request": asked,
        "tasks": plan(ps, workers),
    }
    return AllocationDecided(**(about | usual | more))


def pods(count: int, others: float = 0.0, cpu: float = 4.0) -> CapacityChanged:
    """Return a fact of a node with `count` pods of the job, half a core each.

    Other users' pods hold `others` cores.
    """
    seen = f"{count}-{others}"
    own = tuple(
        OwnPod(namespace="default", job="digits", pod=f"digits-worker-{n}", resources=CORE)
        for n in range(count)
    )
    return replace(node("n1", cpu=cpu, free=cpu - 0.5 * count - others, own=own), seen=seen)


def resumed(generation: int, samples: int, **more: Any) -> TrainingResumed:
    about = {
        "job": "digits",
        "uid": UID,
        "generation": generation,
        "step": samples // 32,
        "samples": samples,
    }
    return TrainingResumed(**(about | more))


def report(
    generation: int, samples: int, speed: float, cores: float | None = None
) -> ProgressReported:
    usage = () if cores is None else (TaskUsage(task="worker-1", cpu=cores, memory_gib=0.5),)
    return ProgressReported(
        job="digits",
        uid=UID,
        generation=generation,
        step=samples // 32,
        epoch=samples * EPOCHS // EXAMPLES,
        samples=samples,
        total_samples=EXAMPLES,
        samples_per_second=speed,
        loss=2.3 * 0.75 ** (samples / 1000),
        usage=usage,
    )


def trains(
    log: Log, generation: int, from_s: int, seconds: int, samples: int, speed: int, cores: float
) -> int:
    """Add a report each second; return the number of examples applied by then."""
    for second in range(1, seconds + 1):
        samples = min(samples + speed + (second % 3 - 1) * speed // 10, EXAMPLES)
        log.say(
            from_s + second,
            report(generation, samples, speed + (second % 3 - 1) * speed / 10, cores),
        )
    return samples


def even(log: Log, generation: int, from_s: int, seconds: int, samples: int, speed: int) -> int:
    """Add reports as `trains` does, at a constant speed."""
    for second in range(1, seconds + 1):
        log.say(from_s + second, report(generation, samples + second * speed, speed))
    return samples + seconds * speed


def begun_at_ten() -> Log:
    """Return a log: submitted at 10 s, decided at 11 s, pods from 12 s, training from 20 s."""
    log = Log().say(0, pods(0, others=2.5)).say(ASKED_S, request("digits", epochs=EPOCHS))
    log.say(ASKED_S, accepted(request("digits", epochs=EPOCHS), uid=UID))
    log.say(11, decided(1, 1, 1, 11.0, reason="start, as far as there is room"))
    return log.say(12, pods(3, others=2.5)).say(20, resumed(1, 32, learning_rate=0.1))


def whole() -> Log:
    """Return the log of the whole job, which ends at 116 s."""
    log = begun_at_ten()
    at = trains(log, 1, 20, 20, 32, 60, 1.2)
    log.say(40, pods(3))
    lost = (Alternative(ps=1, workers=2, batch=32, why="<b>slower</b> by a third"),)
    log.say(
        41,
        decided(
            2,
            2,
            4,
            41.0,
            reason="2 ps, 4 workers: capacity is free",
            gain_s=95.0,
            cost_s=1.0,
            alternatives=lost,
        ),
    )
    log.say(42, pods(7))
    phases = Phases(drain_s=0.12, save_s=0.2, restore_s=0.21, first_step_s=0.15)
    at = trains(log, 1, 40, 9, at, 60, 1.2)
    log.say(50, resumed(2, at + 20, previous=1, pause_s=0.71, phases=phases, learning_rate=0.05))
    at = trains(log, 2, 50, 20, at + 20, 250, 2.9)
    log.say(
        71,
        exited(),
        decided(3, 2, 4, 71.0, reason="ps-1 ended: another takes its place", cause="digits-ps-1"),
    )
    phases = Phases(restore_s=0.4, first_step_s=1.1)
    log.say(78, resumed(3, at - 500, previous=2, pause_s=7.6, phases=phases, learning_rate=0.05))
    at = trains(log, 3, 78, 15, at - 500, 250, 2.8)
    log.say(
        94,
        decided(4, 2, 6, 94.0, reason="2 ps, 6 workers: capacity is free", gain_s=9.0, cost_s=4.2),
    )
    failed = CheckpointFailed(
        job="digits",
        uid=UID,
        generation=3,
        step=9,
        path="/c",
        cause="it is full",
        remedy="make room",
    )
    log.say(
        96,
        failed,
        GenerationAbandoned(
            job="digits", uid=UID, generation=4, reason="digits-worker-7 is unschedulable"
        ),
    )
    trains(log, 3, 96, 19, at, 250, 2.8)
    log.say(116, ended()).say(118, pods(0))
    return log


def exited() -> TaskExited:
    about = {
        "job": "digits",
        "uid": UID,
        "generation": 2,
        "pod": "digits-ps-1",
        "pod_uid": "u",
        "role": "ps",
        "serial": 1,
    }
    return TaskExited(
        **about, node="n1", exit_code=137, reason="OOMKilled", message="too much\n  at line <3>"
    )


def ended(**more: Any) -> JobFinished:
    usual = {
        "outcome": "succeeded",
        "step": 375,
        "samples": EXAMPLES,
        "counted": EXAMPLES,
        "finished_s": 115.9,
    }
    metrics = {"metrics": {"accuracy": 0.9731, "loss": 0.0912}}
    return JobFinished(**({"job": "digits", "uid": UID, "generation": 3} | usual | metrics | more))


def of_digits(board: Board) -> Any:
    return board.jobs["default.digits"]


def shifted(log: Log, factor: float) -> Log:
    """Return the same log with every time multiplied by `factor`."""
    slow = Log()
    for told in log.told:
        slow.say(told.at_s * factor, replace(told.message))
    return slow
