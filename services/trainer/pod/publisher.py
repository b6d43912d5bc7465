"""What this pod says on the bus: one method a message, in the order in which a generation's life
has them. Edge.
"""

from __future__ import annotations

import time
from typing import Any, TypeVar

import structlog

from services.trainer.pod.fence import Entry
from services.trainer.protocol import Finished, Progress, Resumed, Saved, Skipped, Unsaved
from services.trainer.settings import Settings
from shared.bounds import within_bounds
from shared.bus.bus import Bus
from shared.messages import (
    CheckpointFailed,
    CheckpointSaved,
    CheckpointSkipped,
    ClusterSpecPublished,
    GenerationPrepared,
    JobFinished,
    JobMessage,
    Phases,
    ProgressReported,
    TaskLeaving,
    TaskReady,
    TaskUsage,
    TrainingResumed,
)
from shared.text import cut_middle

logger = structlog.get_logger()
JOB = ("job", "namespace", "uid")
TASK = (*JOB, "pod", "pod_uid", "role", "serial")
LOGGED = (
    "step",
    "pause_s",
    "learning_rate",
    "final",
    "outcome",
    "path",
    "cause",
    "remedy",
    "stood",
    "waited_s",
    "next_s",
)
ERROR_LENGTH, ERROR_HEAD = 3_500, 1 / 8
"""Characters of an error that kept a generation from being prepared, and the share of its
beginning. The launcher tells it in the reason of the abandonment, with the task's name before it,
and shortens no further.
"""
M = TypeVar("M", bound=JobMessage)


class Voice:
    """Every method returns once the bus has what was said."""

    def __init__(self, bus: Bus, settings: Settings) -> None:
        self.bus, self.settings = bus, settings
        self.key = f"{settings.namespace}.{settings.job}"
        self.job: dict[str, Any] = {name: getattr(settings, name) for name in JOB}
        self.task: dict[str, Any] = {name: getattr(settings, name) for name in TASK}

    async def ready(self, ports: tuple[int, int]) -> None:
        await self.bus.publish(
            TaskReady(**self.task, node=self.settings.node, host=self.settings.host, ports=ports)
        )

    def leaving(self, generation: int, why: str, leaves_s: float) -> TaskLeaving:
        """Of this very task; not said yet, because what follows from it is more urgent."""
        about = {**self.task, "generation": max(generation, 0), "node": self.settings.node}
        return TaskLeaving(**about, why=why, leaves_s=leaves_s)

    async def prepared(self, generation: int, seconds: float) -> None:
        await self.bus.publish(
            GenerationPrepared(**self.task, generation=generation, seconds=seconds)
        )

    async def not_prepared(self, generation: int, why: str) -> None:
        error = cut_middle(why, ERROR_LENGTH, ERROR_HEAD)
        await self.bus.publish(GenerationPrepared(**self.task, generation=generation, error=error))

    async def saved(self, generation: int, word: Saved, waited_s: float) -> None:
        await self._say(
            CheckpointSaved,
            generation,
            step=word.step,
            samples=word.samples,
            path=word.path,
            seconds=word.seconds,
            drain_s=word.drain_s,
            final=word.final,
            successor=word.successor,
            stood=word.stood,
            digest=word.digest,
            bytes=word.bytes,
            pause_s=word.pause_s,
            cost_s=word.cost_s,
            waited_s=waited_s,
            next_s=word.next_s,
        )

    async def unsaved(self, generation: int, word: Unsaved) -> None:
        await self._say(
            CheckpointFailed,
            generation,
            step=word.step,
            path=word.path,
            cause=word.cause,
            remedy=word.remedy,
            successor=word.successor,
            failed_s=time.time(),
        )

    async def skipped(self, generation: int, word: Skipped) -> None:
        await self._say(
            CheckpointSkipped, generation, path=word.path, cause=word.cause, instead=word.instead
        )

    async def last_is_final(self, generation: int, successor: int, last: Entry) -> None:
        """What the ledger names is all that there will be of a generation; an empty path: there is
        nothing.
        """
        await self._say(
            CheckpointSaved,
            generation,
            step=last.step,
            samples=last.samples,
            path=last.paths[0] if last.paths else "",
            seconds=0.0,
            final=True,
            successor=successor,
        )

    async def resumed(
        self, spec: ClusterSpecPublished, word: Resumed, before: CheckpointSaved | None
    ) -> TrainingResumed:
        """`before`: the checkpoint with which the generation before made way; None where none
        did.
        """
        return await self._say(
            TrainingResumed,
            spec.generation,
            step=word.step,
            samples=word.samples,
            previous=spec.previous,
            pause_s=word.pause_s,
            off_s=spec.off_s if word.pause_s is not None else 0.0,
            phases=Phases(
                drain_s=before.drain_s if before else 0.0,
                save_s=before.seconds if before else 0.0,
                restore_s=word.restore_s,
                first_step_s=word.first_step_s,
            ),
            learning_rate=word.learning_rate,
            change_s=max(time.time() - spec.decided_s, 0.0) if spec.decided_s else 0.0,
        )

    async def progress(self, generation: int, word: Progress, usage: tuple[TaskUsage, ...]) -> None:
        await self._say(
            ProgressReported,
            generation,
            step=word.step,
            epoch=word.epoch,
            samples=word.samples,
            total_samples=word.total_samples,
            samples_per_second=word.samples_per_second,
            loss=word.loss,
            usage=usage,
            profile=word.profile,
            reported_s=time.time(),
            applied_s=word.applied_s,
        )

    async def finished(self, generation: int, word: Finished) -> None:
        await self._say(
            JobFinished,
            generation,
            outcome="succeeded",
            step=word.step,
            samples=word.samples,
            counted=word.counted,
            metrics=word.metrics,
            finished_s=time.time(),
        )

    async def failed(self, generation: int, cause: str) -> None:
        step, samples = await self._trained()
        await self._say(
            JobFinished,
            generation,
            outcome="failed",
            cause=cause,
            step=step,
            samples=samples,
            finished_s=time.time(),
        )

    async def _trained(self) -> tuple[int, int]:
        """Updates and samples, as the chief has last reported, whichever pod that was."""
        last = await last_progress(self.bus, self.settings)
        return (last.step, last.samples) if last else (0, 0)

    async def _say(self, kind: type[M], generation: int, **fields: Any) -> M:
        message = within_bounds(kind(**self.job, generation=generation, **fields))
        await self.bus.publish(message)
        logger.info(
            kind.__name__, **{name: value for name, value in fields.items() if name in LOGGED}
        )
        return message


async def last_progress(bus: Bus, settings: Settings) -> ProgressReported | None:
    """The last report of this very job's chief, whichever pod that was; None where there is
    none.
    """
    last = await bus.last_message(ProgressReported, f"{settings.namespace}.{settings.job}")
    if (
        last is None
        or not isinstance(last.message, ProgressReported)
        or last.message.uid != settings.uid
    ):
        return None
    return last.message
