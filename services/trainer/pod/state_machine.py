"""The state of a pod, its events, and the actions for each event. Events in, actions out.

The bus, child processes, timers and signals put the events into one queue. The loop of `service.py`
takes them. `lane_of` gives the order: an event waits until the actions for the previous one of its
lane are performed, and the lanes run side by side. So a program that is fetched slowly delays the
next order, but no checkpoint, and no deadline of this pod.

`supervise.py` decides about generations and deadlines. This module adds the rest of a pod's memory:
the failures of children, the durations of saves and changes, and the loss of orders.

A child reports why it ends, if it can. `ExitClassifier` remembers these reports for
`supervise.on_child_end`. A child that reaches servers of a generation that is just ending is
prepared again, because an address may still have belonged to another generation. After `TRIES`
children the generation must continue without this pod.

`GracefulShutdown` gives `supervise.py` the times of the last seconds of a pod, in which it
announces the end, keeps working, and exits in time: how long saves and changes took, and how long
the pod may stay. The pod looks up whether the job is over or another generation trains: the
launcher ends pods as soon as it knows that, and this pod may receive the fact later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from services.trainer.pod import supervise
from services.trainer.pod.supervise import (
    Action,
    Actions,
    ChildExit,
    GoAway,
    Pod,
    SayLastIsFinal,
    ShutdownTimes,
    StartChild,
    StayForNext,
)
from services.trainer.protocol import (
    Assignment,
    CatchUp,
    ChildEvent,
    Failed,
    NothingToSave,
    Prepared,
    Resumed,
    Unsaved,
)
from services.trainer.settings import Settings
from shared.kube import objects
from shared.messages import (
    SIGTERM,
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
"""The lane of each type of fact. A notice does not wait until earlier facts are handled."""


class FactReceived(msgspec.Struct, frozen=True):
    """The bus has delivered a fact about this job, or about another one of its name."""

    fact: Message


class OrdersLost(msgspec.Struct, frozen=True):
    """The stream of orders was set back: the bus has lost the last orders."""


class DecisionFound(msgspec.Struct, frozen=True):
    """The last decision about the job after `OrdersLost`; None: the bus has none."""

    decision: AllocationDecided | None


class ChildEventReceived(msgspec.Struct, frozen=True):
    """`child`: number of the child in this pod."""

    spec: ClusterSpecPublished
    event: ChildEvent
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


# ---------------------------------------------------------------- the actions


EXIT_EVICTED = 143  # the pod was told to end
EXIT_RETRY = 138  # it lost another task
EXIT_KILLED = 137  # its child was killed
EXIT_BUS_LOST = 140  # the bus failed, not the job (`services/allocator/state/job.py`)
TRIES = 3
KILLED = Failed(
    cause=(
        "the process that runs the program was killed without a report; perhaps it ran out of"
        " memory"
    ),
    peer=True,
)


class SpawnChild(msgspec.Struct, frozen=True):
    """Start the process of a child."""

    spec: ClusterSpecPublished
    assignment: Assignment
    fresh: bool


class RemoveChild(msgspec.Struct, frozen=True):
    """Log the exit of a child, and forget its process."""

    generation: int
    phase: str | None
    cause: str


class PrepareAgain(msgspec.Struct, frozen=True):
    """Start another child for a generation, after a moment."""

    generation: int


class PublishChildEvent(msgspec.Struct, frozen=True):
    """`before`: the final checkpoint of the previous generation, for `TrainingResumed`."""

    spec: ClusterSpecPublished
    event: ChildEvent
    before: CheckpointSaved | None = None


class PublishNotPrepared(msgspec.Struct, frozen=True):
    generation: int
    why: str


class PublishJobFailed(msgspec.Struct, frozen=True):
    generation: int
    cause: str


class PublishLeaving(msgspec.Struct, frozen=True):
    """Log and publish the end of this pod."""

    fact: TaskLeaving
    grace_s: float


class LookUpDecision(msgspec.Struct, frozen=True):
    """Read the last decision about the job."""


class LookUpShutdownFacts(msgspec.Struct, frozen=True):
    at_s: float


class CheckDeadlines(msgspec.Struct, frozen=True):
    """Look for due actions now, because the state has changed."""


class WaitForDeadline(msgspec.Struct, frozen=True):
    """Look for due actions at `at_s`; infinite: never. It replaces the earlier timer."""

    at_s: float


class ReportGenerationLost(msgspec.Struct, frozen=True):
    generation: int


class ExitPod(msgspec.Struct, frozen=True):
    code: int


Publication = (
    PublishChildEvent | PublishNotPrepared | PublishJobFailed | PublishLeaving | SayLastIsFinal
)
LookUp = LookUpDecision | LookUpShutdownFacts
TimerAction = CheckDeadlines | WaitForDeadline | PrepareAgain | StayForNext
PodAction = (
    Action
    | SpawnChild
    | RemoveChild
    | Publication
    | LookUp
    | TimerAction
    | ReportGenerationLost
    | ExitPod
)
PodActions = tuple[PodAction, ...]


class StateMachine:
    """The state of one pod. `handle` is the only method that changes it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pod = Pod(name=settings.pod)
        self.exit_classifier = ExitClassifier()
        self.graceful_shutdown = GracefulShutdown(settings)
        self.final_checkpoints: dict[int, CheckpointSaved] = {}  # by generation
        self.orders_lost = False
        self.may_exit = False

    def handle(self, event: Event, now: float) -> PodActions:
        """Fold an event into the state and return the actions for it. `now`: seconds since 1970."""
        match event:
            case FactReceived(fact):
                return self._on_fact(fact, now)
            case TimerDue():
                return self._on_timer(event, now)
            case OrdersLost():
                self.orders_lost = True
                return (LookUpDecision(),)
            case DecisionFound(decision):
                return self._on_decision_found(decision)
            case SignalReceived(at_s):
                return (LookUpShutdownFacts(at_s),)
            case ShutdownFacts():
                return self._on_shutdown_facts(event, now)
            case _:
                return self._on_child_fact(event)

    def _apply(self, decided: tuple[Pod, Actions]) -> PodActions:
        """Take the new state of the pod. Deadlines may have changed with it."""
        self.pod, actions = decided
        return (*actions, CheckDeadlines())

    # ------------------------------------------------------------ facts from the bus

    def _on_fact(self, fact: Message, now: float) -> PodActions:
        """Handle one fact about this job; facts about another job of the same name are ignored."""
        if getattr(fact, "uid", None) != self.settings.uid:
            return ()
        match fact:
            case ClusterSpecPublished(previous=previous):
                if self.orders_lost and previous is not None and previous < self.pod.trains:
                    return (ExitPod(EXIT_BUS_LOST),)
                return self._apply(supervise.on_spec(self.pod, fact))
            case HandOverOrdered():
                return self._apply(supervise.on_hand_over(self.pod, fact))
            case GenerationAbandoned():
                return self._apply(supervise.on_abandoned(self.pod, fact))
            case CheckpointSaved():
                return self._on_saved(fact)
            case TrainingResumed():
                return self._on_resumed(fact)
            case TaskLeaving():
                return self._on_leaving(fact, now)
            case _:
                raise TypeError(f"{type(fact).__name__} is not for a pod")

    def _on_saved(self, fact: CheckpointSaved) -> PodActions:
        self.graceful_shutdown.on_saved(fact)
        if not fact.final:
            self.pod, actions = supervise.on_saved(self.pod, fact)
            return actions
        self.final_checkpoints[fact.generation] = fact
        return self._apply(supervise.on_final(self.pod, fact))

    def _on_resumed(self, fact: TrainingResumed) -> PodActions:
        self.graceful_shutdown.on_resumed(fact)
        return self._apply(supervise.on_resumed(self.pod, fact))

    def _on_leaving(self, fact: TaskLeaving, now: float) -> PodActions:
        times = self.graceful_shutdown.times
        return self._apply(supervise.on_leaving(self.pod, fact, now, times))

    def _on_decision_found(self, decision: AllocationDecided | None) -> PodActions:
        """End the pod if the bus lost the orders that created its generation: no service knows that
        generation any more.
        """
        newest = self.pod.newest
        if (
            decision is not None
            and decision.uid == self.settings.uid
            and decision.generation >= newest
        ):
            return ()
        return ReportGenerationLost(newest), ExitPod(EXIT_BUS_LOST)

    # ------------------------------------------------------------ events of children

    def _expects_child(self, generation: int) -> bool:
        """Return whether a child that is about to be started is still wanted."""
        return self.pod.children.get(generation) == "preparing"

    def _on_child_fact(self, fact: ChildFact) -> PodActions:
        match fact:
            case ChildEventReceived(spec, event):
                return self._on_child_event(spec, event)
            case ChildExited():
                return self._on_child_exit(fact)
            case ChildNotStarted(spec, why):
                return self._on_child_not_started(spec.generation, why)
            case ChildAssigned(spec, assignment, fresh):
                wanted = self._expects_child(spec.generation)
                return (SpawnChild(spec, assignment, fresh),) if wanted else ()

    def _on_child_event(self, spec: ClusterSpecPublished, event: ChildEvent) -> PodActions:
        publish = PublishChildEvent(spec, event)
        match event:
            case Failed():
                self.exit_classifier.record_failure(spec.generation, event)
                return ()
            case CatchUp():
                return supervise.on_catch_up(self.pod, spec.generation)
            case NothingToSave():
                return supervise.end_read_ahead(self.pod)
            case Prepared():
                prepared = supervise.on_prepared(self.pod, spec.generation)
                return publish, *self._apply(prepared)
            case Unsaved(is_base=True):
                return (publish,)
            case Unsaved():
                self.pod = supervise.on_unsaved(self.pod, spec.generation, event.final)
                return publish, *supervise.end_read_ahead(self.pod)
            case Resumed():
                previous = -1 if spec.previous is None else spec.previous
                before = self.final_checkpoints.get(previous)
                publish = PublishChildEvent(spec, event, before)
        return (publish,)

    def _on_child_exit(self, event: ChildExited) -> PodActions:
        generation = event.spec.generation
        if event.failure is not None:
            self.exit_classifier.record_failure(generation, event.failure)
        phase = self.pod.children.get(generation)
        ending, failure = self.exit_classifier.classify(self.pod, generation)
        removal = RemoveChild(generation, phase, failure.cause)
        match ending:
            case "fails the job":
                return removal, PublishJobFailed(generation, failure.cause), ExitPod(1)
            case "prepares again":
                return removal, PrepareAgain(generation)
            case "is missed by its generation":
                return removal, *self._on_child_not_started(generation, failure.cause)
            case "breaks":
                return removal, *self._on_chief_broken(generation, drains=phase == "draining")
            case "ends the pod":
                return removal, ExitPod(EXIT_KILLED if failure is KILLED else EXIT_RETRY)
            case "ignored":
                return (removal,)

    def _on_child_not_started(self, generation: int, why: str) -> PodActions:
        """Report that a generation cannot be prepared here. The pod stays for the running one."""
        self.pod = supervise.on_child_gone(self.pod, generation, broken=False)
        return (PublishNotPrepared(generation, why),)

    def _on_chief_broken(self, generation: int, drains: bool) -> PodActions:
        """Keep the pod of a chief that lost another task, so that the next generation has it."""
        self.pod = supervise.on_child_gone(self.pod, generation, broken=True)
        actions = (StayForNext(generation), *supervise.end_read_ahead(self.pod))
        return (SayLastIsFinal(generation, self.pod.newest), *actions) if drains else actions

    # ------------------------------------------------------------ timers and signals

    def _on_timer(self, event: TimerDue, now: float) -> PodActions:
        generation = event.generation
        match event.timer:
            case "deadline":
                return self._on_deadline(now)
            case "prepare again":
                if not self._expects_child(generation):
                    return ()
                self.exit_classifier.forget_failure(generation)
                spec = self.pod.specs[generation]
                return (StartChild(spec, fresh=spec.request.handover == "restart"),)
            case "stay":
                no_next = self.pod.newest in (generation, self.pod.abandoned)
                return (ExitPod(EXIT_RETRY),) if no_next else ()

    def _on_deadline(self, now: float) -> PodActions:
        if self.may_exit:
            return ()
        times = self.graceful_shutdown.times
        self.pod, actions = supervise.due_actions(self.pod, now, times)
        self.may_exit = GoAway() in actions
        return *actions, WaitForDeadline(supervise.next_due_s(self.pod, times))

    def _on_shutdown_facts(self, event: ShutdownFacts, now: float) -> PodActions:
        """End the pod at once if the job no longer needs it. Otherwise announce its end and keep
        working.

        The actions that follow from the announcement come before its publication.
        """
        actions: PodActions = ()
        if event.resumed is not None and not event.finished:
            actions = self._on_resumed(event.resumed)
        if event.finished or not supervise.is_needed(self.pod):
            self.may_exit = True
            return *actions, GoAway()
        grace_s = self.graceful_shutdown.grace_s
        fact = self.graceful_shutdown.leaving_notice(self.pod.trains, event.at_s + grace_s)
        return *actions, *self._on_leaving(fact, now), PublishLeaving(fact, grace_s)


