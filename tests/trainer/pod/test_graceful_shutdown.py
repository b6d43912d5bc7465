"""Tests of a pod that gets SIGTERM, on a real bus: what it publishes and when it exits."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from nats.errors import NoRespondersError

from services.trainer.pod.state_machine import LOOK_UP_S
from services.trainer.pod.supervise import DrainChild, EndChild, SaveChild
from shared.bus.bus import Bus
from shared.bus.client import ConnectionLost, Refused
from shared.bus.consumer import StoredMessage
from shared.messages import JobFinished, Message, TaskLeaving
from tests.trainer.builders import JOB, final, order, resumed, spec
from tests.trainer.pod.test_service import Pod, pod_of

SOON_S, GRACE_S = 60.0, 3600.0
"""s. A pod that need not wait for its grace period exits within `SOON_S`."""
WITHOUT_IT = spec(2, previous=1, pods=["chief-0", "ps-1", "worker-0"])


async def told(
    pod: Pod, grace_s: float = GRACE_S, leave_s: float = 1.0, last_save_s: float = 0.1
) -> asyncio.Task[None]:
    """Start the shutdown that SIGTERM starts. Return its task, which ends when the pod may exit."""
    shutdown = pod.trainer.machine.graceful_shutdown
    shutdown.settings = msgspec.structs.replace(
        shutdown.settings, grace_s=grace_s, leave_s=leave_s, last_save_s=last_save_s
    )
    pod.bus.spawn(pod.trainer.run())
    return asyncio.create_task(pod.trainer.shut_down())


async def gone(leaving: asyncio.Task[None]) -> bool:
    done, _ = await asyncio.wait([leaving], timeout=SOON_S)
    return bool(done)


@pytest.fixture
async def ps(bus: Bus, tmp_path: Path) -> Pod:
    return await pod_of(bus, tmp_path, "ps-0")


@pytest.fixture
async def chief(bus: Bus, tmp_path: Path) -> Pod:
    return await pod_of(bus, tmp_path, "chief-0")


async def trains(pod: Pod, change_s: float = 0.0) -> None:
    """Let generation 1 train, as seen by a pod that is not the chief."""
    await pod.hears(spec(1))
    machine = pod.trainer.machine
    machine.pod = msgspec.structs.replace(machine.pod, children={1: "running"})
    await pod.hears(msgspec.structs.replace(resumed(1), change_s=change_s))


async def heard(pod: Pod) -> TaskLeaving | None:
    async with asyncio.timeout(SOON_S):
        while not (said := await pod.said(TaskLeaving)):
            await asyncio.sleep(0.02)
    return said


async def test_a_stopping_pod_publishes_it_and_stays_until_the_next_generation_trains(
    ps: Pod,
) -> None:
    await trains(ps)
    began_s = time.time()
    leaving = await told(ps)
    said = await heard(ps)
    assert said and (said.why, said.pod, said.generation) == ("SIGTERM", "ps-0", 1)
    assert began_s <= said.leaves_s - GRACE_S <= time.time() and not leaving.done()
    assert (await ps.hears(WITHOUT_IT, resumed(2)))[-1] == EndChild(1)
    assert await gone(leaving)


async def test_a_stopping_pod_exits_shortly_before_its_grace_period_ends(ps: Pod) -> None:
    await trains(ps)
    began = time.monotonic()
    assert await gone(await told(ps, grace_s=1.5, leave_s=0.5)) and time.monotonic() - began >= 0.9


@pytest.mark.parametrize(("most_s", "grace_s"), [(600.0, 90.0), (80.0, 80.0), (0.0, 30.0)])
async def test_a_stopping_pod_stays_for_a_hand_over_if_its_grace_period_allows(
    ps: Pod, most_s: float, grace_s: float
) -> None:
    """Regression: a pod left after 30 s, preparing took 60 s, and training paused for 58 s."""
    shutdown = ps.trainer.machine.graceful_shutdown
    shutdown.settings = msgspec.structs.replace(shutdown.settings, grace_most_s=most_s)
    await trains(ps, change_s=60.0)
    began_s = time.time()
    leaving = await told(ps, grace_s=30.0)
    said = await heard(ps)
    assert said and began_s <= said.leaves_s - grace_s <= time.time() and not leaving.done()
    leaving.cancel()


async def test_a_continued_generation_does_not_count_as_a_change_duration(ps: Pod) -> None:
    await trains(ps)
    await ps.hears(msgspec.structs.replace(resumed(2), change_s=60.0))
    await ps.hears(msgspec.structs.replace(resumed(2), step=90, change_s=6000.0))
    assert ps.trainer.machine.graceful_shutdown.changes_s == (60.0,)


async def test_an_idle_pod_exits_at_once(ps: Pod) -> None:
    assert await gone(await told(ps)) and await ps.said(TaskLeaving) is None


async def test_a_pod_of_a_finished_job_exits_at_once(ps: Pod) -> None:
    await trains(ps)
    await ps.bus.publish(JobFinished(**JOB, outcome="cancelled"))
    assert await gone(await told(ps)) and await ps.said(TaskLeaving) is None


async def test_a_pod_that_a_later_generation_does_not_need_exits_at_once(
    ps: Pod,
) -> None:
    await trains(ps)
    await ps.bus.publish(resumed(2))
    assert await gone(await told(ps)) and await ps.said(TaskLeaving) is None


async def test_facts_of_an_earlier_job_do_not_stop_a_pod(ps: Pod) -> None:
    await trains(ps)
    await ps.bus.publish(JobFinished(**{**JOB, "uid": 6}, outcome="succeeded"))
    leaving = await told(ps)
    assert await heard(ps) and not leaving.done()
    leaving.cancel()


class Unanswering:
    """A bus that publishes messages but cannot read any: a read fails, or never returns."""

    def __init__(self, bus: Bus, error: Exception | None = None) -> None:
        self.bus, self.error = bus, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bus, name)

    async def last_message(self, kind: type[Message], key: str) -> StoredMessage | None:
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()
        return None


@pytest.mark.parametrize(
    "error", [ConnectionLost("nats: the connection broke"), Refused("weir"), NoRespondersError()]
)
async def test_a_broken_connection_does_not_shorten_the_graceful_shutdown(
    ps: Pod, error: Exception
) -> None:
    await trains(ps)
    ps.trainer.bus = cast(Any, Unanswering(ps.bus, error))
    leaving = await told(ps)
    assert await heard(ps) and not leaving.done()
    leaving.cancel()


async def test_a_slow_bus_does_not_extend_the_grace_period(ps: Pod) -> None:
    await trains(ps)
    ps.trainer.bus = cast(Any, Unanswering(ps.bus))
    began_s = time.time()
    leaving = await told(ps)
    said = await heard(ps)
    assert said and began_s <= said.leaves_s - GRACE_S <= time.time() - 0.9 * LOOK_UP_S
    leaving.cancel()


async def test_a_stopping_chief_saves_at_once_and_finally_before_its_exit(chief: Pod) -> None:
    await chief.trains()
    leaving = await told(chief, GRACE_S, leave_s=1.0, last_save_s=GRACE_S - 2.0)
    assert await heard(chief)
    async with asyncio.timeout(SOON_S):
        while DrainChild(1, None) not in chief.hands.noted:
            await asyncio.sleep(0.02)
    assert SaveChild(1) in chief.hands.noted and not leaving.done()
    await chief.hears(final(1))
    assert await gone(leaving)


async def test_the_duration_of_the_last_save_is_reserved(chief: Pod) -> None:
    await chief.hears(order(1), msgspec.structs.replace(final(1), drain_s=2.0, seconds=4.0))
    assert chief.trainer.machine.graceful_shutdown.times.last_save_s == 12.0
