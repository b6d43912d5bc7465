"""Tests of the publisher: a message stays with it until the server has stored it.

A message that can never be stored is refused at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import PubAck
from nats.js.errors import APIError
from structlog.testing import capture_logs

from services.allocator.state.state import State, apply
from shared.auth.permissions import LAUNCHER, MONITOR
from shared.bus import bus as wire
from shared.bus import publisher, subjects
from shared.bus.bus import Bus
from shared.bus.client import ConnectionLost, Refused
from shared.bus.consumer import StoredMessage
from shared.bus.publisher import is_no_room
from shared.messages import GenerationAbandoned, JobAccepted, ProgressReported
from shared.runtime.metrics import WAITING
from tests.allocator.builders import accepted
from tests.allocator.builders import progress as reported
from tests.conftest import NatsServer, connected
from tests.shared.listeners import Ears
from tests.shared.sample_messages import JOB, abandoned, request
from tests.shared.secured_server import credentials, guarded

WITHIN_S, FOR_EVER_S = 60.0, 3600.0
SMALL = 40_000  # bytes


async def change(bus: Bus, stream: str, **changes: Any) -> None:
    """Change the configuration of a stream."""
    config = (await bus.js.stream_info(stream)).config
    await bus.js.update_stream(replace(config, **changes))


# ------------------------------------------------------------ messages without permission


@pytest.fixture
async def guarded_server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with guarded(tmp_path) as running:
        yield running


async def test_a_publish_without_permission_is_refused_at_once(
    guarded_server: NatsServer,
) -> None:
    monitor = await wire.connect(guarded_server.url, MONITOR, credentials(MONITOR))
    monitor.js._timeout = FOR_EVER_S  # otherwise a missing answer would be reported as a late one

    with pytest.raises(
        Refused, match=r"may not publish to weir\.cluster\.abandoned\.default\.digits"
    ):
        async with asyncio.timeout(WITHIN_S):
            await monitor.publish(abandoned())

    await monitor.close()


async def test_a_refused_message_does_not_stop_others(guarded_server: NatsServer) -> None:
    launcher = await wire.connect(guarded_server.url, LAUNCHER, credentials(LAUNCHER))

    said = await asyncio.gather(
        launcher.publish(request()),
        *(launcher.publish(abandoned(generation=g)) for g in range(5)),
        return_exceptions=True,
    )

    assert [type(each) for each in said] == [Refused, *[int] * 5]
    await launcher.close()


# ------------------------------------------------------------ a full stream


async def test_messages_refused_by_a_full_stream_wait_until_there_is_room(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "ROOM_S", 0.1)
    ears, long = Ears(), "x" * 1_000
    await bus.follow([GenerationAbandoned], ears, {})
    await change(bus, subjects.ORDERS, max_bytes=SMALL)

    with capture_logs() as said:
        saying = asyncio.gather(
            *(bus.publish(abandoned(generation=g, reason=long)) for g in range(60))
        )
        await ears.until(20)
        await asyncio.sleep(0.5)
        assert not saying.done() and "the bus to store its messages" in bus.health.unmet()
        await change(bus, subjects.ORDERS, max_bytes=-1)
        await saying

    await ears.until(60)
    assert "the bus to store its messages" not in bus.health.unmet()
    (word,) = [line for line in said if line["event"] == "NoRoom"]
    assert word["stream"] == subjects.ORDERS and "weir streams create" in word["remedy"]


async def test_a_command_gets_an_error_from_a_full_stream(bus: Bus) -> None:
    await change(bus, subjects.ORDERS, max_bytes=1)

    with pytest.raises(APIError) as refused:
        await bus.request(request())

    assert is_no_room(refused.value)


# ------------------------------------------------------------ outages of the server


def progress(job: str, step: int) -> ProgressReported:
    fields = {**JOB, "job": job, "uid": int(job[1:])}
    return ProgressReported(
        **fields, step=step, epoch=0, samples=0, total_samples=1, samples_per_second=1.0
    )


@pytest.mark.usefixtures("brief_heartbeat")
async def test_concurrent_publishers_keep_their_order_while_the_server_is_killed_repeatedly(
    nats_server: NatsServer, bus: Bus
) -> None:
    ears, steps = Ears(), 150
    await bus.follow([ProgressReported], ears, {})
    speaker = await connected(nats_server.url, "speaker")

    async def speak(job: str) -> None:
        for step in range(1, steps + 1):
            await speaker.publish(progress(job, step))
            await asyncio.sleep(0.01)

    saying = asyncio.gather(*(speak(f"j{n}") for n in range(1, 21)))
    for _ in range(2):
        await asyncio.sleep(0.5)
        await nats_server.kill()
        await nats_server.start()
    await saying

    heard = await ears.until(20 * steps)
    sequences = [h.sequence for h in heard]
    assert sequences == sorted(set(sequences))
    for n in range(1, 21):
        of_job = [h.message.step for h in heard if h.message.key() == f"default.j{n}"]  # type: ignore[attr-defined]
        assert list(dict.fromkeys(of_job)) == list(range(1, steps + 1))
    await speaker.close()


async def test_messages_on_one_subject_keep_their_order_although_the_first_fails(
    bus: Bus,
) -> None:
    """Otherwise the second would be stored while the first waits for its retry."""
    storing, fails = bus.js.publish, [ConnectionLost("the connection broke")]

    async def failing_once(*args: Any, **more: Any) -> PubAck:
        if fails:
            raise fails.pop()
        return await storing(*args, **more)

    bus.js.publish = failing_once  # type: ignore[method-assign]
    saying = asyncio.gather(*(bus.publish(abandoned(generation=g)) for g in range(10)))
    await asyncio.sleep(0)
    elsewhere = await bus.publish(abandoned(job="letters", uid=8))
    assert not saying.done() and waiting(bus) == 10, (
        "all that wait on the subject, and not the subject"
    )

    assert elsewhere == 1 and await saying == list(range(2, 12))
    assert waiting(bus) == 0


def waiting(bus: Bus) -> float:
    """Return the number of waiting messages, from the exported metric."""
    (told,) = [m for m in bus.health.measures() if m.family is WAITING]
    number = told.series[()]
    assert isinstance(number, float)
    return number


async def test_a_repetition_after_the_deduplication_window_is_stored_twice_and_counts_once(
    bus: Bus,
) -> None:
    """For example, the acknowledgement was lost; other messages were stored before the retry."""
    await change(bus, subjects.ORDERS, duplicate_window=0.2)
    await change(bus, subjects.FACTS, duplicate_window=0.2)
    ears, early, late = Ears(), reported(1, 10, 100, 5.0, step=1), reported(1, 20, 100, 7.0, step=2)
    await bus.follow([JobAccepted, ProgressReported], ears, {})

    first = {message.id(): await bus.publish(message) for message in (accepted(), early, late)}
    async with asyncio.timeout(WITHIN_S):
        for message in (accepted(), early):
            while await bus.publish(message) == first[message.id()]:
                await asyncio.sleep(0.1)  # the server still knows the id
        while len(ears.heard) < 5:
            await asyncio.sleep(0.01)

    assert folded(ears.heard[:3]).jobs and folded(ears.heard).jobs == folded(ears.heard[:3]).jobs


def folded(heard: list[StoredMessage]) -> State:
    """Return the state to which the allocator folds these messages."""
    state = State()
    for each in sorted(heard, key=lambda each: each.stored_s):
        state = apply(state, each.message, each.stream, each.sequence, each.stored_s)
    return state


async def test_a_closed_publisher_does_not_retry_for_ever(
    nats_server: NatsServer, bus: Bus
) -> None:
    speaker = await connected(nats_server.url, "speaker")
    await speaker.client.close()

    with pytest.raises(Exception, match="connection closed"):
        async with asyncio.timeout(WITHIN_S):
            await speaker.publish(abandoned())