class ExitClassifier:
    """Remember why children ended. `causes`: their last failure, by generation. `tries`: the number
    of children that a generation has had.
    """

    def __init__(self) -> None:
        self.causes: dict[int, Failed] = {}
        self.tries: dict[int, int] = {}

    def record_failure(self, generation: int, said: Failed) -> None:
        self.causes[generation] = said

    def forget_failure(self, generation: int) -> None:
        """Forget the failure of the last child, because another one is started."""
        self.causes.pop(generation, None)

    def classify(self, pod: Pod, generation: int) -> tuple[ChildExit, Failed]:
        """Return the meaning of a child's exit and its cause; `KILLED` if the child gave none."""
        failure = self.causes.get(generation, KILLED)
        ending = supervise.on_child_end(
            pod,
            generation,
            peer=failure.peer,
            explained=failure is not KILLED,
            too_small=failure.too_small,
        )
        if ending == "prepares again" and not self.count_try(generation):
            return "is missed by its generation", failure
        return ending, failure

    def count_try(self, generation: int) -> bool:
        """Count one more child, and return whether it may be started."""
        self.tries[generation] = self.tries.get(generation, 1) + 1
        return self.tries[generation] <= TRIES


LOOK_UP_S = 2.0  # longest wait for the bus while the pod ends
SAVE_MARGIN = 2.0  # a save may take that many times as long as the last one


