"""Writing Kubernetes Events, few enough that neither the server nor the launcher's own work
suffers. Edge.

An event is about a job's service, so the first ones of a job wait until that is there. What is too
much is dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeVar

from services.launcher.events import Budget, Note, event
from services.launcher.facts import ServiceFact
from services.launcher.paths import path
from services.launcher.settings import Settings
from shared.kube.client import READ_ERRORS, Api, ApiError
from shared.runtime.log import RateLimitedWarning

T = TypeVar("T")

MOST_WAITING = 256
MOST_OF_JOB = 8
MOST_JOBS = 1_000
"""Events that wait to be written; of a job whose service is not there yet; and such jobs, or those
with a budget.
"""
ALREADY_THERE = 409


class EventWriter:
    def __init__(self, api: Api, settings: Settings, clock: Callable[[], float]) -> None:
        self.api = api
        self.settings = settings
        self.clock = clock
        self.queue = asyncio.Queue[tuple[Note, ServiceFact]](MOST_WAITING)
        self.early: dict[int, deque[Note]] = {}
        self.budgets: dict[int, Budget] = {}
        self.plaint = RateLimitedWarning()

    def add(self, note: Note | None, services: Mapping[int, ServiceFact]) -> None:
        """Have it written, unless its job has had too many."""
        if note is None or not self.settings.event_rate or not self._may_tell(note):
            return
        service = services.get(note.uid)
        if service is not None:
            self._enqueue(note, service)
        elif not note.last:
            _keep(self.early, note.uid, self.early.get(note.uid, deque(maxlen=MOST_OF_JOB)))
            self.early[note.uid].append(note)

    def service_seen(self, service: ServiceFact) -> None:
        """Have written what waited for it."""
        for note in self.early.pop(service.job_uid, ()):
            self._enqueue(note, service)

    def _enqueue(self, note: Note, service: ServiceFact) -> None:
        if not self.queue.full():
            self.queue.put_nowait((note, service))

    def _may_tell(self, note: Note) -> bool:
        now, rules = self.clock(), self.settings
        full = Budget(float(rules.event_burst), now)
        budget = self.budgets.get(note.uid, full).refilled(
            now, rules.event_burst, rules.event_refill_s
        )
        if note.last:
            self.budgets.pop(note.uid, None)
            return True
        may = budget.left >= 1.0
        _keep(self.budgets, note.uid, Budget(budget.left - 1.0, now) if may else budget)
        return may

    async def write_for_ever(self) -> None:
        while True:
            note, service = await self.queue.get()
            await self._write(note, service)
            await asyncio.sleep(1.0 / self.settings.event_rate)

    async def _write(self, note: Note, service: ServiceFact) -> None:
        try:
            await self.api.call(
                "POST", path("events", service.namespace), event(note, service, self.clock())
            )
        except ApiError as error:
            if error.status != ALREADY_THERE:
                self.plaint.warn_error("EventNotWritten", error)
        except READ_ERRORS as error:
            self.plaint.warn_error("EventNotWritten", error)


def _keep(among: dict[int, T], uid: int, value: T) -> None:
    """Set an entry; the oldest goes where there are too many."""
    among[uid] = value
    while len(among) > MOST_JOBS:
        del among[next(iter(among))]
