"""Builders for the allocator's tests: each sets only what matters."""

from __future__ import annotations

from typing import Any

import msgspec

from services.allocator.decide import Decisions, decide, prepare_tables
from services.allocator.settings import Rules
from services.allocator.state.state import State, apply, without_tables
from shared.bus.subjects import decode_message, encode_message, subject_of
from shared.messages import (
    AllocationDecided,
    CapacityChanged,
    GenerationAbandoned,
    JobAccepted,
    JobRequested,
    Message,
    OwnPod,
    Program,
    ProgressReported,
    Resources,
    RoleResources,
    Span,
    TaskExited,
    TaskPlan,
    TrainingResumed,
)

UID = 1
AT_ONCE = Rules(
    policy="config-manager", window_s=0, cooldown_s=0, max_delay_s=0, backoff_s=0, settle_s=0
)
ONE_CORE = Resources(cpu=1, memory_gib=1)
EVEN = RoleResources(chief=ONE_CORE, ps=ONE_CORE, worker=ONE_CORE)


def span(start: int, least: int = 1, most: int = 0) -> Span:
    return Span(start=start, min=least, max=most or start)


def request(job: str = "mnist", **fields: Any) -> JobRequested:
    usual: dict[str, Any] = {
        "program": Program(name="train.py", digest="sha256-" + "0" * 64),
        "epochs": 1,
        "batch": span(32),
        "ps": span(1, most=2),
        "workers": span(1, most=4),
        "resources": EVEN,
    }
    return JobRequested(job=job, **(usual | fields))


def accepted(asked: JobRequested | None = None, uid: int = UID) -> JobAccepted:
    asked = asked or request()
    return JobAccepted(
        job=asked.job, namespace=asked.namespace, uid=uid, request=asked, accepted_s=0.0
    )


def node(
    name: str = "n1", cpu: float = 8, free: float | None = None, **fields: Any
) -> CapacityChanged:
    return CapacityChanged(
        node=name,
        node_uid=f"uid-{name}",
        seen="0",
        allocatable=Resources(cpu=cpu, memory_gib=64),
        free=Resources(cpu=cpu if free is None else free, memory_gib=64),
        **fields,
    )


def own(job: str, *tasks: TaskPlan) -> tuple[OwnPod, ...]:
    return tuple(
        OwnPod(namespace="default", job=job, pod=t.pod(job), resources=t.resources) for t in tasks
    )


def resumed(generation: int, job: str = "mnist", **fields: Any) -> TrainingResumed:
    """Return the resumption of a generation.

    With `pause_s` it follows a hand-over from the generation before, unless `previous` is given.
    """
    previous = None if fields.get("pause_s") is None else generation - 1
    usual = {
        "job": job,
        "uid": UID,
        "generation": generation,
        "step": 0,
        "samples": 0,
        "previous": previous,
    }
    return TrainingResumed(**(usual | fields))


def abandoned(generation: int, job: str = "mnist") -> GenerationAbandoned:
    return GenerationAbandoned(job=job, uid=UID, generation=generation, reason="Unschedulable")


def progress(
    generation: int, done: int, total: int, speed: float, step: int = 1
) -> ProgressReported:
    return ProgressReported(
        job="mnist",
        uid=UID,
        generation=generation,
        step=step,
        epoch=0,
        samples=done,
        total_samples=total,
        samples_per_second=speed,
    )


def exited(
    task: TaskPlan, code: int | None = 137, reason: str = "", generation: int = 1
) -> TaskExited:
    return TaskExited(
        job="mnist",
        uid=UID,
        generation=generation,
        pod=task.pod("mnist"),
        pod_uid=f"pod-{task.serial}",
        role=task.role,
        serial=task.serial,
        node=task.node,
        exit_code=code,
        reason=reason,
    )


class Story:
    """A state and the log that produced it.

    Messages pass through the codec, by default 1 s apart.
    """

    def __init__(self, rules: Rules = AT_ONCE) -> None:
        self.rules, self.state, self.now = rules, State(), 1000.0
        self.log: list[tuple[Message, str, int, float]] = []
        self.decisions = Decisions()

    def hear(self, *messages: Message, after_s: float = 1.0) -> Story:
        for message in messages:
            self.now += after_s
            again = decode_message(subject_of(message), encode_message(message))
            self.log.append((again, "weir", len(self.log) + 1, self.now))
            self.state = apply(self.state, *self.log[-1])
        return self

    def decide(self, after_s: float = 0.0) -> tuple[Message, ...]:
        """Run one pass, fold its actions into the state and return them."""
        self.now += after_s
        last = self.decisions
        self.state = prepare_tables(self.state, self.rules)
        self.decisions = decide(
            self.state, self.now, self.rules, last.pending_changes, last.failures, last.untried
        )
        self.hear(*self.decisions.actions, after_s=0.0)
        return self.decisions.actions

    def decided(self, after_s: float = 0.0) -> AllocationDecided:
        """Run one pass and return its decision; exactly one is expected."""
        (action,) = self.decide(after_s)
        assert isinstance(action, AllocationDecided)
        return action

    def why(self, job: str = "mnist") -> str:
        return self.decisions.why[f"default.{job}"]

    @property
    def facts(self) -> State:
        """The state without the tables that passes have added."""
        return without_tables(self.state)

    def replayed(self) -> State:
        state = State()
        for entry in self.log:
            state = apply(state, *entry)
        return msgspec.json.decode(msgspec.json.encode(state), type=State)


def tasks(decision: AllocationDecided, role: str) -> list[TaskPlan]:
    return [t for t in decision.tasks if t.role == role]


def size(decision: AllocationDecided) -> tuple[int, int]:
    return len(tasks(decision, "ps")), len(tasks(decision, "worker"))
