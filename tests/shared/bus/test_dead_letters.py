"""Tests of dead letters: each can be stored, whatever it is about, and each is counted.

It does not matter which service stored it.
"""

from __future__ import annotations

import asyncio

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from shared.bus import dead_letters
from shared.bus.bus import Bus
from shared.bus.dead_letters import LETTERS, DeadLetterCount
from shared.bus.subjects import LEDGER
from shared.messages import DeadLetter
from shared.runtime.process import cancel_tasks

MAX_COMMAND = 4096


def letter(**fields: object) -> DeadLetter:
    known = {
        "stream": "weir-orders",
        "sequence": 3,
        "subject": "weir.job.x",
        "source": "nobody",
        "error": "bad",
    }
    return dead_letters.create_dead_letter(**{**known, "body": b"{", **fields})  # type: ignore[arg-type]


def test_a_dead_letter_has_the_position_of_the_message_and_the_error() -> None:
    assert letter() == DeadLetter(
        stream="weir-orders",
        sequence=3,
        subject="weir.job.x",
        error="bad",
        body="{",
        said_by="nobody",
    )


def test_bytes_that_are_no_text_are_escaped() -> None:
    assert letter(body=b"\xff \xc3\xbc").body == "\\xff ü"


def test_a_long_body_is_cut_and_its_length_is_given() -> None:
    kept = letter(body=b"x" * 100_000, error="y" * 3_000)

    assert kept.body == "x" * 4_096 + "... (100000 bytes in all)"
    assert kept.error == "y" * 1_000 + "... (3000 characters in all)"


def test_a_dead_letters_subject_contains_the_subject_of_its_message() -> None:
    assert (
        dead_letters.dead_letter_subject("weir.job.requested.default.digits")
        == "weir-dead.weir.job.requested.default.digits"
    )


def test_a_subject_that_is_too_long_is_shortened_by_whole_tokens() -> None:
    assert (
        dead_letters.dead_letter_subject("weir.job.requested." + "a" * 4_000)
        == "weir-dead.weir.job.requested"
    )
    assert dead_letters.dead_letter_subject("weir.job." + ".".join(["ab"] * 2_000)).endswith(".ab")


TEXT = st.text(st.characters()) | st.text(st.characters(), min_size=1).map(
    lambda text: text * 5_000
)


@given(TEXT, st.binary() | st.binary(min_size=1).map(lambda body: body * 200_000), TEXT, TEXT)
def test_a_dead_letter_is_always_within_the_size_limit(
    subject: str, body: bytes, said_by: str, error: str
) -> None:
    stored = msgspec.json.encode(letter(subject=subject, body=body, source=said_by, error=error))

    assert len(stored) < dead_letters.LETTER_BYTES
    assert msgspec.json.decode(stored, type=DeadLetter).sequence == 3


@given(st.text(st.characters(codec="utf-8")).map(lambda text: text * 200))
def test_a_dead_letters_subject_is_always_within_the_length_limit(subject: str) -> None:
    assert len(dead_letters.dead_letter_subject(subject).encode()) < MAX_COMMAND / 4


def test_each_namespace_has_its_own_dead_letter_budget() -> None:
    budget = dead_letters.LetterBudget(at_once=3, per_day=24)

    assert [budget.take("team-a", 0.0) for _ in range(5)] == [True, True, True, False, False]
    assert budget.take("team-b", 0.0) and budget.refused == {"team-a": 2}
    assert budget.take("team-a", 3_600.0) and not budget.take("team-a", 3_600.0)  # one an hour


def test_a_dead_letter_has_the_namespace_of_its_message() -> None:
    subjects = ("weir.job.requested.team-a.digits", "$KV.weir-ledger.team-a.digits")

    assert {dead_letters.namespace_of(subject) for subject in subjects} == {"team-a"}
    assert {
        dead_letters.namespace_of(each)
        for each in ("weir.capacity.changed.node", "weir.job.requested.x")
    } == {"-"}


async def number(letters: DeadLetterCount, wanted: int) -> None:
    async with asyncio.timeout(30):
        while letters.number != wanted:
            await asyncio.sleep(0.01)


async def test_dead_letters_of_other_services_are_counted(bus: Bus, nats_url: str) -> None:
    letters = DeadLetterCount()
    assert list(letters.measures()) == [], "a number that jumps from 0 would count as many letters"
    counting = asyncio.ensure_future(letters.keep_counting(bus.js, every_s=0.02))
    try:
        await number(letters, 0)
        await bus.add_dead_entry(
            LEDGER, "default.digits", 7, b"{", "it is torn"
        )  # as a trainer does
        await number(letters, 1)
        await bus.add_dead_entry(
            LEDGER, "default.digits", 7, b"{", "it is torn"
        )  # the same again, which the server drops
        await bus.add_dead_entry(LEDGER, "default.digits", 8, b"[", "it is torn")
        await number(letters, 2)
    finally:
        await cancel_tasks(counting)

    (measure,) = letters.measures()
    assert (measure.family, measure.series) == (LETTERS, {(): 2.0})
