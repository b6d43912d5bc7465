"""The shell of one pod: hears facts, asks `supervise`, performs what it answers, and says what its children say."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import structlog
from msgspec import Meta
from nats.aio.msg import Msg
from nats.js.api import DeliverPolicy

from services.trainer import fence, priority, program_file, retention, supervise
from services.trainer.children import Child, Nursery
from services.trainer.orders import (
    Assignment,
    Begin,
    Drain,
    Failed,
    Finished,
    GoOn,
    Order,
    Prepared,
    Progress,
    Resumed,
    Saved,
    Word,
)
from services.trainer.ports import Ports
from services.trainer.program import BadProgram
from services.trainer.supervise import Pod
from services.trainer.usage import Use, lacks_room, sample_of
from shared import config, log, subjects
from shared.app import Leave
from shared.bus import Bus, Heard, Stale
from shared.messages import (
    NOT_ENOUGH_MEMORY,
    AllocationDecided,
    CheckpointSaved,
    ClusterSpecPublished,
    GenerationAbandoned,
    GenerationPrepared,
    HandOverOrdered,
    JobFinished,
    Phases,
    ProgressReported,
    Resources,
    Role,
    TaskReady,
    TaskUsage,
    TrainingResumed,
)

logger = structlog.get_logger()
EXIT_EVICTED, EXIT_RETRY, EXIT_KILLED = 143, 138, 137  # taken away; lost another task; the child was killed
KILLED = "the process that runs the program was killed, and could not say why: out of memory, perhaps"
ENDING_S = 5.0  # more than a killed process takes to go
TRIES, AGAIN_S = 3, 0.5  # a child that meets servers of a generation that is just going prepares again


class Settings(config.Common, frozen=True, kw_only=True):
    """One task. `ports`: the pair a generation chooses from, "0,0" for free ones. `prepare_nice`: weight of a child
    that prepares. `peer_grace_s`: how long a chief that lost a task waits for a new generation before its pod ends.

    `stuck_s`: how long one call of the program's code may take before the job fails for it; `stuck_early_s`: the same
    until a generation trains, below the launcher's own limits for that (to prepare 180 s, to resume 120 s), so that the
    program's stack is told before they pass; `stuck_patience`: a step that hangs in TensorFlow is given so many times
    as long (`pulse.py`), because `dataset` is to be told first where it is that which hangs.
    """

    job: str
    uid: int
    pod: str
    pod_uid: str
    role: Role
    serial: int
    namespace: str = "default"
    node: str = "-"
    host: str = "127.0.0.1"
    ports: str = "2222,2223"
    checkpoint_dir: str = "/checkpoints"
    cpu: float = 1.0
    memory_gib: float = 0.0
    prepare_nice: int = 5
    progress_s: float = 1.0
    usage_s: float = 5.0
    peer_grace_s: float = 10.0
    stuck_early_s: Annotated[float, Meta(gt=0)] = 75.0
    stuck_s: Annotated[float, Meta(gt=0)] = 300.0
    stuck_patience: Annotated[float, Meta(ge=1)] = 1.5


class Trainer:
    """One pod."""

    def __init__(self, bus: Bus, settings: Settings, gate: fence.Fence, folder: Path, nursery: Nursery | None) -> None:
        self.bus, self.settings, self.gate, self.folder, self.nursery = bus, settings, gate, folder, nursery
        self.pod = Pod(name=settings.pod)
        self.ports = Ports(settings.ports)
        self.children: dict[int, Child] = {}
        self.leaving: list[Child] = []
        self.tries: dict[int, int] = {}
        self.causes: dict[int, Failed] = {}
        self.drains: dict[int, CheckpointSaved] = {}
        self.usage: dict[str, TaskUsage] = {}
        self.odd_usage = False
        self.nice = settings.prepare_nice if priority.may_raise() else 0

    # ------------------------------------------------------------ facts

    async def on_spec(self, spec: ClusterSpecPublished) -> None:
        await self._perform(supervise.on_spec(self.pod, spec))

    async def on_hand_over(self, order: HandOverOrdered) -> None:
        await self._perform(supervise.on_hand_over(self.pod, order))

    async def on_abandoned(self, fact: GenerationAbandoned) -> None:
        await self._perform(supervise.on_abandoned(self.pod, fact))

    async def on_saved(self, fact: CheckpointSaved) -> None:
        if fact.final:
            self.drains[fact.generation] = fact
            await self._perform(supervise.on_final(self.pod, fact))

    async def on_resumed(self, fact: TrainingResumed) -> None:
        await self._perform(supervise.on_resumed(self.pod, fact))

    async def hear(self, heard: Heard) -> None:
        """One fact about this job; of another job of this name there is none."""
        fact: Any = heard.message
        if fact.uid == self.settings.uid:
            with log.about(fact):
                await self._handlers()[type(fact)](fact)

    def _handlers(self) -> dict[type, Callable[[Any], Awaitable[None]]]:
        return {
            ClusterSpecPublished: self.on_spec,
            HandOverOrdered: self.on_hand_over,
            GenerationAbandoned: self.on_abandoned,
            CheckpointSaved: self.on_saved,
            TrainingResumed: self.on_resumed,
        }

    # ------------------------------------------------------------ what is done about them

    async def _perform(self, decided: tuple[Pod, supervise.Actions]) -> None:
        self.pod, actions = decided
        for action in actions:
            logger.info(type(action).__name__, of=getattr(action, "generation", None))
            await self._act(action)

    async def _act(self, action: supervise.Action) -> None:
        match action:
            case supervise.StartChild(spec, fresh):
                await self._start_child(spec, fresh)
            case supervise.BeginChild(generation, path, chief):
                await self._begin_child(generation, path, chief)
            case supervise.DrainChild(generation, successor):
                self._tell(generation, Drain(successor=successor))
            case supervise.GoOnChild(generation):
                await self.gate.claim(generation, back=True)
                self._tell(generation, GoOn())
            case supervise.EndChild(generation):
                self._end_child(generation)
            case supervise.SayLastIsFinal(generation, successor):
                await self._say_last_is_final(generation, successor)
            case supervise.StayForNext(generation):
                self.bus.spawn(self._stay_for_next(generation))
            case supervise.LeavePod():
                raise Leave(EXIT_RETRY)

    async def _start_child(self, spec: ClusterSpecPublished, fresh: bool) -> None:
        await self._until_ports_are_free()
        if not fresh and await self._lacks_room(spec):
            return
        follows = spec.previous is not None or bool((await self.gate.look()).paths)
        try:
            program = await program_file.fetched(self.bus, spec.request.program, self.folder)
        except BadProgram as error:
            self.causes[spec.generation] = Failed(cause=str(error))
            return await self._on_end(spec)
        assignment = self._assignment(spec, program, warms_up=follows and not fresh, first=not follows)
        if self.pod.children.get(spec.generation) != "preparing":
            return  # it was given up while we looked around
        child = Child(
            assignment,
            None if fresh else self.nursery,
            lambda word: self._on_word(spec, word),
            lambda: self._on_end(spec),
        )
        self.children[spec.generation] = child
        self.bus.spawn(child.listen())

    async def _lacks_room(self, spec: ClusterSpecPublished) -> bool:
        """Say so beforehand, where two children do not fit side by side: the job then stops and starts again."""
        running = self.children.get(-1 if spec.previous is None else spec.previous)
        why = await asyncio.to_thread(lacks_room, self.settings.memory_gib, running.pid if running else None)
        if why is None:
            return False
        self.pod = supervise.on_child_gone(self.pod, spec.generation, broken=False)
        await self.bus.publish(self._prepared_message(spec, error=f"{NOT_ENOUGH_MEMORY}: {why}"))
        return True

    def _assignment(self, spec: ClusterSpecPublished, program: Path, *, warms_up: bool, first: bool) -> Assignment:
        task = spec.of(self.settings.pod)
        assert task is not None, "only members start children"
        cluster = {role: spec.addresses(role) for role in ("chief", "ps", "worker")}
        return Assignment(
            generation=spec.generation,
            role=task.role,
            index=task.index,
            cluster=cluster,
            request=spec.request,
            batch=spec.batch,
            program=str(program),
            checkpoint_dir=self.settings.checkpoint_dir,
            resources=Resources(cpu=self.settings.cpu, memory_gib=self.settings.memory_gib),
            warms_up=warms_up,
            first=first,
            nice=self.nice if spec.previous is not None else 0,
            progress_s=self.settings.progress_s,
            stuck_early_s=self.settings.stuck_early_s,
            stuck_s=self.settings.stuck_s,
            stuck_patience=self.settings.stuck_patience,
        )

    async def _begin_child(self, generation: int, path: str | None, chief: bool) -> None:
        if chief:
            entry = await self.gate.claim(generation)
            path = path or (entry.paths[0] if entry.paths else None)
        self._tell(generation, Begin(path=path))

    def _tell(self, generation: int, order: Order) -> None:
        """A child may die while we make up our mind; its end is heard of, too."""
        if generation in self.children:
            self.children[generation].tell(order)

    def _end_child(self, generation: int) -> None:
        child = self.children.pop(generation, None)
        if child is not None:
            child.end()
            self.leaving.append(child)

    async def _until_ports_are_free(self) -> None:
        """A child that was ended holds its port until it is gone, and the next but one needs that very port."""
        leaving, self.leaving = self.leaving, []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDING_S):
                await asyncio.gather(*(child.gone.wait() for child in leaving))

    async def _say_last_is_final(self, generation: int, successor: int) -> None:
        entry = await self.gate.look()
        await self._say(
            CheckpointSaved,
            generation,
            step=entry.step,
            samples=entry.samples,
            path=entry.paths[0] if entry.paths else "",
            seconds=0.0,
            final=True,
            successor=successor,
        )

    # ------------------------------------------------------------ what children say

    async def _on_word(self, spec: ClusterSpecPublished, word: Word) -> None:
        with fenced():
            await self._follow(spec, word)

    async def _follow(self, spec: ClusterSpecPublished, word: Word) -> None:
        match word:
            case Prepared(seconds=seconds):
                await self._prepared(spec, seconds)
            case Saved():
                await self._saved(spec, word)
            case Resumed():
                await self._resumed(spec, word)
            case Progress():
                await self._progress(spec, word)
            case Finished():
                await self._finished(spec, word)
            case Failed():
                self.causes[spec.generation] = word

    async def _prepared(self, spec: ClusterSpecPublished, seconds: float) -> None:
        await self.bus.publish(self._prepared_message(spec, seconds=seconds))
        await self._perform(supervise.on_prepared(self.pod, spec.generation))

    def _prepared_message(self, spec: ClusterSpecPublished, **more: Any) -> GenerationPrepared:
        return GenerationPrepared(**self._task(), generation=spec.generation, **more)

    async def _saved(self, spec: ClusterSpecPublished, word: Saved) -> None:
        entry = await self.gate.commit(word.path, word.step, word.samples, spec.request.checkpoint.keep)
        await self._say(
            CheckpointSaved,
            spec.generation,
            step=word.step,
            samples=word.samples,
            path=word.path,
            seconds=word.seconds,
            drain_s=word.drain_s,
            final=word.final,
            successor=word.successor,
        )
        if not word.final:
            await asyncio.to_thread(retention.prune, Path(self.settings.checkpoint_dir), entry.paths)

    async def _resumed(self, spec: ClusterSpecPublished, word: Resumed) -> None:
        before = self.drains.get(-1 if spec.previous is None else spec.previous)
        phases = Phases(
            drain_s=before.drain_s if before else 0.0,
            save_s=before.seconds if before else 0.0,
            restore_s=word.restore_s,
            first_step_s=word.first_step_s,
        )
        said = await self._say(
            TrainingResumed,
            spec.generation,
            step=word.step,
            samples=word.samples,
            previous=spec.previous,
            pause_s=word.pause_s,
            phases=phases,
        )
        await self.on_resumed(said)  # at once: from here on there is no way back to the one before

    async def _progress(self, spec: ClusterSpecPublished, word: Progress) -> None:
        await self._say(
            ProgressReported,
            spec.generation,
            step=word.step,
            epoch=word.epoch,
            samples=word.samples,
            total_samples=word.total_samples,
            samples_per_second=word.samples_per_second,
            loss=word.loss,
            usage=tuple(self.usage.values()),
            profile=word.profile,
            reported_s=time.time(),
        )

    async def _finished(self, spec: ClusterSpecPublished, word: Finished) -> None:
        await self._say(
            JobFinished,
            spec.generation,
            outcome="succeeded",
            step=word.step,
            samples=word.samples,
            counted=word.counted,
            metrics=word.metrics,
            finished_s=time.time(),
        )
        raise Leave(0)

    async def _on_end(self, spec: ClusterSpecPublished) -> None:
        """A child ended by itself."""
        generation, self_said = spec.generation, self.causes.get(spec.generation)
        failure = self_said or Failed(cause=KILLED, peer=True)
        phase = self.pod.children.get(generation)
        self.children.pop(generation, None)
        logger.warning("ChildEnded", generation=generation, phase=phase, cause=failure.cause)
        match supervise.on_child_end(self.pod, generation, peer=failure.peer, explained=self_said is not None):
            case "fails the job":
                await self._fail(spec, failure)
            case "prepares again" if await self._prepare_again(spec):
                return
            case "prepares again" | "is missed by its generation":
                self.pod = supervise.on_child_gone(self.pod, generation, broken=False)
                await self.bus.publish(self._prepared_message(spec, error=failure.cause))
            case "breaks":
                await self._broken(generation, drains=phase == "draining")
            case "ends the pod":
                raise Leave(EXIT_RETRY if self_said else EXIT_KILLED)

    async def _prepare_again(self, spec: ClusterSpecPublished) -> bool:
        """Start once more, unless that was tried enough; an address may still have been another generation's."""
        generation = spec.generation
        self.tries[generation] = self.tries.get(generation, 1) + 1
        if self.tries[generation] > TRIES:
            return False
        await asyncio.sleep(AGAIN_S)
        if self.pod.children.get(generation) == "preparing":
            self.causes.pop(generation, None)
            await self._start_child(spec, fresh=spec.request.handover == "restart")
        return True

    async def _fail(self, spec: ClusterSpecPublished, failure: Failed) -> None:
        step, samples = await self._trained()
        await self._say(
            JobFinished,
            spec.generation,
            outcome="failed",
            cause=failure.cause,
            step=step,
            samples=samples,
            finished_s=time.time(),
        )
        raise Leave(1)

    async def _trained(self) -> tuple[int, int]:
        """Updates and samples, as the chief has last reported, whichever pod that was."""
        last = await self.bus.last(ProgressReported, f"{self.settings.namespace}.{self.settings.job}")
        if last is None or not isinstance(last.message, ProgressReported) or last.message.uid != self.settings.uid:
            return 0, 0
        return last.message.step, last.message.samples

    async def _broken(self, generation: int, drains: bool) -> None:
        """A chief that lost another task stays for the next generation; where none comes, its pod ends."""
        self.pod = supervise.on_child_gone(self.pod, generation, broken=True)
        if drains:
            await self._say_last_is_final(generation, self.pod.newest)
        await self._stay_for_next(generation)

    async def _stay_for_next(self, generation: int) -> None:
        await asyncio.sleep(self.settings.peer_grace_s)
        if self.pod.newest in (generation, self.pod.given_up):
            raise Leave(EXIT_RETRY)

    # ------------------------------------------------------------ saying

    async def _say(self, kind: Any, generation: int, **fields: Any) -> Any:
        message = kind(**self._job(), generation=generation, **fields)
        await self.bus.publish(message)
        logger.info(kind.__name__, **{k: v for k, v in fields.items() if k in ("step", "pause_s", "final", "outcome")})
        return message

    def _job(self) -> dict[str, Any]:
        s = self.settings
        return {"job": s.job, "namespace": s.namespace, "uid": s.uid}

    def _task(self) -> dict[str, Any]:
        s = self.settings
        return {**self._job(), "pod": s.pod, "pod_uid": s.pod_uid, "role": s.role, "serial": s.serial}

    async def ready(self) -> None:
        s = self.settings
        await self.bus.publish(TaskReady(**self._task(), node=s.node, host=s.host, ports=self.ports.numbers))

    # ------------------------------------------------------------ use

    async def measure(self) -> None:
        """Tell the chief what this pod uses; over the bus' plain side, because only the newest value matters."""
        use, name = Use(), f"{self.settings.role}-{self.settings.serial}"
        while True:
            await asyncio.sleep(self.settings.usage_s)
            cores, gib = await asyncio.to_thread(use.look, self.settings.usage_s)
            sample = TaskUsage(task=name, cpu=round(cores, 3), memory_gib=round(gib, 3))
            await self.bus.client.publish(self._usage_subject(), msgspec.json.encode(sample))

    def _usage_subject(self) -> str:
        return f"weir-usage.{self.settings.namespace}.{self.settings.job}.{self.settings.uid}"

    async def collect_usage(self) -> None:
        """The chief's side of `measure`."""

        async def on_usage(raw: Msg) -> None:
            sample = sample_of(raw.data)
            if sample is not None:
                self.usage[sample.task] = sample
            elif not self.odd_usage:
                self.odd_usage = True
                logger.warning("OddUsage", subject=raw.subject, body=raw.data[:200].decode("utf-8", "replace"))

        await self.bus.client.subscribe(self._usage_subject(), cb=on_usage)

    async def leave(self) -> None:
        """End every child; nothing of this pod stays behind."""
        for generation in list(self.children):
            self._end_child(generation)
        if self.nursery is not None:
            self.nursery.close()
        shutil.rmtree(self.folder, ignore_errors=True)


