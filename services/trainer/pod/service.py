"""The process of one pod: the bus, children, timers and signals put events into one queue.

The loop takes an event, `StateMachine` folds it into the state and returns actions, and the actions
are performed: `Executor` performs those that concern children, `Publisher` publishes the messages
of the pod. Neither decides. All actions start in this file, so that a reader can follow a cluster
spec to training here.

    event                     action, in this order
    ClusterSpecPublished      StartChild, then SpawnChild
    a child's Prepared        PublishChildEvent: GenerationPrepared
    HandOverOrdered           BeginChild, at once or after the final CheckpointSaved
    a child's Resumed         PublishChildEvent: TrainingResumed, then EndChild for older children
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from nats.errors import Error as NatsError
from nats.js.api import DeliverPolicy

from services.trainer import checkpoint_policy
from services.trainer.checkpoint_policy import SaveHistory
from services.trainer.pod import fence, state_machine, supervise
from services.trainer.pod.children import ForkServer, Ports
from services.trainer.pod.executor import Executor
from services.trainer.pod.publisher import Publisher
from services.trainer.pod.state_machine import EXIT_BUS_LOST as EXIT_BUS_LOST
from services.trainer.pod.state_machine import EXIT_EVICTED as EXIT_EVICTED
from services.trainer.pod.state_machine import (
    EXIT_RETRY,
    FACTS,
    LOOK_UP_S,
    NOTICES,
    ORDERS,
    ActionsPerformed,
    DecisionFound,
    Event,
    FactReceived,
    LookUp,
    OrdersLost,
    PodAction,
    PodActions,
    Publication,
    ShutdownFacts,
    SignalReceived,
    StateMachine,
    TimerAction,
    TimerDue,
    cause_of,
    lane_of,
)
from services.trainer.pod.usage import UsageReporter, memory_headroom
from services.trainer.protocol import (
    CommittedCheckpoints,
    Finished,
    Prepared,
    Progress,
    Resumed,
    Saved,
    Skipped,
    Unsaved,
    history_after_save,
)
from services.trainer.settings import Settings as Settings
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.publisher import Stale
from shared.messages import (
    AllocationDecided,
    ClusterSpecPublished,
    JobFinished,
    Message,
    TaskLeaving,
    TrainingResumed,
)
from shared.runtime import log
from shared.runtime.app import ServiceExit

logger = structlog.get_logger()
ROUNDING_S = 0.001
SHORTEST_WAIT_S = 0.01
AGAIN_S = 0.5  # for a child of an ending generation to exit


class Trainer:
    """One pod: the queue of its events, and the loop that handles them."""

    def __init__(
        self,
        bus: Bus,
        settings: Settings,
        gate: fence.Fence,
        folder: Path,
        fork_server: ForkServer | None,
    ) -> None:
        self.bus = bus
        self.settings = settings
        self.fence = gate
        self.machine = StateMachine(settings)
        self.events: asyncio.Queue[Event | ActionsPerformed] = asyncio.Queue()
        self.executor = Executor(bus, settings, gate, folder, fork_server, self.events.put_nowait)
        self.publisher, self.ports = Publisher(bus, settings), Ports(settings.ports)
        self.usage_reporter = UsageReporter(bus, settings, self.executor.child_pids)
        self.warned = False  # of the cost of saves
        self.released = asyncio.Event()  # a pod that was told to end may exit
        self.deadline_timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------ events

    async def run(self) -> None:
        """Handle every event. An event waits for the actions of the previous event of its lane."""
        waiting: dict[str, deque[Event]] = {}
        while True:
            event = await self.events.get()
            if isinstance(event, ActionsPerformed):
                lane, next_event = event.lane, event.next_event
                if next_event is None and waiting[lane]:
                    next_event = waiting[lane].popleft()
                if next_event is None:
                    del waiting[lane]
                else:
                    self.begin(lane, next_event)
                continue
            lane = lane_of(event)
            if lane in waiting:
                waiting[lane].append(event)
            else:
                waiting[lane] = deque()
                self.begin(lane, event)

    def begin(self, lane: str, event: Event) -> None:
        """Fold an event into the state and start the actions for it."""
        cause = cause_of(event)
        with log.bind_message(cause) if cause else contextlib.nullcontext():
            self.bus.spawn(self.perform_in_lane(lane, self.actions_for(event)))

    def actions_for(self, event: Event) -> PodActions:
        """Return the actions for an event; none if its child was ended in the meantime."""
        if getattr(event, "child", None) in self.executor.ended:
            return ()
        return self.machine.handle(event, time.time())

    async def perform_in_lane(self, lane: str, actions: PodActions) -> None:
        next_event = await self.perform_actions(actions)
        self.events.put_nowait(ActionsPerformed(lane, next_event))

    async def shut_down(self) -> None:
        """Return when a pod that was told to end may exit. Its grace period starts now, also if the
        bus is slow.
        """
        self.events.put_nowait(SignalReceived(time.time()))
        await self.released.wait()

    # ------------------------------------------------------------ actions

    async def perform_actions(self, actions: PodActions) -> Event | None:
        """Perform actions in order. Return the event that follows from one of them."""
        next_event = None
        with exit_if_fenced():
            for action in actions:
                if isinstance(action, supervise.Action):
                    generation = getattr(action, "generation", None)
                    logger.info(type(action).__name__, of=generation)
                next_event = await self.perform_action(action) or next_event
        return next_event

    async def perform_action(self, action: PodAction) -> Event | None:
        if isinstance(action, Publication):
            return await self.publish(action)
        if isinstance(action, LookUp):
            return await self.look_up(action)
        if isinstance(action, TimerAction):
            self.set_timer(action)
            return None
        match action:
            case state_machine.RemoveChild(generation, phase, cause):
                logger.warning("ChildEnded", generation=generation, phase=phase, cause=cause)
                self.executor.forget_child(generation)
            case state_machine.ReportGenerationLost(generation):
                remedy = "the job continues with new pods"
                logger.error("GenerationLost", generation=generation, remedy=remedy)
            case supervise.GoAway():
                self.released.set()
            case supervise.LeavePod():
                raise ServiceExit(EXIT_RETRY)
            case state_machine.ExitPod(code):
                raise ServiceExit(code)
            case _:
                return await self.executor.perform(action)
        return None

    # ------------------------------------------------------------ timers

    def set_timer(self, action: TimerAction) -> None:
        match action:
            case state_machine.CheckDeadlines():
                self.events.put_nowait(TimerDue("deadline"))
            case state_machine.WaitForDeadline(at_s):
                self.wait_for_deadline(at_s)
            case state_machine.PrepareAgain(generation):
                self.start_timer(AGAIN_S, TimerDue("prepare again", generation))
            case supervise.StayForNext(generation):
                self.start_timer(self.settings.peer_grace_s, TimerDue("stay", generation))

    def wait_for_deadline(self, at_s: float) -> None:
        """Replace the timer of the next deadline. Infinite: there is none."""
        if self.deadline_timer is not None:
            self.deadline_timer.cancel()
            self.deadline_timer = None
        if not math.isinf(at_s):
            seconds = max(at_s - time.time(), SHORTEST_WAIT_S)
            self.deadline_timer = self.start_timer(seconds, TimerDue("deadline"))

    def start_timer(self, seconds: float, event: TimerDue) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        return loop.call_later(seconds, self.events.put_nowait, event)

    # ------------------------------------------------------------ publications

    async def publish(self, action: Publication) -> Event | None:
        match action:
            case state_machine.PublishChildEvent():
                return await self.publish_child_event(action)
            case state_machine.PublishNotPrepared(generation, why):
                await self.publisher.generation_not_prepared(generation, why)
            case state_machine.PublishJobFailed(generation, cause):
                await self.publisher.job_failed(generation, cause)
            case state_machine.PublishLeaving(fact, grace_s):
                logger.warning("ToldToEnd", grace_s=grace_s, asked_s=self.settings.grace_s)
                self.bus.spawn(self.publish_leaving(fact))
            case supervise.SayLastIsFinal(generation, successor):
                last = await self.fence.refresh()
                await self.publisher.last_is_final(generation, successor, last)
        return None

    async def publish_leaving(self, fact: TaskLeaving) -> None:
        await self.bus.publish(fact)

    async def publish_child_event(
        self, action: state_machine.PublishChildEvent
    ) -> FactReceived | None:
        """Publish the report of a child. A `TrainingResumed` counts here at once: the previous
        generation cannot continue from here on.
        """
        spec, generation = action.spec, action.spec.generation
        match action.event:
            case Prepared() as report:
                await self.publisher.generation_prepared(generation, report)
            case Saved() as report:
                await self.publish_checkpoint(spec, report)
            case Unsaved() as report:
                await self.publisher.checkpoint_failed(generation, report)
            case Skipped() as report:
                await self.publisher.checkpoint_skipped(generation, report)
            case Resumed() as report:
                fact = await self.publisher.training_resumed(spec, report, action.before)
                return FactReceived(fact)
            case Progress() as report:
                usage = self.usage_reporter.usage_of(spec)
                await self.publisher.progress_reported(generation, report, usage)
                self.send_headroom(spec)
            case Finished() as report:
                await self.publisher.job_finished(generation, report)
                raise ServiceExit(0)
        return None

    async def publish_checkpoint(self, spec: ClusterSpecPublished, report: Saved) -> None:
        """Commit a checkpoint to the ledger, publish it, then let the chief remove older ones."""
        past = history_after_save(self.fence.entry.past, report)
        keep, final = spec.request.checkpoint.keep, report.final
        entry = await self.fence.commit(
            report.path, report.step, report.samples, keep, report.digest, past, final
        )
        await self.publisher.checkpoint_saved(spec.generation, report, self.fence.waited_s)
        self.warn_of_save_cost(spec, report, past)
        if not report.final:
            self.executor.send(
                spec.generation,
                CommittedCheckpoints(
                    paths=entry.paths, digests=entry.digests, samples=entry.samples
                ),
            )

    def warn_of_save_cost(
        self, spec: ClusterSpecPublished, report: Saved, past: SaveHistory
    ) -> None:
        """Log once that a loss may repeat more training than `redo_s`, because saving is too
        expensive to save more often.
        """
        repeated_s = checkpoint_policy.max_repeated_s(past, report.next_s)
        if (
            self.warned
            or spec.request.checkpoint.every_s
            or repeated_s <= self.settings.redo_s + ROUNDING_S
        ):
            return
        self.warned = True
        logger.warning(
            "SavesCostMuch",
            save_cost_s=past.cost_s,
            interval_s=report.next_s,
            repeated_s=repeated_s,
            wanted_s=self.settings.redo_s,
            remedy=(
                "faster storage for checkpoints, fewer variables on each ps, or a larger"
                " WEIR_LAUNCHER_REDO_S"
            ),
        )

    def send_headroom(self, spec: ClusterSpecPublished) -> None:
        """Tell a chief how much memory its ps have left for a copy of their variables."""
        headroom = memory_headroom(spec, self.usage_reporter.usage)
        if headroom is not None:
            self.executor.send(spec.generation, headroom)

    # ------------------------------------------------------------ look-ups

    async def last_message(self, kind: type[Message]) -> Message | None:
        """Return the last message of a kind about a job of this name."""
        found = await self.bus.last_message(kind, f"{self.settings.namespace}.{self.settings.job}")
        return found.message if found else None

    async def look_up(self, action: LookUp) -> Event:
        if isinstance(action, state_machine.LookUpDecision):
            decision: Any = await self.last_message(AllocationDecided)
            return DecisionFound(decision)
        finished, resumed = await asyncio.gather(
            self.last_fact(JobFinished), self.last_fact(TrainingResumed)
        )
        return ShutdownFacts(action.at_s, finished is not None, resumed)

    async def last_fact(self, kind: type[Message]) -> Any:
        """Return the last fact of a kind about this job, if the bus answers in time.

        Without an answer the pod assumes that it is still needed.
        """
        with contextlib.suppress(TimeoutError, NatsError):
            async with asyncio.timeout(LOOK_UP_S):
                fact: Any = await self.last_message(kind)
                return fact if fact and fact.uid == self.settings.uid else None
        return None


async def start(bus: Bus, settings: Settings) -> None:
    """Publish `TaskReady`, then follow the facts about this job."""
    key = f"{settings.namespace}.{settings.job}"
    decided = await bus.last_message(AllocationDecided, key)
    warm = not (decided and decided.message.request.handover == "restart")  # type: ignore[attr-defined]
    folder = Path(tempfile.mkdtemp(prefix="weir-trainer-"))
    os.environ["TMPDIR"] = str(folder)  # files of TensorFlow in children are removed with the pod
    gate = await fence.open_fence(bus, key, settings.uid, settings.checkpoint_dir)
    trainer = Trainer(bus, settings, gate, folder, ForkServer(settings.role) if warm else None)
    bus.on_close(trainer.executor.close)
    await trainer.publisher.task_ready(trainer.ports.numbers)
    if settings.role == "chief":
        await trainer.usage_reporter.subscribe()
    bus.on_stop(trainer.shut_down)
    await asyncio.gather(
        trainer.run(),
        _follow_facts(bus, key, ORDERS, trainer),
        _follow_facts(bus, key, FACTS + NOTICES, trainer),
        trainer.usage_reporter.report_usage(),
    )


async def _follow_facts(
    bus: Bus, key: str, kinds: tuple[type[Message], ...], trainer: Trainer
) -> None:
    """Put the facts of one stream into the queue. Only the loss of orders matters to a pod."""
    put_event = trainer.events.put_nowait
    on_set_back = partial(put_event, OrdersLost()) if kinds == ORDERS else _ignore_set_back
    filters = [subjects.pattern(kind, key) for kind in kinds]
    async for heard in bus.tail(
        filters, deliver=DeliverPolicy.LAST_PER_SUBJECT, on_set_back=on_set_back
    ):
        put_event(FactReceived(heard.message))


def _ignore_set_back() -> None:
    """Ignore lost facts: this pod does not depend on them."""


@contextlib.contextmanager
def exit_if_fenced() -> Iterator[None]:
    """Exit with `EXIT_EVICTED`, not as a failure, if a later generation holds the fence."""
    try:
        yield
    except Stale as error:
        logger.error("Fenced", error=str(error))
        raise ServiceExit(EXIT_EVICTED) from error