class GracefulShutdown:
    """The measurements of saves and changes, and the times that follow from them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.save_s = 0.0  # duration of the last save, drain included
        self.measured_generation = -1  # the newest generation with a measured change
        self.changes_s: tuple[float, ...] = ()  # durations of the job's last changes

    @property
    def times(self) -> ShutdownTimes:
        last_save_s = max(self.settings.last_save_s, SAVE_MARGIN * self.save_s)
        return ShutdownTimes(leave_s=self.settings.leave_s, last_save_s=last_save_s)

    @property
    def grace_s(self) -> float:
        """Return the grace period of this pod in s.

        It is `grace_s` of the settings, or longer if the job's last changes took longer: up to
        `grace_most_s`.
        """
        settings = self.settings
        return objects.grace_period(settings.grace_s, self.changes_s, settings.grace_most_s)

    def on_saved(self, fact: CheckpointSaved) -> None:
        self.save_s = fact.drain_s + fact.seconds

    def on_resumed(self, fact: TrainingResumed) -> None:
        """Remember the duration of a change, once for each generation. A generation that continues
        was not changed.
        """
        if fact.generation > self.measured_generation:
            self.measured_generation = fact.generation
            self.changes_s = objects.add_measurement(self.changes_s, fact.change_s)

    def leaving_notice(self, generation: int, leaves_s: float) -> TaskLeaving:
        """Return the notice of this task's end."""
        settings = self.settings
        return TaskLeaving(
            job=settings.job,
            namespace=settings.namespace,
            uid=settings.uid,
            pod=settings.pod,
            pod_uid=settings.pod_uid,
            role=settings.role,
            serial=settings.serial,
            generation=max(generation, 0),
            node=settings.node,
            why=SIGTERM,
            leaves_s=leaves_s,
        )
