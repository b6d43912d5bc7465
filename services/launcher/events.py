"""Kubernetes Events on the service of a job, as `kubectl describe service JOB` shows them.

    Decided     Normal     the allocator gave it tasks, or took them, and why
    Started, Grown, Shrunk, Moved, Resumed     Normal     a generation trains
    Abandoned   Warning    a generation was abandoned, and why
    Failed      Warning    the job failed, with its cause; else Succeeded or Cancelled

Events are for people; nothing depends on them. An event that cannot be written at once is dropped:
the job has too many (`Budget`), too many wait, or the server refuses it. The name of an event
follows from its message, so it is written once. The first events of a job wait until its service
exists.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

import msgspec

from services.launcher.facts import ServiceFact
from services.launcher.kube import object_path
from services.launcher.settings import Settings
from services.launcher.view import View
from shared.kube.client import READ_ERRORS, Api, ApiError
from shared.messages import (
    AllocationDecided,
    GenerationAbandoned,
    JobFinished,
    JobMessage,
    TaskPlan,
    TrainingResumed,
)
from shared.runtime.log import RateLimitedWarning
from shared.text import (
    cut_middle,
    format_count,
    format_duration,
    format_size,
    headline,
    single_line,
)

COMPONENT, STAMP = "weir-launcher", "%Y-%m-%dT%H:%M:%SZ"
LONGEST_TEXT = 1_024
"""Characters; a server takes no more."""
ENDS = {"failed": "Failed", "succeeded": "Succeeded", "cancelled": "Cancelled"}
Kind = Literal["Normal", "Warning"]


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be told of a job. `id`: of the message that says it."""

    uid: int
    id: str
    reason: str
    text: str
    kind: Kind = "Normal"
    last: bool = False
    """Whether the job is over: of that it is always told."""


def job_event(message: JobMessage, view: View) -> JobEvent | None:
    """Return what to tell of a message; None: nothing. `view`: before the message was
    remembered.
    """
    if isinstance(message, AllocationDecided):
        has = _size(message.tasks) if message.tasks else "no tasks"
        return _note(
            message, "Decided", f"generation {message.generation}, {has}: {message.reason}"
        )
    if isinstance(message, TrainingResumed):
        return _resumed_note(message, view)
    if isinstance(message, GenerationAbandoned):
        return _note(
            message, "Abandoned", f"generation {message.generation}: {message.reason}", "Warning"
        )
    if isinstance(message, JobFinished) and message.uid in view.bus_state.jobs:
        reason, cause = ENDS[message.outcome], headline(message.cause)
        said = f"after {format_count(message.samples, 'example')}" + (f": {cause}" if cause else "")
        return _note(
            message, reason, said, "Warning" if message.outcome == "failed" else "Normal", last=True
        )
    return None


def _note(
    message: JobMessage, reason: str, text: str, kind: Kind = "Normal", *, last: bool = False
) -> JobEvent:
    told = cut_middle(single_line(text), LONGEST_TEXT, gap=" [...] ")
    return JobEvent(
        uid=message.uid, id=message.id(), reason=reason, text=told, kind=kind, last=last
    )


def _resumed_note(message: TrainingResumed, view: View) -> JobEvent | None:
    """None: the generation is not known, or trains already."""
    job = view.bus_state.jobs.get(message.uid)
    now = job.generations.get(message.generation) if job else None
    if job is None or now is None or (job.running or -1) >= message.generation:
        return None
    before = job.generations.get(job.running) if job.running is not None else None
    tasks = now.decision.tasks
    if before:
        reason = _change(len(before.decision.tasks), len(tasks))
    else:
        reason = "Started" if _begins(message, now.decision) else "Resumed"
    pause = (
        ""
        if message.pause_s is None
        else f" after a pause of {format_duration(message.pause_s, fine=True)}"
    )
    return _note(
        message, reason, f"generation {message.generation} trains with {_size(tasks)}{pause}"
    )


