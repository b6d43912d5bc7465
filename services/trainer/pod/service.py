"""The process of one pod: facts come from the bus and from its children, and each gets an answer.

`supervise` decides the actions. `Executor` performs those that concern children, `Publisher`
publishes what others must know. Neither decides. All facts end in this file, so that a reader can
follow a cluster spec to training here.

    ClusterSpecPublished   `on_spec`           starts a child
    a child's Prepared     `on_child_event`    publishes GenerationPrepared
    HandOverOrdered        `on_hand_over`      begins the child, at once or after the final checkpoint (`on_saved`)
    a child's Resumed      `on_child_event`    publishes TrainingResumed and ends older children

A child reports why it ends, if it can. `ExitClassifier` remembers these reports for
`supervise.on_child_end`. A child that reaches servers of a generation that is just ending is
prepared again, because an address may still have belonged to another generation. After `TRIES`
children the generation must continue without this pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from nats.js.api import DeliverPolicy

from services.trainer import checkpoint_policy
from services.trainer.checkpoint_policy import SaveHistory
from services.trainer.pod import fence, supervise
from services.trainer.pod.children import ForkServer, Ports
from services.trainer.pod.executor import Executor
from services.trainer.pod.graceful_shutdown import GracefulShutdown
from services.trainer.pod.publisher import Publisher
from services.trainer.pod.supervise import Action, Actions, ChildExit, Pod
from services.trainer.pod.usage import UsageReporter, memory_headroom
from services.trainer.protocol import (
    ChildEvent,
    CommittedCheckpoints,
    Failed,
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
from shared.bus.consumer import StoredMessage
from shared.bus.publisher import Stale
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
from shared.runtime import log
from shared.runtime.app import ServiceExit

logger = structlog.get_logger()
Kinds = tuple[type[Message], ...]
ORDERS: Kinds = (ClusterSpecPublished, HandOverOrdered, GenerationAbandoned)
FACTS: Kinds = (CheckpointSaved, TrainingResumed)
NOTICES: Kinds = (TaskLeaving,)
LANES = (ORDERS,), (FACTS, NOTICES)
"""By stream. A notice does not wait for the handling of a fact."""
EXIT_EVICTED = 143  # the pod was told to end
EXIT_RETRY = 138  # it lost another task
EXIT_KILLED = 137  # its child was killed
EXIT_BUS_LOST = 140  # the bus failed, not the job (`services/allocator/state/exits.py`)
ROUNDING_S = 0.001
AGAIN_S = 0.5  # for a child of an ending generation to exit
TRIES = 3
KILLED = Failed(
    cause="the process that runs the program was killed without a report; perhaps it ran out of memory",
    peer=True,
)


class Trainer:
    """One pod. It implements the `ChildEvents` of its `Executor`."""

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
        self.pod = Pod(name=settings.pod)
        self.executor = Executor(bus, settings, gate, folder, fork_server, self)
        self.publisher, self.ports = Publisher(bus, settings), Ports(settings.ports)
        self.usage_reporter = UsageReporter(bus, settings, self.executor.oldest_pid)
        self.exit_classifier, self.graceful_shutdown = ExitClassifier(), GracefulShutdown(self)
        self.warned = False  # of the cost of saves
        self.drains: dict[int, CheckpointSaved] = {}  # final checkpoints, by generation
        self.set_back = asyncio.Event()  # the stream of orders lost messages

    # ------------------------------------------------------------ facts from the bus

    async def on_fact(self, heard: StoredMessage) -> None:
        """Handle one fact about this job; facts about another job of the same name are ignored."""
        fact: Any = heard.message
        if fact.uid == self.settings.uid:
            with log.bind_message(fact):
                await self.handlers()[type(fact)](fact)

    def handlers(self) -> dict[type, Callable[[Any], Awaitable[None]]]:
        return {
            ClusterSpecPublished: self.on_spec,
            HandOverOrdered: self.on_hand_over,
            GenerationAbandoned: self.on_abandoned,
            CheckpointSaved: self.on_saved,
            TrainingResumed: self.on_resumed,
            TaskLeaving: self.graceful_shutdown.on_leaving,
        }

    async def leave_if_forgotten(self, key: str) -> None:
        """End the pod if the bus lost the orders that created its generation: no service knows that
        generation any more.
        """
        await self.set_back.wait()
        decided = await self.bus.last_message(AllocationDecided, key)
        known: Any = decided.message if decided else None
        if known is None or known.uid != self.settings.uid or known.generation < self.pod.newest:
            logger.error(
                "GenerationLost",
                generation=self.pod.newest,
                remedy="the job continues with new pods",
            )
            raise ServiceExit(EXIT_BUS_LOST)

    async def on_spec(self, spec: ClusterSpecPublished) -> None:
        if self.set_back.is_set() and spec.previous is not None and spec.previous < self.pod.trains:
            raise ServiceExit(EXIT_BUS_LOST)
        await self.perform_actions(supervise.on_spec(self.pod, spec))

    async def on_hand_over(self, order: HandOverOrdered) -> None:
        await self.perform_actions(supervise.on_hand_over(self.pod, order))

    async def on_abandoned(self, fact: GenerationAbandoned) -> None:
        await self.perform_actions(supervise.on_abandoned(self.pod, fact))

    async def on_saved(self, fact: CheckpointSaved) -> None:
        self.graceful_shutdown.on_saved(fact)
        if fact.final:
            self.drains[fact.generation] = fact
            await self.perform_actions(supervise.on_final(self.pod, fact))
        else:
            self.pod = supervise.on_saved(self.pod, fact)

    async def on_resumed(self, fact: TrainingResumed) -> None:
        self.graceful_shutdown.on_resumed(fact)
        await self.perform_actions(supervise.on_resumed(self.pod, fact))

    # ------------------------------------------------------------ what is done about them

    async def perform_actions(self, decided: tuple[Pod, Actions]) -> None:
        self.pod, actions = decided
        for action in actions:
            logger.info(type(action).__name__, of=getattr(action, "generation", None))
            await self.perform_action(action)
        self.graceful_shutdown.changed.set()

    async def perform_action(self, action: Action) -> None:
        match action:
            case supervise.SayLastIsFinal(generation, successor):
                await self.publisher.last_is_final(
                    generation, successor, await self.fence.refresh()
                )
            case supervise.StayForNext(generation):
                self.bus.spawn(self.stay_for_next(generation))
            case supervise.GoAway():
                self.graceful_shutdown.released.set()
            case supervise.LeavePod():
                raise ServiceExit(EXIT_RETRY)
            case _:
                await self.executor.perform(action)

    async def stay_for_next(self, generation: int) -> None:
        """Wait for a newer generation; end the pod if none comes."""
        await asyncio.sleep(self.settings.peer_grace_s)
        if self.pod.newest in (generation, self.pod.abandoned):
            raise ServiceExit(EXIT_RETRY)

    async def run_shutdown_timers(self) -> None:
        with exit_if_fenced():
            await self.graceful_shutdown.run_timers()

    async def shut_down(self) -> None:
        with exit_if_fenced():
            await self.graceful_shutdown.wait_for_release()

    # ------------------------------------------------------------ facts from children

    def expects_child(self, generation: int) -> bool:
        return self.pod.children.get(generation) == "preparing"

    async def on_child_event(self, spec: ClusterSpecPublished, word: ChildEvent) -> None:
        with exit_if_fenced():
            match word:
                case Prepared(seconds=seconds):
                    await self.publisher.generation_prepared(spec.generation, seconds)
                    await self.perform_actions(supervise.on_prepared(self.pod, spec.generation))
                case Saved():
                    await self.on_checkpoint(spec, word)
                case Unsaved():
                    self.pod = supervise.on_unsaved(self.pod, spec.generation, word.final)
                    await self.publisher.checkpoint_failed(spec.generation, word)
                case Skipped():
                    await self.publisher.checkpoint_skipped(spec.generation, word)
                case Resumed():
                    before = self.drains.get(-1 if spec.previous is None else spec.previous)
                    said = await self.publisher.training_resumed(spec, word, before)
                    # At once: the previous generation cannot continue from here on.
                    await self.on_resumed(said)
                case Progress():
                    await self.publisher.progress_reported(
                        spec.generation, word, self.usage_reporter.usage_of(spec)
                    )
                    self.send_headroom(spec)
                case Finished():
                    await self.publisher.job_finished(spec.generation, word)
                    raise ServiceExit(0)
                case Failed():
                    self.exit_classifier.record_failure(spec.generation, word)

    async def on_checkpoint(self, spec: ClusterSpecPublished, word: Saved) -> None:
        """Commit a checkpoint to the ledger, publish it, then let the chief remove older ones."""
        past = history_after_save(self.fence.entry.past, word)
        keep, final = spec.request.checkpoint.keep, word.final
        entry = await self.fence.commit(
            word.path, word.step, word.samples, keep, word.digest, past, final
        )
        await self.publisher.checkpoint_saved(spec.generation, word, self.fence.waited_s)
        self.warn_of_save_cost(spec, word, past)
        if not word.final:
            self.executor.send(
                spec.generation,
                CommittedCheckpoints(
                    paths=entry.paths, digests=entry.digests, samples=entry.samples
                ),
            )

    def warn_of_save_cost(self, spec: ClusterSpecPublished, word: Saved, past: SaveHistory) -> None:
        """Log once that a loss may repeat more training than `redo_s`, because saving is too
        expensive to save more often.
        """
        repeated_s = checkpoint_policy.max_repeated_s(past, word.next_s)
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
            interval_s=word.next_s,
            repeated_s=repeated_s,
            wanted_s=self.settings.redo_s,
            remedy="faster storage for checkpoints, fewer variables on each ps, or a larger WEIR_LAUNCHER_REDO_S",
        )

    def send_headroom(self, spec: ClusterSpecPublished) -> None:
        """Tell a chief how much memory its ps have left for a copy of their variables."""
        headroom = memory_headroom(spec, self.usage_reporter.usage)
        if headroom is not None:
            self.executor.send(spec.generation, headroom)

    async def on_child_exit(self, spec: ClusterSpecPublished) -> None:
        generation, phase = spec.generation, self.pod.children.get(spec.generation)
        ending, failure = self.exit_classifier.classify(self.pod, generation)
        logger.warning("ChildEnded", generation=generation, phase=phase, cause=failure.cause)
        match ending:
            case "fails the job":
                await self.publisher.job_failed(generation, failure.cause)
                raise ServiceExit(1)
            case "prepares again":
                await self.prepare_again(spec)
            case "is missed by its generation":
                await self.on_child_not_started(spec, failure.cause)
            case "breaks":
                await self.on_chief_broken(generation, drains=phase == "draining")
            case "ends the pod":
                raise ServiceExit(EXIT_KILLED if failure is KILLED else EXIT_RETRY)

    async def prepare_again(self, spec: ClusterSpecPublished) -> None:
        await asyncio.sleep(AGAIN_S)
        if self.expects_child(spec.generation):
            self.exit_classifier.forget_failure(spec.generation)
            await self.executor.start_child(spec, fresh=spec.request.handover == "restart")

    async def on_child_not_started(self, spec: ClusterSpecPublished, why: str) -> None:
        """Report that a generation cannot be prepared here. The pod stays for the running one."""
        self.pod = supervise.on_child_gone(self.pod, spec.generation, broken=False)
        await self.publisher.generation_not_prepared(spec.generation, why)

    async def on_chief_broken(self, generation: int, drains: bool) -> None:
        """Keep the pod of a chief that lost another task for the next generation."""
        self.pod = supervise.on_child_gone(self.pod, generation, broken=True)
        if drains:
            await self.publisher.last_is_final(
                generation, self.pod.newest, await self.fence.refresh()
            )
        await self.stay_for_next(generation)


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
    following = [_follow_stream(bus, key, lanes, trainer) for lanes in LANES]
    await asyncio.gather(
        *following,
        trainer.usage_reporter.report_usage(),
        trainer.run_shutdown_timers(),
        trainer.leave_if_forgotten(key),
    )


async def _follow_stream(bus: Bus, key: str, lanes: Sequence[Kinds], trainer: Trainer) -> None:
    """Read the messages of one stream with one consumer. Each lane handles its messages in order,
    and the lanes run side by side.
    """
    queues: dict[type[Message], asyncio.Queue[StoredMessage]] = {}
    for kinds in lanes:
        queues |= dict.fromkeys(kinds, asyncio.Queue())
    filters = [subjects.pattern(kind, key) for kind in queues]
    hearing = [_handle_each(queue, trainer) for queue in set(queues.values())]
    on_set_back = trainer.set_back.set if ORDERS in lanes else _ignore_set_back
    heard = bus.tail(filters, deliver=DeliverPolicy.LAST_PER_SUBJECT, on_set_back=on_set_back)
    await asyncio.gather(_sort_by_type(heard, queues), *hearing)


def _ignore_set_back() -> None:
    """Ignore lost facts: this pod does not depend on them."""


async def _sort_by_type(
    heard: AsyncIterator[StoredMessage],
    queues: Mapping[type[Message], asyncio.Queue[StoredMessage]],
) -> None:
    async for each in heard:
        queues[type(each.message)].put_nowait(each)


async def _handle_each(queue: asyncio.Queue[StoredMessage], trainer: Trainer) -> None:
    while True:
        heard = await queue.get()
        with exit_if_fenced():
            await trainer.on_fact(heard)


@contextlib.contextmanager
def exit_if_fenced() -> Iterator[None]:
    """Exit without fault if a later generation has taken over from this pod."""
    try:
        yield
    except Stale as error:
        logger.error("Fenced", error=str(error))
        raise ServiceExit(EXIT_EVICTED) from error


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
            pod, generation, peer=failure.peer, explained=failure is not KILLED
        )
        if ending == "prepares again" and not self.may_try_again(generation):
            return "is missed by its generation", failure
        return ending, failure

    def may_try_again(self, generation: int) -> bool:
        """Count one more child, and return whether it may be started."""
        self.tries[generation] = self.tries.get(generation, 1) + 1
        return self.tries[generation] <= TRIES
