"""Tests of requests to the bus: unanswered ones are repeated, hopeless ones fail at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from nats.errors import Error as NatsError
from nats.js.errors import APIError, KeyNotFoundError, NotFoundError, ServiceUnavailableError
from structlog.testing import capture_logs

from shared.auth.permissions import MONITOR
from shared.bus import bus as wire
from shared.bus import programs
from shared.bus.bus import Bus
from shared.bus.client import STILL_STORING, ConnectionLost, Refused, is_transient
from shared.messages import GenerationAbandoned
from tests.conftest import NatsServer, connected
from tests.shared.bus.three_servers import three_servers
from tests.shared.sample_messages import abandoned
from tests.shared.secured_server import credentials, guarded

KEY, PROGRAM = "default.digits", b"def model(): ..."
DIGEST = programs.digest_of(PROGRAM)
WITHIN_S, FOR_EVER_S = 60.0, 3600.0


async def test_a_request_during_an_outage_is_answered_when_the_server_is_back(
    nats_server: NatsServer, bus: Bus
) -> None:
    reader = await connected(nats_server.url, "reader")
    said = await bus.publish(abandoned())
    await programs.store_program(bus, "default", DIGEST, PROGRAM)

    async def ask(bus: Bus) -> set[int]:
        answers = set[int]()
        while not back.is_set():
            found = await bus.last_message(GenerationAbandoned, KEY)
            answers |= {
                found.sequence if found else 0,
                await bus.last_sequence(GenerationAbandoned, KEY),
            }
            assert (await programs.read_description(bus, "default", DIGEST)).size == 16
        return answers

    back = asyncio.Event()
    asking = asyncio.gather(*(ask(reader) for _ in range(20)))
    with capture_logs() as lines:
        for _ in range(2):
            await until_answered_again(reader)
            with nats_server.hung():
                await until_all_wait(reader, 20)
                await nats_server.kill()
            await asyncio.sleep(0.3)
            await nats_server.start()
        await until_answered_again(reader)
        back.set()
        assert await asking == [{said}] * 20

    told = [line["error"] for line in lines if line["event"] == "AnswerWaits"]
    assert 1 <= len(told) <= 2, "once by each who asks: what reads, and the outbox"
    await reader.close()


async def until_answered_again(bus: Bus) -> None:
    async with asyncio.timeout(WITHIN_S):
        assert await bus.last_sequence(GenerationAbandoned, KEY)


async def until_all_wait(bus: Bus, requests: int) -> None:
    """Wait until this many requests have been sent and none of them is answered."""
    async with asyncio.timeout(WITHIN_S):
        while len(bus.client._open_requests) < requests:
            await asyncio.sleep(0.02)


async def test_a_request_without_retries_fails_while_the_server_is_away(
    nats_server: NatsServer, bus: Bus
) -> None:
    hurried = Bus(bus.client, "person", patient=False)
    hurried.js._timeout = 1.0
    asking = asyncio.gather(*(hurried.last_message(GenerationAbandoned, KEY) for _ in range(50)))
    await asyncio.sleep(0)
    await nats_server.kill()

    with pytest.raises(NatsError):
        async with asyncio.timeout(WITHIN_S):
            await asking
            await hurried.last_message(GenerationAbandoned, KEY)


async def test_a_leader_that_still_stores_a_message_refuses_it_for_a_moment(tmp_path: Path) -> None:
    """A message that is repeated after a timeout may arrive while the first copy is being stored."""
    async with three_servers(tmp_path) as servers, servers.connection() as bus:
        refusals = list[APIError]()
        for generation in range(1, 21):
            message = abandoned(generation=generation)
            tries = [bus.publisher.publish_once(message) for _ in range(5)]
            ends = await asyncio.gather(*tries, return_exceptions=True)
            refusals += [end for end in ends if isinstance(end, APIError)]
            assert await bus.publish(message) == generation
        assert refusals and {each.err_code for each in refusals} == {STILL_STORING}
        assert all(map(is_transient, refusals))


async def test_a_missing_message_is_not_retried(bus: Bus) -> None:
    async with asyncio.timeout(WITHIN_S):
        assert await bus.last_message(GenerationAbandoned, KEY) is None
        assert await bus.last_sequence(GenerationAbandoned, KEY) == 0
        with pytest.raises(NotFoundError):
            await programs.read_description(bus, "default", DIGEST)


async def test_a_request_without_permission_is_not_retried(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        monitor = await wire.connect(server.url, MONITOR, credentials(MONITOR))
        monitor.js._timeout = FOR_EVER_S
        with pytest.raises(Refused):
            async with asyncio.timeout(WITHIN_S):
                await monitor.last_message(GenerationAbandoned, KEY)
        await monitor.close()


def test_only_transient_errors_are_retried() -> None:
    still_storing = APIError(code=409, err_code=STILL_STORING)
    for error in (ConnectionLost(), ServiceUnavailableError(), NatsError(), still_storing):
        assert is_transient(error)
    for error in (NotFoundError(), KeyNotFoundError(), Refused("weir.x"), APIError(code=400)):
        assert not is_transient(error)
