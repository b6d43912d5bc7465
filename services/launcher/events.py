"""Kubernetes Events on the service of a job, as `kubectl describe service JOB` shows them.

    Decided     Normal     the allocator changed the tasks of the job; its reason
    Started, Grown, Shrunk, Moved, Resumed     Normal     a generation trains
    Abandoned   Warning    a generation was abandoned; the reason
    Failed      Warning    the job failed; the cause
    Succeeded, Cancelled   Normal     the job ended

Events are for people; nothing depends on them. An event is dropped if its job has had too many
(`EventBudget`), if too many are waiting, or if the server refuses it. The name of an event follows
from its message, so it is written once. The first events of a job wait until its service exists.
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
"""Maximum characters of an event's text. The API server accepts no more."""
OUTCOMES = {"failed": "Failed", "succeeded": "Succeeded", "cancelled": "Cancelled"}
EventKind = Literal["Normal", "Warning"]


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event about a job. `id`: of its message. `last`: the job is over; this event is written
    even if the budget is spent.
    """

    uid: int
    id: str
    reason: str
    text: str
    kind: EventKind = "Normal"
    last: bool = False


def job_event(message: JobMessage, view: View) -> JobEvent | None:
    """Return the Event for a message; None if it has none. `view`: before this message."""
    generation = f"generation {message.generation}"
    if isinstance(message, AllocationDecided):
        size = _describe_size(message.tasks) if message.tasks else "no tasks"
        return _new_event(message, "Decided", f"{generation}, {size}: {message.reason}")
    if isinstance(message, TrainingResumed):
        return _training_event(message, view)
    if isinstance(message, GenerationAbandoned):
        return _new_event(message, "Abandoned", f"{generation}: {message.reason}", "Warning")
    if isinstance(message, JobFinished) and message.uid in view.bus_state.jobs:
        text = f"after {format_count(message.samples, 'example')}"
        if cause := headline(message.cause):
            text += f": {cause}"
        kind: EventKind = "Warning" if message.outcome == "failed" else "Normal"
        return _new_event(message, OUTCOMES[message.outcome], text, kind, last=True)
    return None


def _new_event(
    message: JobMessage, reason: str, text: str, kind: EventKind = "Normal", *, last: bool = False
) -> JobEvent:
    line = cut_middle(single_line(text), LONGEST_TEXT, gap=" [...] ")
    return JobEvent(
        uid=message.uid, id=message.id(), reason=reason, text=line, kind=kind, last=last
    )


def _training_event(message: TrainingResumed, view: View) -> JobEvent | None:
    """Return the Event for a generation that begins to train.

    Return None if the generation is unknown or already trains.
    """
    job = view.bus_state.jobs.get(message.uid)
    if job is None or message.generation not in job.generations:
        return None
    if job.running is not None and job.running >= message.generation:
        return None
    decision = job.generations[message.generation].decision
    before = job.generations.get(job.running) if job.running is not None else None
    if before:
        reason = _resize_reason(len(before.decision.tasks), len(decision.tasks))
    elif _is_first_training(message, decision):
        reason = "Started"
    else:
        reason = "Resumed"
    text = f"generation {message.generation} trains with {_describe_size(decision.tasks)}"
    if message.pause_s is not None:
        text += f" after a pause of {format_duration(message.pause_s, fine=True)}"
    return _new_event(message, reason, text)


def _is_first_training(message: TrainingResumed, decision: AllocationDecided) -> bool:
    """Return True for the first training of a job: at most one batch of each worker is applied."""
    workers = sum(task.role == "worker" for task in decision.tasks)
    return message.samples <= decision.batch * max(1, workers)


def _resize_reason(before: int, now: int) -> str:
    if now == before:
        return "Moved"
    return "Grown" if now > before else "Shrunk"


def _describe_size(tasks: tuple[TaskPlan, ...]) -> str:
    roles: list[str] = [task.role for task in tasks]
    return format_size(roles.count("ps"), roles.count("worker"))


class EventBudget(msgspec.Struct, frozen=True):
    """The events left for one job: `burst` at once, and another one every `refill_s`."""

    left: float
    at_s: float

    def refill(self, now: float, burst: int, refill_s: float) -> EventBudget:
        return EventBudget(min(float(burst), self.left + max(now - self.at_s, 0.0) / refill_s), now)


def event_manifest(note: JobEvent, service: ServiceFact, now: float) -> dict[str, Any]:
    """Return the Event as an object of the API."""
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
"""Maximum number of events that wait to be written."""
MOST_OF_JOB = 8
"""Maximum number of events of one job that wait for its service."""
MOST_JOBS = 1_000
"""Maximum number of jobs with waiting events, and of jobs with a budget."""
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
        """Queue an event, unless its job has had too many."""
        if note is None or not self.settings.event_rate or not self._take_from_budget(note):
            return
        service = services.get(note.uid)
        if service is not None:
            self._enqueue(note, service)
        elif not note.last:
            _put_bounded(
                self.waiting_for_service,
                note.uid,
                self.waiting_for_service.get(note.uid, deque(maxlen=MOST_OF_JOB)),
            )
            self.waiting_for_service[note.uid].append(note)

    def on_service(self, service: ServiceFact) -> None:
        """Queue the events that waited for a service."""
        for note in self.waiting_for_service.pop(service.job_uid, ()):
            self._enqueue(note, service)

    def _enqueue(self, note: JobEvent, service: ServiceFact) -> None:
        if not self.queue.full():
            self.queue.put_nowait((note, service))

    def _take_from_budget(self, note: JobEvent) -> bool:
        now, rules = self.clock(), self.settings
        full = EventBudget(float(rules.event_burst), now)
        budget = self.budgets.get(note.uid, full).refill(
            now, rules.event_burst, rules.event_refill_s
        )
        if note.last:
            self.budgets.pop(note.uid, None)
            return True
        may = budget.left >= 1.0
        _put_bounded(self.budgets, note.uid, EventBudget(budget.left - 1.0, now) if may else budget)
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


def _put_bounded(entries: dict[int, T], uid: int, value: T) -> None:
    """Set an entry, and drop the oldest if there are too many."""
    entries[uid] = value
    while len(entries) > MOST_JOBS:
        del entries[next(iter(entries))]
