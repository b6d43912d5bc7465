"""A pod's last seconds, and what it does about others': tells that it has to go, works on, and goes
in time. Edge.

`leaving.py` decides; here is the clock. Whether the job is over, or another generation trains, is
looked up, because the launcher sends pods away as soon as it has heard of that, and we may hear of
it later.
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
from services.trainer.pod.publisher import Voice
from services.trainer.pod.supervise import Actions, Pod, Times
from services.trainer.settings import Settings
from shared.bus.bus import Bus
from shared.kube import eviction
from shared.messages import SIGTERM, CheckpointSaved, JobFinished, TaskLeaving, TrainingResumed

logger = structlog.get_logger()
LOOK_UP_S = 2.0  # longest wait for the bus, of a pod that has to go
TWICE = 2.0  # a save may take so many times as long as the last one


class Performer(Protocol):
    """The trainer, as far as it is needed here."""

    bus: Bus
    settings: Settings
    voice: Voice
    pod: Pod

    def perform(self, decided: tuple[Pod, Actions]) -> Awaitable[None]: ...


class Farewell:
    def __init__(self, trainer: Performer) -> None:
        self.trainer = trainer
        self.stirred, self.may_go = asyncio.Event(), asyncio.Event()
        self.save_s = 0.0  # what the last save took, to its first byte and to its last
        self.measured = -1  # the newest generation whose change was measured
        self.changes_s: tuple[float, ...] = ()  # what the job's last changes took

    @property
    def times(self) -> Times:
        settings = self.trainer.settings
        return Times(
            leave_s=settings.leave_s, last_save_s=max(settings.last_save_s, TWICE * self.save_s)
        )

    async def on_leaving(self, fact: TaskLeaving) -> None:
        await self.trainer.perform(
            supervise.on_leaving(self.trainer.pod, fact, time.time(), self.times)
        )

    def on_saved(self, fact: CheckpointSaved) -> None:
        self.save_s = fact.drain_s + fact.seconds

    def on_resumed(self, fact: TrainingResumed) -> None:
        """Remember how long a change takes, once for each generation; a generation that goes on
        tells nothing of it.
        """
        if fact.generation > self.measured:
            self.measured, self.changes_s = (
                fact.generation,
                eviction.add_measurement(self.changes_s, fact.change_s),
            )

    @property
    def grace_s(self) -> float:
        """Seconds that this pod may take to end: as long as a change takes, as far as Kubernetes
        lets it.
        """
        settings = self.trainer.settings
        return eviction.grace_period(settings.grace_s, self.changes_s, settings.grace_most_s)

    async def attend(self) -> None:
        """Do what is due, at every change and when its time has come, until we may go."""
        while not self.may_go.is_set():
            self.stirred.clear()
            pod, actions = supervise.due(self.trainer.pod, time.time(), self.times)
            if actions:
                await self.trainer.perform((pod, actions))
            at_s = supervise.next_s(self.trainer.pod, self.times)
            wait_s = None if math.isinf(at_s) else max(at_s - time.time(), 0.01)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stirred.wait(), wait_s)

    async def leave(self) -> None:
        """We were told to end: returns when we may. The grace runs from now on, however long the
        bus takes.
        """
        began_s = time.time()
        over, resumed = await asyncio.gather(self._last(JobFinished), self._last(TrainingResumed))
        if over is not None or not await self._is_needed(resumed):
            return
        logger.warning("ToldToEnd", grace_s=self.grace_s, asked_s=self.trainer.settings.grace_s)
        fact = self.trainer.voice.leaving(self.trainer.pod.trains, SIGTERM, began_s + self.grace_s)
        await self.on_leaving(fact)
        self.trainer.bus.spawn(self._say(fact))
        await self.may_go.wait()

    async def _say(self, fact: TaskLeaving) -> None:
        await self.trainer.bus.publish(fact)

    async def _is_needed(self, resumed: TrainingResumed | None) -> bool:
        if resumed is not None:
            self.on_resumed(resumed)
            await self.trainer.perform(supervise.on_resumed(self.trainer.pod, resumed))
        return supervise.needed(self.trainer.pod)

    async def _last(self, kind: type[Any]) -> Any:
        """The last of a kind of this very job, if the bus has it and answers in time.

        Without an answer, for whatever reason, the pod is still needed as far as it knows.
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
