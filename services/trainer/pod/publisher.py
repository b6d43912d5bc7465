"""The messages that this pod publishes: one method for each, in the order of a generation's
life.
"""

from __future__ import annotations

import time
from typing import Any, TypeVar

import structlog

from services.trainer.pod.fence import Entry
from services.trainer.protocol import Finished, Prepared, Progress, Resumed, Saved, Skipped, Unsaved
from services.trainer.settings import Settings
from shared.bounds import within_bounds
from shared.bus.bus import Bus
from shared.messages import (
    MOST_TABLE_ROUNDS,
    CheckpointFailed,
    CheckpointSaved,
    CheckpointSkipped,
    ClusterSpecPublished,
    GenerationPrepared,
    JobFinished,
    JobMessage,
    Phases,
    ProgressReported,
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
"""Maximum characters of an error that kept a generation from being prepared, and the share of its
beginning if it is cut. The launcher puts the task's name before the error in the reason of the
abandonment, and does not shorten it further.
"""
M = TypeVar("M", bound=JobMessage)


class Publisher:
    """Every method returns after the bus has stored the message."""

    def __init__(self, bus: Bus, settings: Settings) -> None:
        self.bus, self.settings = bus, settings
        self.key = f"{settings.namespace}.{settings.job}"
        self.job: dict[str, Any] = {name: getattr(settings, name) for name in JOB}
        self.task: dict[str, Any] = {name: getattr(settings, name) for name in TASK}

    async def task_ready(self, ports: tuple[int, int]) -> None:
        await self.bus.publish(
            TaskReady(**self.task, node=self.settings.node, host=self.settings.host, ports=ports)
        )

    async def generation_prepared(self, generation: int, report: Prepared) -> None:
        fact = GenerationPrepared(
            **self.task,
            generation=generation,
            seconds=report.seconds,
            parts=report.parts,
            profile=report.profile,
        )
        await self.bus.publish(fact)

    async def generation_not_prepared(self, generation: int, why: str) -> None:
        error = cut_middle(why, ERROR_LENGTH, ERROR_HEAD)
        await self.bus.publish(GenerationPrepared(**self.task, generation=generation, error=error))

    async def checkpoint_saved(self, generation: int, report: Saved, waited_s: float) -> None:
        await self._publish(
            CheckpointSaved,
            generation,
            step=report.step,
            samples=report.samples,
            path=report.path,
            seconds=report.seconds,
            drain_s=report.drain_s,
            final=report.final,
            successor=report.successor,
            stood=report.stood,
            digest=report.digest,
            bytes=report.bytes,
            pause_s=report.pause_s,
            cost_s=report.cost_s,
            waited_s=waited_s,
            next_s=report.next_s,
        )

    async def checkpoint_failed(self, generation: int, report: Unsaved) -> None:
        await self._publish(
            CheckpointFailed,
            generation,
            step=report.step,
            path=report.path,
            cause=report.cause,
            remedy=report.remedy,
            successor=report.successor,
            failed_s=time.time(),
        )

    async def checkpoint_skipped(self, generation: int, report: Skipped) -> None:
        await self._publish(
            CheckpointSkipped,
            generation,
            path=report.path,
            cause=report.cause,
            instead=report.instead,
        )

    async def last_is_final(self, generation: int, successor: int, last: Entry) -> None:
        """Publish that the newest checkpoint in the ledger is the final one of a generation; an
        empty path: there is none.
        """
        await self._publish(
            CheckpointSaved,
            generation,
            step=last.step,
            samples=last.samples,
            path=last.paths[0] if last.paths else "",
            seconds=0.0,
            final=True,
            successor=successor,
        )

    async def training_resumed(
        self, spec: ClusterSpecPublished, report: Resumed, before: CheckpointSaved | None
    ) -> TrainingResumed:
        """Publish that training has resumed.

        `before`: the final checkpoint of the previous generation; None: there was none.
        """
        return await self._publish(
            TrainingResumed,
            spec.generation,
            step=report.step,
            samples=report.samples,
            previous=spec.previous,
            pause_s=report.pause_s,
            off_s=spec.off_s if report.pause_s is not None else 0.0,
            phases=Phases(
                drain_s=before.drain_s if before else 0.0,
                save_s=before.seconds if before else 0.0,
                restore_s=report.restore_s,
                first_step_s=report.first_step_s,
            ),
            learning_rate=report.learning_rate,
            change_s=max(time.time() - spec.decided_s, 0.0) if spec.decided_s else 0.0,
            table_rounds=report.table_rounds[-MOST_TABLE_ROUNDS:],
        )

    async def progress_reported(
        self, generation: int, report: Progress, usage: tuple[TaskUsage, ...]
    ) -> None:
        await self._publish(
            ProgressReported,
            generation,
            step=report.step,
            epoch=report.epoch,
            samples=report.samples,
            total_samples=report.total_samples,
            samples_per_second=report.samples_per_second,
            loss=report.loss,
            usage=usage,
            profile=report.profile,
            gradient_noise=report.gradient_noise,
            gradient_noise_at_least=report.gradient_noise_at_least,
            staleness=report.staleness,
            staleness_cost=report.staleness_cost,
            reported_s=time.time(),
            applied_s=report.applied_s,
        )

    async def job_finished(self, generation: int, report: Finished) -> None:
        await self._publish(
            JobFinished,
            generation,
            outcome="succeeded",
            step=report.step,
            samples=report.samples,
            counted=report.counted,
            metrics=report.metrics,
            finished_s=time.time(),
        )

    async def job_failed(self, generation: int, cause: str) -> None:
        step, samples = await self._last_step_and_samples()
        await self._publish(
            JobFinished,
            generation,
            outcome="failed",
            cause=cause,
            step=step,
            samples=samples,
            finished_s=time.time(),
        )

    async def _last_step_and_samples(self) -> tuple[int, int]:
        """Return the updates and examples of the last report of this job's chief, else zeros."""
        last = await last_progress(self.bus, self.settings)
        return (last.step, last.samples) if last else (0, 0)

    async def _publish(self, kind: type[M], generation: int, **fields: Any) -> M:
        message = within_bounds(kind(**self.job, generation=generation, **fields))
        await self.bus.publish(message)
        logger.info(
            kind.__name__, **{name: value for name, value in fields.items() if name in LOGGED}
        )
        return message


async def last_progress(bus: Bus, settings: Settings) -> ProgressReported | None:
    """Return the last report of this job's chief, from whichever pod; None if there is none."""
    last = await bus.last_message(ProgressReported, f"{settings.namespace}.{settings.job}")
    if (
        last is None
        or not isinstance(last.message, ProgressReported)
        or last.message.uid != settings.uid
    ):
        return None
    return last.message
