"""Tests of `weir why` on a real server's log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.bus import bus as wire
from shared.bus.bus import Bus
from shared.messages import Message
from tests.cli.conftest import Prompt
from tests.cli.test_submitter import sign_in
from tests.console.why.story import Growth
from tests.shared.secured_server import credentials, guarded


async def told(bus: Bus) -> Growth:
    """Publish the messages of the story. Each gets the sequence that it has in the story."""
    grown = Growth()
    for entry in grown.log.entries:
        assert isinstance(entry.message, Message)
        assert await bus.publish(entry.message) == entry.sequence
    return grown


async def asked(prompt: Prompt, *words: object) -> dict[str, list[dict[str, Any]]]:
    said = await prompt("why", *words, "--json")
    assert said.code == 0, said.err
    rows = [json.loads(line) for line in said.out.splitlines()]
    return {
        part: [row for row in rows if row["part"] == part] for part in ("cause", "event", "effect")
    }


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [row["event"] for row in rows]


async def test_why_shows_causes_and_effects(bus: Bus, nats_url: str, prompt: Prompt) -> None:
    grown = await told(bus)

    found = await asked(prompt, f"f{grown.trains2.sequence}", "--nats", nats_url)

    assert names(found["cause"]) == ["f17", "o6", "f19", "o7", "f23", "o8", "f24"]
    assert names(found["event"]) == ["f25"] and found["event"][0]["because"] == ["o8", "f24"]
    assert found["cause"][0]["because"] == ["the world"]
    assert names(found["effect"]) == ["f26", "f27", "o9"]


async def test_why_finds_an_event_by_its_id(bus: Bus, nats_url: str, prompt: Prompt) -> None:
    grown = await told(bus)

    for entry in (grown.job.requested, grown.freed, grown.trains2):
        assert isinstance(entry.message, Message)
        found = await asked(prompt, entry.message.id(), "--nats", nats_url)
        assert [(row["stream"], row["sequence"]) for row in found["event"]] == [
            (entry.stream, entry.sequence)
        ]


async def test_why_leads_from_a_node_change_to_the_growth(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    grown = await told(bus)

    found = await asked(prompt, f"f{grown.freed.sequence}", "--nats", nats_url)

    assert {"o6", "o7", "o8", "f25"} <= set(names(found["effect"]))


async def test_why_prints_a_table(bus: Bus, nats_url: str, prompt: Prompt) -> None:
    await told(bus)

    said = await prompt("why", "o6", "--nats", nats_url)

    assert said.code == 0 and "\ncauses\n" in said.out and "\neffects\n" in said.out
    assert (
        "gets 1 chief + 1 ps + 2 workers on 1 node, batch 32: grow; learning rate 1 -> 0.5"
        " of the" in said.out
    )


@pytest.mark.usefixtures("bus")
@pytest.mark.parametrize(
    "name", ["o1", "f99", "digits", "7.training.resumed.2.-.11", "n1-uid.nothing"]
)
async def test_why_of_an_unknown_event_names_where_to_look(
    nats_url: str, prompt: Prompt, name: str
) -> None:
    said = await prompt("why", name, "--nats", nats_url)

    assert said.code == 1 and f"there is no event {name!r}" in said.err
    assert "`weir events` shows the name of each event" in said.err


async def test_why_shows_a_submitter_only_its_namespace(
    prompt: Prompt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guarded(tmp_path) as server:
        operator = await wire.connect(server.url, "anybody", credentials("operator"))
        await told(operator)
        await operator.close()
        sign_in(tmp_path, monkeypatch, server, credentials("submitter", "default.any"))

        found = await asked(prompt, "o6", "-n", "default")
        refused = await prompt("why", "o6")

    assert names(found["cause"]) == [] and found["event"][0]["because"] == [
        "not known"
    ]  # a submitter cannot read node facts
    assert refused.code == 1 and "may not" in refused.err
