"""Tests of `weir events`: the messages of all streams, in the order in which they were stored."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import aclosing
from datetime import UTC, datetime

import msgspec
import pytest

from services.allocator.job_views import JobView
from services.cli.events import print_by_day
from services.console.bus_reader import read_entries
from services.console.log_entry import Entry, entry_filters
from services.console.text.cells import Terminal
from shared.auth.permissions import bucket_subject
from shared.bus import bus as wire
from shared.bus.bus import Bus
from shared.bus.consumer import StoredMessage
from shared.bus.log_reader import StreamQuery
from shared.bus.subjects import FACTS, JOBS, ORDERS, encode_message, subject_of
from shared.messages import (
    CancelRequested,
    CapacityChanged,
    CheckpointSaved,
    Message,
)
from tests.cli.conftest import Prompt, closed
from tests.conftest import NatsServer, connected
from tests.shared.sample_messages import JOB, one_of_each

BOTH = [StreamQuery(stream, entry_filters(stream)) for stream in (ORDERS, FACTS)]


def saved(step: int) -> CheckpointSaved:
    return CheckpointSaved(**JOB, step=step, samples=step, path="/c", seconds=0.5)


async def told(bus: Bus, *messages: Message) -> None:
    for message in messages:
        await bus.publish(message)


async def test_every_kind_is_shown_in_the_order_in_which_it_was_stored(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await told(bus, *one_of_each())

    said = await prompt("events", "--nats", nats_url)

    assert said.code == 0
    assert len(said.out.splitlines()) == len(one_of_each())
    documents = [
        json.loads(line)
        for line in (await prompt("events", "--nats", nats_url, "--json")).out.splitlines()
    ]
    assert [d["fact"] for d in documents] == [m.__struct_config__.tag for m in one_of_each()]


async def test_events_of_one_job_are_only_its_own(bus: Bus, nats_url: str, prompt: Prompt) -> None:
    capacity = [message for message in one_of_each() if isinstance(message, CapacityChanged)]
    await told(bus, CancelRequested(job="clicks"), saved(1), *capacity)

    said = await prompt("events", "--nats", nats_url, "--job", "digits", "--json")

    assert [json.loads(line)["message"]["step"] for line in said.out.splitlines()] == [1]


async def told_with_a_pause(bus: Bus, first: Message, second: Message) -> str:
    """Publish two messages; return a time between them, in UTC."""
    await told(bus, first)
    await asyncio.sleep(0.05)
    between = datetime.now(UTC).isoformat()
    await asyncio.sleep(0.05)
    await told(bus, second)
    return between


async def test_an_age_is_relative_to_now(bus: Bus, nats_url: str, prompt: Prompt) -> None:
    await told(bus, saved(1))

    since, until = [
        await prompt("events", "--nats", nats_url, how, "1h", "--json")
        for how in ("--since", "--until")
    ]

    assert json.loads(since.out)["message"]["step"] == 1 and until.out == ""


async def test_events_before_since_are_left_out(bus: Bus, nats_url: str, prompt: Prompt) -> None:
    between = await told_with_a_pause(bus, saved(1), saved(2))

    said = await prompt("events", "--nats", nats_url, "--since", between, "--json")

    assert [json.loads(line)["message"]["step"] for line in said.out.splitlines()] == [2]


async def test_events_after_until_are_left_out(bus: Bus, nats_url: str, prompt: Prompt) -> None:
    between = await told_with_a_pause(bus, saved(1), saved(2))

    said = await prompt("events", "--nats", nats_url, "--until", between, "--json")

    assert [json.loads(line)["message"]["step"] for line in said.out.splitlines()] == [1]


async def test_only_the_requested_kinds_are_shown(bus: Bus, nats_url: str, prompt: Prompt) -> None:
    await told(bus, *one_of_each())

    said = await prompt("events", "--nats", nats_url, "--kind", "allocation,resumed", "--json")

    assert [json.loads(line)["fact"] for line in said.out.splitlines()] == [
        "allocation.decided",
        "training.resumed",
    ]


@pytest.mark.usefixtures("bus")
async def test_node_events_of_a_job_are_wrong_use(nats_url: str, prompt: Prompt) -> None:
    said = await prompt("events", "--nats", nats_url, "--kind", "capacity", "--job", "digits")

    assert said.code == 2 and "is about nodes or services, not jobs: leave out --job" in said.err


async def test_events_of_an_unknown_job_name_the_known_ones(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    view = JobView(job="digits", namespace="default", uid=7, phase="Pending")
    await bus.js.publish(bucket_subject(JOBS, "default.digits"), msgspec.json.encode(view))

    typed = ("events", "--nats", nats_url, "--job")
    slip, other = await prompt(*typed, "digtis"), await prompt(*typed, "digits", "-n", "red")

    assert (slip.code, slip.out) == (other.code, other.out) == (1, "")
    assert slip.err == "weir events: there is no job digtis; there are default/digits\n"
    assert other.err.startswith("weir events: there is no job red/digits; there are none")


async def test_a_known_job_without_matching_events_is_no_error(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await told(bus, saved(1))

    said = await prompt(
        "events", "--nats", nats_url, "--job", "digits", "--kind", "resumed", "--since", "1s"
    )

    assert said == (0, "", "")


async def test_dead_letters_are_shown_on_request(bus: Bus, nats_url: str, prompt: Prompt) -> None:
    async def unheard(heard: StoredMessage) -> None: ...

    await bus.js.publish("weir.job.cancel.default.digits", b"not json")
    service = await connected(nats_url, "service")
    await service.follow([CancelRequested], unheard, {})
    await closed(service)

    without, with_dead = (
        await prompt("events", "--nats", nats_url),
        await prompt("events", "--nats", nats_url, "--dead"),
    )

    assert "could not be read" not in without.out
    assert (
        "weir.job.cancel.default.digits (sequence 1, published by unknown) could not be read"
        in with_dead.out
    )


async def test_an_unreadable_batch_does_not_hide_later_messages(bus: Bus) -> None:
    for number in range(300):
        await bus.js.publish("weir.training.saved.default.digits", b"%d" % number)
    await told(bus, saved(1))

    assert [e.message async for e in read_entries(bus, BOTH, follow=False)] == [saved(1)]


@pytest.mark.usefixtures("brief_heartbeat")
async def test_following_continues_after_a_server_restart(
    bus: Bus, nats_server: NatsServer
) -> None:
    await told(bus, saved(1))
    async with asyncio.timeout(60), aclosing(read_entries(bus, BOTH, follow=True)) as entries:
        seen = [(await anext(entries)).message]
        coming = asyncio.ensure_future(anext(entries))
        await told(bus, saved(2))
        seen.append((await coming).message)
        coming = asyncio.ensure_future(anext(entries))
        await nats_server.kill()
        await nats_server.start()
        other = await connected(nats_server.url, "other")
        await other.publish(saved(3))
        seen.append((await coming).message)
        await other.close()

    assert seen == [saved(1), saved(2), saved(3)]


async def test_messages_stored_during_an_outage_are_shown_in_order(
    bus: Bus, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "RETRY_S", 8.0)  # s; reconnects after the messages
    late = await connected(nats_server.url, "late")
    await told(bus, saved(1))
    async with asyncio.timeout(60), aclosing(read_entries(late, BOTH, follow=True)) as entries:
        assert (await anext(entries)).message == saved(1)
        coming = asyncio.ensure_future(anext(entries))
        await nats_server.kill()
        await nats_server.start()
        await told(bus, saved(2))
        many = [saved(step) for step in range(3, 4000)]
        await asyncio.gather(
            *(bus.js.publish(subject_of(said), encode_message(said)) for said in many)
        )
        await told(bus, CancelRequested(job="digits"))

        heard = [(await coming).message] + [
            (await anext(entries)).message for _ in range(len(many) + 1)
        ]

    await late.close()
    assert heard == [saved(2), *many, CancelRequested(job="digits")]


def test_a_terminal_shows_each_day_once() -> None:
    day_s, console = (
        86_400.0,
        Terminal(width=80, file=io.StringIO(), highlight=False, soft_wrap=True),
    )
    put = print_by_day(console)
    with console.capture() as shown:
        for number, stored_s in enumerate((0.0, 60.0, day_s), 1):
            put(Entry(saved(number), "s", FACTS, number, stored_s))

    lines = shown.get().splitlines()
    days = [line.split()[0] for line in lines if "─" in line]
    assert len(days) == len(set(days)) == 2 and all(
        day.startswith(("1969-12-31", "1970-01-0")) for day in days
    )
    assert sum("training.saved" in line for line in lines) == 3 and max(map(len, lines)) <= 80
