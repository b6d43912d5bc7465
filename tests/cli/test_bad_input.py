"""Tests of commands on a bus with unreadable messages."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.console.log_entry import Entry
from services.console.text.event_lines import event_json, event_line
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.subjects import JOBS
from shared.messages import CancelRequested, DeadLetter, JobAccepted, JobFinished, Message
from tests.cli.conftest import Prompt
from tests.cli.test_submit import GOOD, PROGRAM
from tests.shared.malformed import DEEP, odd_messages
from tests.shared.sample_messages import JOB, abandoned, one_of_each, request

NONSENSE = (b"", b"\xff", b"[]", b"{}", b"null", DEEP)


async def talk(bus: Bus, *prefixes: str) -> None:
    for prefix in prefixes:
        for number, body in enumerate(NONSENSE):
            await bus.js.publish(f"{prefix}.default.digits", body)
            await bus.js.publish(f"{prefix}.{number}", body)


EVERYWHERE = (
    *(f"weir.{tag}" for tag in subjects.BY_TAG),
    "weir.job.wished",
    "weir-dead.weir.job.requested",
)


async def test_events_skips_unreadable_messages(bus: Bus, nats_url: str, prompt: Prompt) -> None:
    for message in one_of_each():
        await talk(bus, *EVERYWHERE[:: len(EVERYWHERE) // 3])
        await bus.publish(message)

    said = await prompt("events", "--nats", nats_url, "--json", "--dead")

    assert said.code == 0, said.err
    assert [json.loads(shown)["fact"] for shown in said.out.splitlines()] == list(subjects.BY_TAG)


async def test_events_of_one_job_skips_unreadable_messages(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await talk(bus, *EVERYWHERE)
    await bus.publish(abandoned())

    said = await prompt("events", "--nats", nats_url, "--json", "--dead", "--job", "digits")

    assert said.code == 0, said.err
    assert [json.loads(shown)["fact"] for shown in said.out.splitlines()] == ["cluster.abandoned"]


async def test_jobs_leaves_out_unreadable_entries(bus: Bus, nats_url: str, prompt: Prompt) -> None:
    views = await bus.bucket(JOBS)
    for number, body in enumerate(NONSENSE):
        await views.put(f"default.odd-{number}", body or b" ")
    await talk(bus, "weir.job.accepted")

    shown, listed = (
        await prompt("jobs", "--nats", nats_url),
        await prompt("jobs", "--nats", nats_url, "--json"),
    )

    assert (shown.code, listed.code, listed.out) == (0, 0, ""), shown.err + listed.err
    assert "there are no jobs" in shown.err


async def test_cancel_sees_the_end_after_unreadable_messages(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    uid = await bus.request(request())
    await bus.publish(JobAccepted(**{**JOB, "uid": uid}, request=request(), accepted_s=1.0))
    asking = asyncio.ensure_future(
        prompt("cancel", "digits", "--nats", nats_url, "--timeout", "60s")
    )
    async with asyncio.timeout(60):
        while await bus.last_message(CancelRequested, "default.digits") is None:
            await asyncio.sleep(0.01)
    await talk(bus, "weir.job.finished", "weir.job.cancel")
    await bus.publish(JobFinished(**{**JOB, "uid": uid}, outcome="cancelled"))

    said = await asking

    assert (said.code, said.out) == (0, "job default/digits is cancelled\n"), said.err


async def test_submit_sees_the_answer_after_unreadable_messages(
    bus: Bus, nats_url: str, prompt: Prompt, tmp_path: Path
) -> None:
    (tmp_path / "digits.py").write_text(PROGRAM)
    (tmp_path / "job.yaml").write_text(f"{GOOD.replace('train', 'digits')}")
    await talk(bus, *EVERYWHERE)

    said = await prompt("submit", tmp_path / "job.yaml", "--nats", nats_url, "--timeout", "0.5s")

    assert said.code == 1 and "no answer to request" in said.err


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(odd_messages(), st.integers(0, 2**63 - 1), st.floats(0, 4e9))
def test_every_readable_message_can_be_shown(said: Message, sequence: int, stored_s: float) -> None:
    entry = Entry(said, subjects.subject_of(said), "weir-orders", sequence, stored_s)

    assert event_line(entry, None).plain.count("\n") == 0
    assert json.loads(event_json(entry))["sequence"] == sequence


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\nb", "[bold]x", "\u202e"])
def test_dead_letters_are_shown_without_control_characters(text: str) -> None:
    letter = DeadLetter(stream=text, sequence=1, subject=text, error=text, body=text, said_by=text)

    assert event_line(Entry(letter, "s", "weir-dead", 1, 0.0), None).plain.isprintable()
