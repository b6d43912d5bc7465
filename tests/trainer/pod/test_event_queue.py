"""Tests of a pod's event loop: a lane's events run in order, and lanes run concurrently.

All lanes share one queue.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from services.trainer.pod.executor import ChildAction
from services.trainer.pod.state_machine import (
    TRIES,
    ChildEventReceived,
    ChildExited,
    Event,
    FactReceived,
    StateMachine,
    TimerDue,
    lane_of,
)
from services.trainer.pod.supervise import StartChild
from services.trainer.protocol import Failed, Prepared
from services.trainer.settings import Settings
from shared.bus.bus import Bus
from tests.trainer.builders import abandoned, final, order, resumed, spec
from tests.trainer.pod.test_service import LOST, PREPARED, Orders, Pod, pod_of

SOON_S = 60.0
FIRST, SECOND = spec(1), spec(2, previous=1)


class SlowStart(Orders):
    """An executor that starts a child when the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_start, self.noted_one = asyncio.Event(), asyncio.Event()

    async def perform(self, action: ChildAction) -> None:
        if isinstance(action, StartChild):
            await self.may_start.wait()
        self.noted.append(action)
        self.noted_one.set()


@pytest.fixture
async def worker(bus: Bus, tmp_path: Path) -> Pod:
    pod = await pod_of(bus, tmp_path, "worker-0")
    pod.trainer.executor = cast(Any, SlowStart())
    bus.spawn(pod.trainer.run())
    return pod


def put(pod: Pod, *events: Event) -> None:
    for event in events:
        pod.trainer.events.put_nowait(event)


async def test_an_order_waits_for_the_start_of_a_child_but_a_fact_does_not(
    worker: Pod,
) -> None:
    machine, hands = worker.trainer.machine, cast(SlowStart, worker.trainer.executor)
    put(worker, FactReceived(FIRST), FactReceived(order(1)), FactReceived(resumed(1)))

    async with asyncio.timeout(SOON_S):
        while machine.pod.trains != 1:
            await asyncio.sleep(0)
    assert machine.pod.ordered == {} and hands.noted == []

    hands.may_start.set()
    async with asyncio.timeout(SOON_S):
        while machine.pod.ordered != {1: None}:
            await asyncio.sleep(0)
    assert hands.noted == [StartChild(FIRST, fresh=False)]


async def test_waiting_events_of_an_ended_child_are_dropped(
    worker: Pod,
) -> None:
    machine, hands = worker.trainer.machine, cast(SlowStart, worker.trainer.executor)
    hands.may_start.set()
    hands.ended.add(1)
    put(worker, FactReceived(FIRST))
    async with asyncio.timeout(SOON_S):
        await hands.noted_one.wait()

    put(worker, ChildEventReceived(FIRST, PREPARED, child=1), ChildExited(FIRST, child=1))
    put(worker, ChildEventReceived(FIRST, PREPARED, child=2))
    async with asyncio.timeout(SOON_S):
        while machine.pod.children != {1: "prepared"}:
            await asyncio.sleep(0)
    assert machine.exit_classifier.tries == {}


def test_the_events_of_a_child_and_its_restart_share_a_lane() -> None:
    events: list[Event] = [
        ChildEventReceived(SECOND, Prepared(seconds=1.0)),
        ChildExited(SECOND),
        TimerDue("prepare again", 2),
    ]
    assert {lane_of(event) for event in events} == {"child of 2"}


def test_a_deadline_has_its_own_lane() -> None:
    facts: list[Event] = [FactReceived(fact) for fact in (FIRST, abandoned(2), final(1))]
    others = {lane_of(event) for event in [*facts, ChildExited(FIRST)]}
    assert lane_of(TimerDue("deadline")) not in others


def test_a_child_that_lost_a_task_is_restarted_a_limited_number_of_times() -> None:
    settings = Settings(job="digits", uid=7, pod="worker-0", pod_uid="u", role="worker", serial=0)
    machine = StateMachine(settings)
    machine.handle(FactReceived(FIRST), 0.0)
    started = 0
    for _ in range(TRIES):
        machine.handle(ChildEventReceived(FIRST, LOST), 0.0)
        machine.handle(ChildExited(FIRST), 0.0)
        again = machine.handle(TimerDue("prepare again", 1), 0.0)
        started += again == (StartChild(FIRST, fresh=False),)

    assert started == TRIES - 1 and machine.pod.children == {}


def test_a_child_that_cannot_get_its_program_fails_the_job() -> None:
    settings = Settings(job="digits", uid=7, pod="worker-0", pod_uid="u", role="worker", serial=0)
    machine = StateMachine(settings)
    machine.handle(FactReceived(FIRST), 0.0)

    actions = machine.handle(ChildExited(FIRST, failure=Failed(cause="not found")), 0.0)

    assert [type(action).__name__ for action in actions] == [
        "RemoveChild",
        "PublishJobFailed",
        "ExitPod",
    ]
