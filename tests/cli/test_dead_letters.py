"""Tests of `weir dead-letters`: list, show, and republish a message that is readable again."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from shared.auth.permissions import ALLOCATOR, LAUNCHER, OPERATOR, SETUP
from shared.bus import bus as wire
from shared.bus import dead_letters, subjects
from shared.bus.bus import Bus
from shared.messages import CancelRequested, GenerationAbandoned, Message
from tests.cli.conftest import Prompt
from tests.cli.test_submitter import sign_in
from tests.conftest import connected
from tests.shared.listeners import Ears
from tests.shared.sample_messages import abandoned
from tests.shared.secured_server import credentials, guarded

WHY = "Object contains unknown field `colour`"


async def buried(bus: Bus, said: Message, why: str = WHY) -> None:
    """Publish a message and a dead letter about it, as a service does that cannot read it."""
    sequence, subject = await bus.publish(said), subjects.subject_of(said)
    letter = dead_letters.create_dead_letter(
        subjects.ORDERS, sequence, subject, subjects.encode_message(said), bus.name, why
    )
    await bus.publisher.store_message(
        dead_letters.dead_letter_subject(subject), msgspec.json.encode(letter), {}
    )


async def test_a_dead_letter_line_has_time_subject_and_error(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await buried(bus, abandoned())

    said = await prompt("dead-letters", "--nats", nats_url)

    (line,) = said.out.splitlines()
    number, day, time, subject, why = line.split(maxsplit=4)
    assert (said.code, number, subject, why) == (
        0,
        "1",
        "weir.cluster.abandoned.default.digits",
        WHY,
    )
    assert len(day) == 10 and len(time) == 8


async def test_a_dead_letter_as_json_is_complete(bus: Bus, nats_url: str, prompt: Prompt) -> None:
    await buried(bus, abandoned())

    (line,) = (await prompt("dead-letters", "--nats", nats_url, "--json")).out.splitlines()

    letter = json.loads(line)
    assert letter["letter"] == letter["sequence"] == 1 and letter["stream"] == subjects.ORDERS
    assert json.loads(letter["body"])["fact"] == "cluster.abandoned" and letter["said_by"] == "test"


async def test_without_dead_letters_that_is_reported(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    said = await prompt("dead-letters", "--nats", nats_url)

    assert said == (0, "", "there are no dead letters\n")


async def test_one_dead_letter_is_shown_with_its_body(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await buried(bus, abandoned())

    said = await prompt("dead-letters", "show", 1, "--nats", nats_url)

    assert said.code == 0 and f"error:    {WHY}\nbody:     {{" in said.out


@pytest.mark.parametrize("what", ["show", "put-back"])
async def test_a_missing_dead_letter_is_an_error(
    bus: Bus, nats_url: str, prompt: Prompt, what: str
) -> None:
    said = await prompt("dead-letters", what, 7, "--nats", nats_url)

    assert said.code == 1 and "there is no dead letter 7" in said.err


@pytest.mark.parametrize("typed", [["show"], ["put-back"], ["list", 3]])
async def test_wrong_use_ends_with_2(prompt: Prompt, typed: list[object]) -> None:
    assert (await prompt("dead-letters", *typed)).code == 2


async def test_a_readable_dead_letter_is_republished(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await buried(bus, abandoned())
    ears, service = Ears(), await connected(nats_url, "service")
    await service.follow([GenerationAbandoned], ears, {subjects.ORDERS: 1})

    said = await prompt("dead-letters", "put-back", 1, "--nats", nats_url)
    await ears.until(1)

    assert said == (
        0,
        "put back: weir.cluster.abandoned.default.digits is number 2 of weir-orders\n",
        "",
    )
    assert [(h.message, h.sequence) for h in ears.heard] == [(abandoned(), 2)]
    await service.close()


async def test_republishing_twice_stores_one_message(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await buried(bus, abandoned())

    for _ in range(2):
        assert (await prompt("dead-letters", "put-back", 1, "--nats", nats_url)).code == 0

    assert (await bus.js.stream_info(subjects.ORDERS)).state.messages == 2


async def test_an_unreadable_dead_letter_is_not_republished(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await bus.js.publish("weir.job.cancel.default.digits", b"not json")
    await bus.follow([CancelRequested], Ears(), {})

    said = await prompt("dead-letters", "put-back", 1, "--nats", nats_url)

    assert said.code == 1 and "it still cannot be read, and is not put back" in said.err
    assert (await bus.js.stream_info(subjects.ORDERS)).state.messages == 1


async def test_a_dead_bucket_entry_is_not_republished(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await bus.add_dead_entry(subjects.LEDGER, "default.digits", 3, b"{", "Input data was truncated")

    said = await prompt("dead-letters", "put-back", 1, "--nats", nats_url)

    assert said.code == 1 and "is an entry of a bucket" in said.err


@pytest.mark.parametrize(("user", "code"), [(OPERATOR, 0), (ALLOCATOR, 1), (SETUP, 1)])
async def test_only_the_operator_may_republish(
    tmp_path: Path, prompt: Prompt, monkeypatch: pytest.MonkeyPatch, user: str, code: int
) -> None:
    async with guarded(tmp_path) as server:
        service = await wire.connect(server.url, LAUNCHER, credentials(LAUNCHER))
        await buried(service, abandoned())
        await service.close()
        sign_in(tmp_path, monkeypatch, server, credentials(user))

        said = await prompt("dead-letters", "put-back", 1)

    assert said.code == code and ("these credentials may not" in said.err) == bool(code), said