def _begins(message: TrainingResumed, decision: AllocationDecided) -> bool:
    """Return whether the job trains for the first time: told after the first updates, of each
    worker one at most.
    """
    workers = sum(task.role == "worker" for task in decision.tasks)
    return message.samples <= decision.batch * max(1, workers)


def _change(before: int, now: int) -> str:
    return "Grown" if now > before else "Shrunk" if now < before else "Moved"


def _size(tasks: tuple[TaskPlan, ...]) -> str:
    roles: list[str] = [task.role for task in tasks]
    return format_size(roles.count("ps"), roles.count("worker"))


class EventBudget(msgspec.Struct, frozen=True):
    """How many more events one job may have: `burst` at once, and another one every `refill_s`."""

    left: float
    at_s: float

    def refill(self, now: float, burst: int, refill_s: float) -> EventBudget:
        return EventBudget(min(float(burst), self.left + max(now - self.at_s, 0.0) / refill_s), now)


def event_manifest(note: JobEvent, service: ServiceFact, now: float) -> dict[str, Any]:
    """Return the Event, as the API takes it."""
    number = hashlib.sha256(note.id.encode()).hexdigest()[:16]
    at = datetime.fromtimestamp(now, UTC).strftime(STAMP)
    return {
        "kind": "Event",
        "apiVersion": "v1",
        "metadata": {"name": f"{service.name}.{number}", "namespace": service.namespace},
        "involvedObject": {
            "kind": "Service",
            "apiVersion": "v1",
            "name": service.name,
            "namespace": service.namespace,
            "uid": service.uid,
        },
        "type": note.kind,
        "reason": note.reason,
        "message": note.text,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": COMPONENT,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


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
        self.queue = asyncio.Queue[tuple[JobEvent, ServiceFact]](MOST_WAITING)
        self.waiting_for_service: dict[int, deque[JobEvent]] = {}
        self.budgets: dict[int, EventBudget] = {}
        self.warning = RateLimitedWarning()

    def add(self, note: JobEvent | None, services: Mapping[int, ServiceFact]) -> None:
        """Have it written, unless its job has had too many."""
        if note is None or not self.settings.event_rate or not self._may_tell(note):
            return
        service = services.get(note.uid)
        if service is not None:
            self._enqueue(note, service)
        elif not note.last:
            _keep(
                self.waiting_for_service,
                note.uid,
                self.waiting_for_service.get(note.uid, deque(maxlen=MOST_OF_JOB)),
            )
            self.waiting_for_service[note.uid].append(note)

    def on_service(self, service: ServiceFact) -> None:
        """Have written what waited for it."""
        for note in self.waiting_for_service.pop(service.job_uid, ()):
            self._enqueue(note, service)

    def _enqueue(self, note: JobEvent, service: ServiceFact) -> None:
        if not self.queue.full():
            self.queue.put_nowait((note, service))

    def _may_tell(self, note: JobEvent) -> bool:
        now, rules = self.clock(), self.settings
        full = EventBudget(float(rules.event_burst), now)
        budget = self.budgets.get(note.uid, full).refill(
            now, rules.event_burst, rules.event_refill_s
        )
        if note.last:
            self.budgets.pop(note.uid, None)
            return True
        may = budget.left >= 1.0
        _keep(self.budgets, note.uid, EventBudget(budget.left - 1.0, now) if may else budget)
        return may

    async def run(self) -> None:
        while True:
            note, service = await self.queue.get()
            await self._write(note, service)
            await asyncio.sleep(1.0 / self.settings.event_rate)

    async def _write(self, note: JobEvent, service: ServiceFact) -> None:
        try:
            await self.api.call(
                "POST",
                object_path("events", service.namespace),
                event_manifest(note, service, self.clock()),
            )
        except ApiError as error:
            if error.status != ALREADY_THERE:
                self.warning.warn_error("EventNotWritten", error)
        except READ_ERRORS as error:
            self.warning.warn_error("EventNotWritten", error)


def _keep(among: dict[int, T], uid: int, value: T) -> None:
    """Set an entry; the oldest goes where there are too many."""
    among[uid] = value
    while len(among) > MOST_JOBS:
        del among[next(iter(among))]
