"""The shell of one pod: facts come in from the bus and from its children; all are answered in the
same way.

Each fact is put to `supervise`, which answers with actions; what concerns children is done by
`Hands`, and what is to be known elsewhere is said by `Voice`. Neither decides, and all facts end
here, though this makes a long file: so that a cluster spec can be followed to training in this one.

    ClusterSpecPublished   `on_spec`        a child is started
    a child's Prepared     `on_word`        GenerationPrepared is said
    HandOverOrdered        `on_hand_over`   the child begins, at once or when `on_saved` hears of the checkpoint before
    a child's Resumed      `on_word`        TrainingResumed is said, and answered as any fact: older children end

What it means that a child ended by itself: `supervise` judges, with what is remembered of each
generation here.

A child says why it ends, if it can. One that meets servers of a generation that is just going
prepares again, for an address may still have been another generation's; after `TRIES` children its
generation must do without this pod.
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
from services.trainer.checkpoint_policy import Past
from services.trainer.pod import fence, supervise
from services.trainer.pod.children import Nursery, Ports
from services.trainer.pod.executor import Hands
from services.trainer.pod.graceful_shutdown import Farewell
from services.trainer.pod.publisher import Voice
from services.trainer.pod.supervise import Action, Actions, Ending, Pod
from services.trainer.pod.usage import Meter, memory_headroom
from services.trainer.protocol import (
    Failed,
    Finished,
    Kept,
    Prepared,
    Progress,
    Resumed,
    Saved,
    Skipped,
    Unsaved,
    Word,
    past_after,
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
"""By stream. A notice does not wait until a fact is dealt with."""
EXIT_EVICTED, EXIT_RETRY, EXIT_KILLED = (
    143,
    138,
    137,
)  # taken away; lost another task; the child was killed
EXIT_BUS_LOST = 140  # the bus failed it: no fault of the job (`services/allocator/state/exits.py`)
ROUNDING_S = 0.001
AGAIN_S = 0.5  # until a child of a generation that is just going has gone


class Trainer:
    """One pod; it is the `Ears` of its `Hands`."""

    def __init__(
        self, bus: Bus, settings: Settings, gate: fence.Fence, folder: Path, nursery: Nursery | None
    ) -> None:
        self.bus = bus
        self.settings = settings
        self.gate = gate
        self.pod = Pod(name=settings.pod)
        self.hands = Hands(bus, settings, gate, folder, nursery, self)
        self.voice, self.ports = Voice(bus, settings), Ports(settings.ports)
        self.meter = Meter(bus, settings, self.hands.eldest)
        self.ends, self.farewell = Ends(), Farewell(self)
        self.warned = False  # that saves cost too much
        self.drains: dict[int, CheckpointSaved] = {}  # with which a generation made way
        self.set_back = asyncio.Event()  # the orders have lost something since we read them

    # ------------------------------------------------------------ facts from the bus

    async def hear(self, heard: StoredMessage) -> None:
        """One fact about this job; of another job of this name there is none."""
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
            TaskLeaving: self.farewell.on_leaving,
        }

    async def leave_if_forgotten(self, key: str) -> None:
        """End the pod when orders were lost by which it got its generation: nobody who decides
        knows of that one.
        """
        await self.set_back.wait()
        decided = await self.bus.last_message(AllocationDecided, key)
        known: Any = decided.message if decided else None
        if known is None or known.uid != self.settings.uid or known.generation < self.pod.newest:
            logger.error(
                "GenerationLost", generation=self.pod.newest, remedy="the job goes on with new pods"
            )
            raise ServiceExit(EXIT_BUS_LOST)

    async def on_spec(self, spec: ClusterSpecPublished) -> None:
        if self.set_back.is_set() and spec.previous is not None and spec.previous < self.pod.trains:
            raise ServiceExit(EXIT_BUS_LOST)
        await self.perform(supervise.on_spec(self.pod, spec))

    async def on_hand_over(self, order: HandOverOrdered) -> None:
        await self.perform(supervise.on_hand_over(self.pod, order))

    async def on_abandoned(self, fact: GenerationAbandoned) -> None:
        await self.perform(supervise.on_abandoned(self.pod, fact))

    async def on_saved(self, fact: CheckpointSaved) -> None:
        self.farewell.on_saved(fact)
        if fact.final:
            self.drains[fact.generation] = fact
            await self.perform(supervise.on_final(self.pod, fact))
        else:
            self.pod = supervise.on_saved_again(self.pod, fact)

    async def on_resumed(self, fact: TrainingResumed) -> None:
        self.farewell.on_resumed(fact)
        await self.perform(supervise.on_resumed(self.pod, fact))

    # ------------------------------------------------------------ what is done about them

    async def perform(self, decided: tuple[Pod, Actions]) -> None:
        self.pod, actions = decided
        for action in actions:
            logger.info(type(action).__name__, of=getattr(action, "generation", None))
            await self.act(action)
        self.farewell.stirred.set()

    async def act(self, action: Action) -> None:
        match action:
            case supervise.SayLastIsFinal(generation, successor):
                await self.voice.last_is_final(generation, successor, await self.gate.look())
            case supervise.StayForNext(generation):
                self.bus.spawn(self.stay_for_next(generation))
            case supervise.GoAway():
                self.farewell.may_go.set()
            case supervise.LeavePod():
                raise ServiceExit(EXIT_RETRY)
            case _:
                await self.hands.perform(action)

    async def stay_for_next(self, generation: int) -> None:
        """Where no newer generation comes, the pod ends."""
        await asyncio.sleep(self.settings.peer_grace_s)
        if self.pod.newest in (generation, self.pod.given_up):
            raise ServiceExit(EXIT_RETRY)

    async def attend(self) -> None:
        with fenced():
            await self.farewell.attend()

    async def leave(self) -> None:
        with fenced():
            await self.farewell.leave()

    # ------------------------------------------------------------ facts from children

    def expects(self, generation: int) -> bool:
        return self.pod.children.get(generation) == "preparing"

    async def on_word(self, spec: ClusterSpecPublished, word: Word) -> None:
        with fenced():
            match word:
                case Prepared(seconds=seconds):
                    await self.voice.prepared(spec.generation, seconds)
                    await self.perform(supervise.on_prepared(self.pod, spec.generation))
                case Saved():
                    await self.on_checkpoint(spec, word)
                case Unsaved():
                    self.pod = supervise.on_unsaved(self.pod, spec.generation, word.final)
                    await self.voice.unsaved(spec.generation, word)
                case Skipped():
                    await self.voice.skipped(spec.generation, word)
                case Resumed():
                    before = self.drains.get(-1 if spec.previous is None else spec.previous)
                    said = await self.voice.resumed(spec, word, before)
                    await self.on_resumed(
                        said
                    )  # at once: from here on there is no way back to the one before
                case Progress():
                    await self.voice.progress(spec.generation, word, self.meter.of(spec))
                    self.tell_room(spec)
                case Finished():
                    await self.voice.finished(spec.generation, word)
                    raise ServiceExit(0)
                case Failed():
                    self.ends.on_failed(spec.generation, word)

    async def on_checkpoint(self, spec: ClusterSpecPublished, word: Saved) -> None:
        """It exists once the ledger names it; then those go that the ledger names no more."""
        past = past_after(self.gate.entry.past, word)
        keep, final = spec.request.checkpoint.keep, word.final
        entry = await self.gate.commit(
            word.path, word.step, word.samples, keep, word.digest, past, final
        )
        await self.voice.saved(spec.generation, word, self.gate.waited_s)
        self.warn_of_costs(spec, word, past)
        if not word.final:
            self.hands.tell(
                spec.generation,
                Kept(paths=entry.paths, digests=entry.digests, samples=entry.samples),
            )

    def warn_of_costs(self, spec: ClusterSpecPublished, word: Saved, past: Past) -> None:
        """Log, once, that a loss may repeat more than it should, because saves cost too much to be
        made more often.
        """
        repeated_s = checkpoint_policy.repeated_s(past, word.next_s)
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

    def tell_room(self, spec: ClusterSpecPublished) -> None:
        """A chief is to know whether its ps have room for a copy of what they hold."""
        headroom = memory_headroom(spec, self.meter.usage)
        if headroom is not None:
            self.hands.tell(spec.generation, headroom)

    async def on_end(self, spec: ClusterSpecPublished) -> None:
        generation, phase = spec.generation, self.pod.children.get(spec.generation)
        ending, failure = self.ends.judged(self.pod, generation)
        logger.warning("ChildEnded", generation=generation, phase=phase, cause=failure.cause)
        match ending:
            case "fails the job":
                await self.voice.failed(generation, failure.cause)
                raise ServiceExit(1)
            case "prepares again":
                await self.prepare_again(spec)
            case "is missed by its generation":
                await self.on_missed(spec, failure.cause)
            case "breaks":
                await self.on_broken(generation, drains=phase == "draining")
            case "ends the pod":
                raise ServiceExit(EXIT_KILLED if failure is KILLED else EXIT_RETRY)

    async def prepare_again(self, spec: ClusterSpecPublished) -> None:
        await asyncio.sleep(AGAIN_S)
        if self.expects(spec.generation):
            self.ends.forget(spec.generation)
            await self.hands.start(spec, fresh=spec.request.handover == "restart")

    async def on_missed(self, spec: ClusterSpecPublished, why: str) -> None:
        """A generation is not prepared here; this pod stays."""
        self.pod = supervise.on_child_gone(self.pod, spec.generation, broken=False)
        await self.voice.not_prepared(spec.generation, why)

    async def on_broken(self, generation: int, drains: bool) -> None:
        """A chief that lost another task stays for the next generation."""
        self.pod = supervise.on_child_gone(self.pod, generation, broken=True)
        if drains:
            await self.voice.last_is_final(generation, self.pod.newest, await self.gate.look())
        await self.stay_for_next(generation)


async def start(bus: Bus, settings: Settings) -> None:
    """Stand ready, then live by the facts about this job."""
    key = f"{settings.namespace}.{settings.job}"
    decided = await bus.last_message(AllocationDecided, key)
    warm = not (decided and decided.message.request.handover == "restart")  # type: ignore[attr-defined]
    folder = Path(tempfile.mkdtemp(prefix="weir-trainer-"))
    os.environ["TMPDIR"] = str(folder)  # what TensorFlow writes in children goes with the pod
    gate = await fence.of(bus, key, settings.uid, settings.checkpoint_dir)
    trainer = Trainer(bus, settings, gate, folder, Nursery(settings.role) if warm else None)
    bus.on_close(trainer.hands.close)
    await trainer.voice.ready(trainer.ports.numbers)
    if settings.role == "chief":
        await trainer.meter.collect()
    bus.on_stop(trainer.leave)
    following = [_follow(bus, key, lanes, trainer) for lanes in LANES]
    await asyncio.gather(
        *following, trainer.meter.measure(), trainer.attend(), trainer.leave_if_forgotten(key)
    )


async def _follow(bus: Bus, key: str, lanes: Sequence[Kinds], trainer: Trainer) -> None:
    """Hear the messages of one stream by one consumer; those of each lane in order, beside those of
    the others.
    """
    queues: dict[type[Message], asyncio.Queue[StoredMessage]] = {}
    for kinds in lanes:
        queues |= dict.fromkeys(kinds, asyncio.Queue())
    filters = [subjects.pattern(kind, key) for kind in queues]
    hearing = [_hear_each(queue, trainer) for queue in set(queues.values())]
    on_set_back = trainer.set_back.set if ORDERS in lanes else _nothing
    heard = bus.tail(filters, deliver=DeliverPolicy.LAST_PER_SUBJECT, on_set_back=on_set_back)
    await asyncio.gather(_sort(heard, queues), *hearing)


def _nothing() -> None:
    """For the facts: what they lose, nobody here goes by any more."""


async def _sort(
    heard: AsyncIterator[StoredMessage],
    queues: Mapping[type[Message], asyncio.Queue[StoredMessage]],
) -> None:
    async for each in heard:
        queues[type(each.message)].put_nowait(each)


async def _hear_each(queue: asyncio.Queue[StoredMessage], trainer: Trainer) -> None:
    while True:
        heard = await queue.get()
        with fenced():
            await trainer.hear(heard)


@contextlib.contextmanager
def fenced() -> Iterator[None]:
    """A pod that finds that a later generation has taken over from it ends, and is not at fault."""
    try:
        yield
    except Stale as error:
        logger.error("Fenced", error=str(error))
        raise ServiceExit(EXIT_EVICTED) from error


TRIES = 3
KILLED = Failed(
    cause="the process that runs the program was killed, and could not say why: out of memory, perhaps",
    peer=True,
)


class Ends:
    """`causes`: last words, by generation. `tries`: how many children a generation has been
    given.
    """

    def __init__(self) -> None:
        self.causes: dict[int, Failed] = {}
        self.tries: dict[int, int] = {}

    def on_failed(self, generation: int, said: Failed) -> None:
        self.causes[generation] = said

    def forget(self, generation: int) -> None:
        """Another child is tried; the last one's words are not its own."""
        self.causes.pop(generation, None)

    def judged(self, pod: Pod, generation: int) -> tuple[Ending, Failed]:
        """What it means, and why it ended; `KILLED` where it could not say."""
        failure = self.causes.get(generation, KILLED)
        ending = supervise.on_child_end(
            pod, generation, peer=failure.peer, explained=failure is not KILLED
        )
        if ending == "prepares again" and not self.may_try(generation):
            return "is missed by its generation", failure
        return ending, failure

    def may_try(self, generation: int) -> bool:
        """Counts this as one more."""
        self.tries[generation] = self.tries.get(generation, 1) + 1
        return self.tries[generation] <= TRIES
