"""The last seconds of a pod: announce the end, keep working, and exit in time.

`supervise.py` decides; this module has the clock. The pod looks up whether the job is over or
another generation trains: the launcher ends pods as soon as it knows that, and this pod may receive
the fact later.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable
from typing import Any, Protocol

import structlog
from nats.errors import Error as NatsError

from services.trainer.pod import supervise
from services.trainer.pod.publisher import Publisher
from services.trainer.pod.supervise import Actions, Pod, ShutdownTimes
from services.trainer.settings import Settings
from shared.bus.bus import Bus
from shared.kube import eviction
from shared.messages import SIGTERM, CheckpointSaved, JobFinished, TaskLeaving, TrainingResumed

logger = structlog.get_logger()
LOOK_UP_S = 2.0  # longest wait for the bus while the pod ends
SAVE_MARGIN = 2.0  # a save may take that many times as long as the last one


class ActionPerformer(Protocol):
    """The part of `Trainer` that a shutdown needs."""

    bus: Bus
    settings: Settings
    publisher: Publisher
    pod: Pod

    def perform_actions(self, decided: tuple[Pod, Actions]) -> Awaitable[None]: ...


class GracefulShutdown:
    """The shutdown of one pod, and its measurements of saves and changes."""

    def __init__(self, trainer: ActionPerformer) -> None:
        self.trainer = trainer
        self.changed, self.released = asyncio.Event(), asyncio.Event()
        self.save_s = 0.0  # duration of the last save, drain included
        self.measured_generation = -1  # the newest generation with a measured change
        self.changes_s: tuple[float, ...] = ()  # durations of the job's last changes

    @property
    def times(self) -> ShutdownTimes:
        settings = self.trainer.settings
        return ShutdownTimes(
            leave_s=settings.leave_s,
            last_save_s=max(settings.last_save_s, SAVE_MARGIN * self.save_s),
        )

    async def on_leaving(self, fact: TaskLeaving) -> None:
        await self.trainer.perform_actions(
            supervise.on_leaving(self.trainer.pod, fact, time.time(), self.times)
        )

    def on_saved(self, fact: CheckpointSaved) -> None:
        self.save_s = fact.drain_s + fact.seconds

    def on_resumed(self, fact: TrainingResumed) -> None:
        """Remember the duration of a change, once for each generation. A generation that continues
        was not changed.
        """
        if fact.generation > self.measured_generation:
            self.measured_generation, self.changes_s = (
                fact.generation,
                eviction.add_measurement(self.changes_s, fact.change_s),
            )

    @property
    def grace_s(self) -> float:
        """Return the seconds that this pod may take to end: as long as a change takes, within the
        limit of Kubernetes.
        """
        settings = self.trainer.settings
        return eviction.grace_period(settings.grace_s, self.changes_s, settings.grace_most_s)

    async def run_timers(self) -> None:
        """Perform due actions at every change and at every deadline until the pod may exit."""
        while not self.released.is_set():
            self.changed.clear()
            pod, actions = supervise.due_actions(self.trainer.pod, time.time(), self.times)
            if actions:
                await self.trainer.perform_actions((pod, actions))
            at_s = supervise.next_due_s(self.trainer.pod, self.times)
            wait_s = None if math.isinf(at_s) else max(at_s - time.time(), 0.01)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), wait_s)

    async def wait_for_release(self) -> None:
        """Return when a pod that was told to end may exit. Its grace period starts now, also if the
        bus is slow.
        """
        began_s = time.time()
        over, resumed = await asyncio.gather(
            self._last_fact(JobFinished), self._last_fact(TrainingResumed)
        )
        if over is not None or not await self._is_needed(resumed):
            return
        logger.warning("ToldToEnd", grace_s=self.grace_s, asked_s=self.trainer.settings.grace_s)
        fact = self.trainer.publisher.task_leaving(
            self.trainer.pod.trains, SIGTERM, began_s + self.grace_s
        )
        await self.on_leaving(fact)
        self.trainer.bus.spawn(self._publish_leaving(fact))
        await self.released.wait()

    async def _publish_leaving(self, fact: TaskLeaving) -> None:
        await self.trainer.bus.publish(fact)

    async def _is_needed(self, resumed: TrainingResumed | None) -> bool:
        if resumed is not None:
            self.on_resumed(resumed)
            await self.trainer.perform_actions(supervise.on_resumed(self.trainer.pod, resumed))
        return supervise.is_needed(self.trainer.pod)

    async def _last_fact(self, kind: type[Any]) -> Any:
        """Return the last fact of a kind about this job, if the bus answers in time.

        Without an answer the pod assumes that it is still needed.
        """
        settings = self.trainer.settings
        with contextlib.suppress(TimeoutError, NatsError):
            async with asyncio.timeout(LOOK_UP_S):
                found = await self.trainer.bus.last_message(
                    kind, f"{settings.namespace}.{settings.job}"
                )
                said: Any = found and found.message
                return said if said and said.uid == settings.uid else None
        return None
