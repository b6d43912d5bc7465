"""Tests of the Kubernetes events of a job: few, and each is written once."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from services.launcher.events import LONGEST_TEXT, EventWriter, JobEvent, job_event
from services.launcher.facts import ServiceFact
from services.launcher.settings import Settings
from services.launcher.view import View, fold_message
from shared.bus import bus as wire
from shared.bus.bus import Bus
from shared.messages import GenerationAbandoned, JobFinished, JobMessage, TrainingResumed
from tests.launcher.builders import JOB, UID, decided
from tests.launcher.test_service import Stage
from tests.shared.kube.api_server import api_server

SERVICE = ServiceFact(namespace="default", name=JOB, uid="service-uid", job_uid=UID)
OF_JOB: dict[str, Any] = {"job": JOB, "uid": UID}


def resumed(generation: int, **fields: Any) -> TrainingResumed:
    return TrainingResumed(**OF_JOB, generation=generation, step=1, **{"samples": 0, **fields})


def after(*messages: JobMessage) -> View:
    view = View()
    for at_s, message in enumerate(messages):
        view = fold_message(view, message, float(at_s))
    return view


def said(message: JobMessage, *before: JobMessage) -> tuple[str, str, str]:
    note = job_event(message, after(*before))
    assert note is not None
    return note.kind, note.reason, note.text


def test_each_kubernetes_event_has_a_reason_and_a_text() -> None:
    first = msgspec.structs.replace(decided(1, "c0 p1 w2"), reason="the first size")
    grown = msgspec.structs.replace(decided(2, "c0 p1 w2 w3"), reason="there is room")

    assert said(first) == ("Normal", "Decided", "generation 1, 1 ps, 1 worker: the first size")
    assert said(resumed(1), first) == (
        "Normal",
        "Started",
        "generation 1 trains with 1 ps, 1 worker",
    )
    assert said(resumed(1, samples=first.batch), first)[1] == "Started", (
        "it is said after the first update"
    )
    assert said(resumed(1, samples=1000 * first.batch), first)[1] == "Resumed"
    assert said(resumed(2, pause_s=0.6), first, resumed(1), grown) == (
        "Normal",
        "Grown",
        "generation 2 trains with 1 ps, 2 workers after a pause of 0.60 s",
    )
    assert said(resumed(2), grown, resumed(1))[1] == "Started", "what ran before is not known"
    gave_up = GenerationAbandoned(**OF_JOB, generation=2, reason="digits-worker-3: Unschedulable")
    assert said(gave_up, first) == (
        "Warning",
        "Abandoned",
        "generation 2: digits-worker-3: Unschedulable",
    )


def test_the_event_of_a_jobs_end_has_its_cause() -> None:
    cause = "Traceback (most recent call last):\n  ...\nValueError: no \x1b[31mexamples"
    failed = JobFinished(**OF_JOB, outcome="failed", cause=cause, samples=1200)

    assert said(failed, decided(1, "c0 p1 w2")) == (
        "Warning",
        "Failed",
        "after 1,200 examples: ValueError: no [31mexamples",
    )
    assert job_event(failed, View()) is None, "of a job that is not known"


def test_a_long_cause_is_shortened_and_repeated_resumptions_have_no_event() -> None:
    failed = JobFinished(**OF_JOB, outcome="failed", cause="x" * 30_000)

    assert len(said(failed, decided(1, "c0 p1 w2"))[2]) == LONGEST_TEXT
    assert job_event(resumed(1), after(decided(1, "c0 p1 w2"), resumed(1))) is None


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def note(number: int, **fields: Any) -> JobEvent:
    return JobEvent(uid=UID, id=f"id-{number}", reason="Decided", text="why", **fields)


def test_events_of_a_job_are_rate_limited_except_its_end() -> None:
    clock = Clock()
    writer = EventWriter(None, Settings(event_burst=3, event_refill_s=10.0), clock)  # type: ignore[arg-type]
    for number in range(20):
        writer.add(note(number), {UID: SERVICE})
    assert writer.queue.qsize() == 3

    clock.now += 20.0
    for number in range(20, 40):
        writer.add(note(number), {UID: SERVICE})
    writer.add(note(40, last=True), {UID: SERVICE})
    assert writer.queue.qsize() == 3 + 2 + 1


def test_events_wait_for_the_jobs_service() -> None:
    writer = EventWriter(None, Settings(), Clock())  # type: ignore[arg-type]
    for number in range(12):
        writer.add(note(number), {})
    assert writer.queue.empty()

    writer.on_service(SERVICE)
    writer.on_service(SERVICE)
    assert writer.queue.qsize() == 8


def test_disabled_events_are_not_queued() -> None:
    writer = EventWriter(None, Settings(event_rate=0), Clock())  # type: ignore[arg-type]
    writer.add(note(1), {UID: SERVICE})
    writer.add(note(2), {})

    assert writer.queue.empty() and writer.waiting_for_service == {}


@pytest.mark.parametrize("refuses", [False, True], ids=["takes them", "refuses some"])
async def test_events_are_written_on_the_jobs_service(
    nats_url: str, bus: Bus, refuses: bool
) -> None:
    """A refused event stops nothing else."""
    async with api_server() as server:
        stage = Stage(nats_url, await wire.connect(nats_url, "world"), server)
        await stage.begin(event_rate=1000.0)
        if refuses:
            server.refused_kinds.add("events")
        await stage.bus.publish(decided(1, "c0 p1 w2"))
        await stage.until(lambda: len(server.names("pods")) == 3)
        if refuses:
            await stage.until(lambda: any(path.endswith("/events") for _, path, _ in server.calls))
        else:
            await stage.until(lambda: server.names("events"))
            (event,) = [body for (kind, _, _), body in server.objects.items() if kind == "events"]
            about = next(
                body for (kind, _, _), body in server.objects.items() if kind == "services"
            )
            assert event["involvedObject"]["uid"] == about["metadata"]["uid"]
            assert (event["reason"], event["type"]) == ("Decided", "Normal")
        await stage.bus.publish(JobFinished(**OF_JOB, outcome="failed", cause="ValueError: no"))
        await stage.until(lambda: not server.names("services"))
        if not refuses:
            await stage.until(lambda: len(server.names("events")) == 2)
        await stage.kill()
        await stage.bus.close()
        await asyncio.sleep(0)