async def start(bus: Bus, settings: Settings) -> None:
    """Stand ready, then live by the facts about this job."""
    key = f"{settings.namespace}.{settings.job}"
    decided = await bus.last(AllocationDecided, key)
    warm = not (decided and decided.message.request.handover == "restart")  # type: ignore[attr-defined]
    folder = Path(tempfile.mkdtemp(prefix="weir-trainer-"))
    os.environ["TMPDIR"] = str(folder)  # what TensorFlow writes in children goes with the pod
    trainer = Trainer(
        bus,
        settings,
        await fence.of(bus, key, settings.uid),
        folder,
        Nursery(settings.role) if warm else None,
    )
    bus.on_close(trainer.leave)
    await trainer.ready()
    if settings.role == "chief":
        await trainer.collect_usage()
    orders = [subjects.pattern(k, key) for k in (ClusterSpecPublished, HandOverOrdered, GenerationAbandoned)]
    facts = [subjects.pattern(k, key) for k in (CheckpointSaved, TrainingResumed)]
    await asyncio.gather(_each(bus, orders, trainer), _each(bus, facts, trainer), trainer.measure())


async def _each(bus: Bus, filters: list[str], trainer: Trainer) -> None:
    async for heard in bus.tail(filters, deliver=DeliverPolicy.LAST_PER_SUBJECT):
        with fenced():
            await trainer.hear(heard)


@contextlib.contextmanager
def fenced() -> Iterator[None]:
    """A pod that finds that a later generation has taken over from it ends, and is not at fault."""
    try:
        yield
    except Stale as error:
        logger.error("Fenced", error=str(error))
        raise Leave(EXIT_EVICTED) from error
