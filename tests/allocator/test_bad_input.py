"""Tests of bad input: the allocator answers or dead-letters it, and decides the next job."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.allocator.decide import decide
from services.allocator.state.state import CONSUMED, State, apply
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.messages import AllocationDecided, CapacityChanged, JobAccepted, JobRejected, Message
from tests.allocator.builders import AT_ONCE, node, request, resumed, size
from tests.allocator.test_service import QUICK, allocator, last, soon, with_program
from tests.shared.malformed import Poison, odd_messages, poison, readable
from tests.shared.sample_messages import one_of_each


class Crowd:
    """The users of the allocator. `asked`: the number of jobs requested so far."""

    def __init__(self, bus: Bus) -> None:
        self.bus, self.asked = bus, 0

    async def is_answered(self) -> None:
        self.asked += 1
        uid = await self.bus.request(request(f"good-{self.asked}"))
        rejected = await last(self.bus, JobRejected, f"default.good-{self.asked}")
        assert rejected.uid == uid and "the store has no program" in rejected.reasons[0]

    async def letters(self) -> int:
        return (await self.bus.js.stream_info(subjects.DEAD)).state.messages


def buries(subject: str) -> bool:
    """Return True if the allocator dead-letters unreadable messages of this subject.

    These are the kinds that it consumes, and subjects of no kind.
    """
    try:
        return subjects.kind_of(subject) in CONSUMED
    except subjects.UnreadableMessage:
        return True


@pytest.fixture
async def crowd(nats_url: str, person: Bus) -> AsyncIterator[Crowd]:
    async with allocator(nats_url):
        yield Crowd(person)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(said=st.lists(poison(), min_size=5, max_size=30))
async def test_the_launcher_dead_letters_unreadable_messages_and_continues(
    crowd: Crowd, said: list[Poison]
) -> None:
    before = await crowd.letters()
    for subject, body in said:
        await crowd.bus.js.publish(subject, body)

    await crowd.is_answered()

    unread = [subject for subject, body in said if buries(subject) and not readable(subject, body)]
    async with asyncio.timeout(60):
        while await crowd.letters() != before + len(unread):
            await asyncio.sleep(0.01)


WISHES: dict[str, dict[str, Any]] = {
    "unknown fields": {f"field-{number}": 1 for number in range(40_000)},
    "a long value": {"policy": "x" * 900_000},
    "a long part": {"image": "x" * 900_000},
    "a long list": {
        "volumes": [{"name": f"v{n}", "mount_path": "/", "claim": "c"} for n in range(9_000)]
    },
    "a long name": {"job": "x" * 900_000},
    "huge numbers": {"workers": {"start": 10**12, "min": 10**12, "max": 10**15}},
    "numbers beyond reason": {"workers": {"start": 10**30, "min": 1, "max": 10**30}},
    "a long digit": {"epochs": 10**400},
}


@pytest.mark.parametrize("wish", WISHES)
async def test_a_huge_invalid_request_gets_a_short_answer(crowd: Crowd, wish: str) -> None:
    await crowd.bus.publish(node(cpu=3))
    fields = msgspec.to_builtins(await with_program(crowd.bus, job="huge")) | WISHES[wish]
    ack = await crowd.bus.js.publish("weir.job.requested.default.huge", json.dumps(fields).encode())

    async def answered() -> JobRejected | JobAccepted | None:
        for number in range(
            ack.seq + 1, (await crowd.bus.js.stream_info(subjects.ORDERS)).state.last_seq + 1
        ):
            raw = await crowd.bus.js.get_msg(subjects.ORDERS, number)
            said = subjects.decode_message(str(raw.subject), raw.data or b"")
            if isinstance(said, JobRejected | JobAccepted) and said.uid == ack.seq:
                return said
        return None

    answer = await soon(answered)
    assert isinstance(answer, JobRejected) and len(subjects.encode_message(answer)) < 10_000, str(
        answer
    )[:300]
    await crowd.is_answered()


async def test_a_job_with_a_foreign_message_on_its_subject_is_decided(
    nats_url: str, person: Bus
) -> None:
    await person.publish(node(cpu=3))
    async with allocator(nats_url, msgspec.structs.replace(QUICK, echo_s=0.3)):
        uid = await person.request(await with_program(person))
        assert size(await last(person, AllocationDecided)) == (1, 1)
        await person.publish(resumed(1, uid=uid))
        covered = await person.js.publish("weir.allocation.decided.default.mnist", b"{")
        await person.publish(node("n2", cpu=9))

        assert (await last(person, AllocationDecided, past=covered.seq)).generation == 2


@settings(max_examples=200, deadline=None)
@given(said=st.lists(odd_messages(), max_size=12), now=st.floats(0, 1e10))
def test_any_readable_messages_can_be_decided_on(said: list[Message], now: float) -> None:
    known = [m for m in one_of_each() if isinstance(m, JobAccepted | CapacityChanged)]
    state = State()
    for sequence, message in enumerate([*known, *said], 1):
        state = apply(state, message, "weir-orders", sequence, float(sequence))

    for action in decide(state, now, AT_ONCE).actions:
        assert subjects.decode_message(subjects.subject_of(action), subjects.encode_message(action))
