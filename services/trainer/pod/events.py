"""The events of a pod. The bus, child processes, timers and signals put them into one queue.

The loop of `service.py` takes them. `lane_of` gives the order: an event waits until the actions for
the previous one of its lane are performed, and the lanes run side by side. So a program that is
fetched slowly delays the next order, but no checkpoint, and no deadline of this pod.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from services.trainer.protocol import Assignment, ChildEvent, Failed
from shared.messages import (
    AllocationDecided,
    CheckpointSaved,
    ClusterSpecPublished,
    GenerationAbandoned,
    HandOverOrdered,
    Message,
    TaskLeaving,
    TrainingResumed,
)

Timer = Literal["deadline", "prepare again", "stay"]
ORDERS: tuple[type[Message], ...] = (ClusterSpecPublished, HandOverOrdered, GenerationAbandoned)
FACTS: tuple[type[Message], ...] = (CheckpointSaved, TrainingResumed)
NOTICES: tuple[type[Message], ...] = (TaskLeaving,)
LANES = {
    **dict.fromkeys(ORDERS, "orders"),
    **dict.fromkeys(FACTS, "facts"),
    **dict.fromkeys(NOTICES, "notices"),
}
"""Of facts, by type. A notice does not wait for the handling of a fact."""


class FactReceived(msgspec.Struct, frozen=True):
    """The bus has delivered a fact about this job, or about another one of its name."""

    fact: Message


class OrdersLost(msgspec.Struct, frozen=True):
    """The stream of orders was set back."""


class DecisionFound(msgspec.Struct, frozen=True):
    """The last decision about the job after `OrdersLost`; None: the bus has none."""

    decision: AllocationDecided | None


class ChildEventReceived(msgspec.Struct, frozen=True):
    """`child`: number of the child in this pod."""

    spec: ClusterSpecPublished
    word: ChildEvent
    child: int = 0


class ChildExited(msgspec.Struct, frozen=True):
    """A child exited by itself, after its last event. `failure`: why it could not even start."""

    spec: ClusterSpecPublished
    child: int = 0
    failure: Failed | None = None


class ChildNotStarted(msgspec.Struct, frozen=True):
    """No child was started for this generation, and none will be."""

    spec: ClusterSpecPublished
    why: str


class ChildAssigned(msgspec.Struct, frozen=True):
    """Everything is ready to start a child, unless it was given up in the meantime."""

    spec: ClusterSpecPublished
    assignment: Assignment
    fresh: bool


class TimerDue(msgspec.Struct, frozen=True):
    """`generation`: of the child or pod that waited; -1 for the deadlines of the pod."""

    timer: Timer
    generation: int = -1


class SignalReceived(msgspec.Struct, frozen=True):
    """The pod was told to end. `at_s`: when its grace period started."""

    at_s: float


class ShutdownFacts(msgspec.Struct, frozen=True):
    """The facts that a pod looks up when it is told to end. `resumed` None: no answer, or no
    fact.
    """

    at_s: float
    finished: bool
    resumed: TrainingResumed | None


ChildFact = ChildEventReceived | ChildExited | ChildNotStarted | ChildAssigned
Event = (
    FactReceived
    | OrdersLost
    | DecisionFound
    | ChildFact
    | TimerDue
    | SignalReceived
    | ShutdownFacts
)
PutEvent = Callable[[Event], None]


class ActionsPerformed(msgspec.Struct, frozen=True):
    """A lane is free. `next_event`: the event that follows from its actions; it comes before those
    that wait.
    """

    lane: str
    next_event: Event | None


def lane_of(event: Event) -> str:
    """Return the lane of an event. The events of one lane are handled one after the other."""
    match event:
        case FactReceived(fact):
            return LANES[type(fact)]
        case TimerDue("prepare again", generation):
            return f"child of {generation}"
        case TimerDue():
            return "timers"
        case SignalReceived() | ShutdownFacts():
            return "signals"
        case OrdersLost() | DecisionFound():
            return "losses"
        case _:
            return f"child of {event.spec.generation}"


def cause_of(event: Event) -> Message | None:
    """Return the message that an event is about, for the log."""
    if isinstance(event, FactReceived):
        return event.fact
    return event.spec if isinstance(event, ChildFact) else None
