"""Tests of `weir explain` on a real server's log: now, and for a time in the past."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime

import msgspec
import pytest

from services.allocator import snapshot
from services.allocator.job_views import JobView
from services.allocator.state.state import State, apply
from services.console import log_history
from shared.auth.permissions import bucket_subject
from shared.bus import subjects
from shared.bus.bus import Bus
from shared.bus.subjects import FACTS, JOBS, ORDERS
from shared.messages import AllocationDecided, JobRejected, Message
from tests.allocator.builders import UID, Story, accepted, node, own, request, resumed
from tests.cli.conftest import Prompt
from tests.conftest import NatsServer
from tests.shared.sample_messages import one_of_each

APART_S = 0.05
"""Seconds between messages of two streams, if the order in which they are stored matters."""


@pytest.fixture(autouse=True)
def by_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the allocator's policy to config-manager, the simplest policy that grows jobs."""
    monkeypatch.setenv("WEIR_ALLOCATOR_POLICY", "config-manager")


async def told(bus: Bus, *messages: Message) -> None:
    for message in messages:
        await bus.publish(message)
        await asyncio.sleep(APART_S)


async def started(bus: Bus) -> None:
    """Publish the messages of a running job with one ps and one worker that fills its node."""
    first = Story().hear(node(cpu=3), accepted()).decided()
    listed = node(cpu=3, free=0, own=own("mnist", *first.tasks), observed_s=1.0)
    await told(
        bus, node(cpu=3), accepted(), first, msgspec.structs.replace(listed, seen="1"), resumed(1)
    )


async def test_explain_shows_size_reason_and_remedies(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await started(bus)

    said = await prompt("explain", "mnist", "--nats", nats_url)

    lines = [line.strip() for line in said.out.splitlines()]
    assert (said.code, said.err) == (0, "") and lines[0].startswith("default/mnist at ")
    assert lines[1].startswith("has        1 ps, 1 worker, batch 32, with the chief 3 cpu")
    assert (
        lines[4].startswith("after job.accepted at ")
        and "now        no node has room for another ps" in lines
    )
    assert any(line.startswith("for more   one more node like n1") for line in lines)


async def test_explain_shows_a_past_moment(bus: Bus, nats_url: str, prompt: Prompt) -> None:
    await started(bus)
    then = datetime.fromtimestamp(time.time(), UTC).isoformat()
    await asyncio.sleep(APART_S)
    await told(bus, node("n2", cpu=4))

    before = await prompt("explain", "mnist", "--nats", nats_url, "--json", "--at", then)
    after = await prompt("explain", "mnist", "--nats", nats_url, "--json")

    was, is_ = (json.loads(said.out) for said in (before, after))
    assert was["why"] == "no node has room for another ps" and was["at_s"] < is_["at_s"]
    assert is_["why"].startswith(
        "will have 2 ps and 4 workers, if still wanted and there is room: "
    )
    assert is_["until_s"] > is_["at_s"]
    assert [means["changes"][0]["what"] for means in is_["means"]] == ["waits"]


async def test_explain_before_the_acceptance_names_its_time(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await told(bus, msgspec.structs.replace(accepted(), accepted_s=time.time()))

    said = await prompt("explain", "mnist", "--nats", nats_url, "--at", "-10m")

    assert (
        said.code == 1
        and "there was no job default/mnist at" in said.err
        and "it was accepted at" in said.err
    )


async def test_explain_of_an_unknown_job_is_an_error(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await told(
        bus, accepted(), JobRejected(job="second", uid=9, reasons=("policy: there is none",))
    )

    unknown = await prompt("explain", "mnsit", "--nats", nats_url)
    refused = await prompt("explain", "second", "--nats", nats_url)

    assert unknown.code == 1 and unknown.err.endswith("it has default/mnist\n")
    assert refused.code == 1 and refused.err.endswith(
        "job default/second was refused: policy: there is none\n"
    )


async def test_explain_of_the_future_is_wrong_use(nats_url: str, bus: Bus, prompt: Prompt) -> None:
    said = await prompt("explain", "mnist", "--nats", nats_url, "--at", "2099-01-01")

    assert said.code == 2 and "is in the future" in said.err


async def test_explain_uses_the_snapshot_if_the_beginning_is_purged(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await started(bus)
    await remembered(bus)
    await bus.js.purge_stream(FACTS)
    await told(bus, node("n2", cpu=2))

    said = await prompt("explain", "mnist", "--nats", nats_url, "--json")
    found = json.loads(said.out)

    assert found["runs"]["nodes"] == {"n1": ["chief", "ps", "worker"]}
    assert "will have 2 ps and 2 workers" in found["why"]
    assert (
        found["notes"][0].startswith(f"{FACTS} begins with message 4:") and len(found["notes"]) == 2
    )


async def test_only_the_recent_part_of_a_long_log_is_read_and_the_cause_is_found(
    bus: Bus, nats_url: str, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    await started(bus)
    for timer in ("WINDOW_S", "MAX_DELAY_S"):
        monkeypatch.setenv(f"WEIR_ALLOCATOR_{timer}", "0")
    decided_s, grown = time.time(), await grows(bus)
    await remembered(bus)
    whole = json.loads((await prompt("explain", "mnist", "--nats", nats_url, "--json")).out)
    monkeypatch.setattr(log_history, "MANY_FACTS", 0)
    monkeypatch.setattr(log_history, "RECENT_S", 0.6)
    await asyncio.sleep(decided_s + 1.0 - time.time())

    late = json.loads((await prompt("explain", "mnist", "--nats", nats_url, "--json")).out)

    assert late["ground"]["event"] == whole["ground"]["event"]
    assert late["ground"]["event"]["message"]["node"] == "n2" and late["comes"] == whole["comes"]
    assert (
        grown.reason == late["ground"]["reason"]
        and len(late["notes"]) == 1
        and whole["notes"] == []
    )


async def grows(bus: Bus) -> AllocationDecided:
    """Publish a second node and the decision that gives it to the job; return the decision."""
    more = node("n2", cpu=2)
    first = (await bus.last_message(AllocationDecided, "default.mnist")).message
    story = Story().hear(node(cpu=3), accepted(), first, resumed(1), more)
    grown = msgspec.structs.replace(
        story.decided(), cause=more.id(), decided_s=time.time() + APART_S
    )
    await told(bus, more, grown)
    return grown


async def test_a_snapshot_newer_than_the_requested_time_is_not_used(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await started(bus)
    then = datetime.fromtimestamp(time.time(), UTC).isoformat()
    await asyncio.sleep(APART_S)
    await told(bus, node("n2", cpu=2))
    await remembered(bus)
    await bus.js.purge_stream(FACTS, seq=2)

    said = await prompt("explain", "mnist", "--nats", nats_url, "--json", "--at", then)
    found = json.loads(said.out)

    assert len(found["notes"]) == 1 and found["notes"][0].startswith(
        f"{FACTS} begins with message 2:"
    )
    assert "n2" not in said.out


async def remembered(bus: Bus) -> None:
    """Store a snapshot of the allocator's state, folded from both streams."""
    state = State()
    for stream in (ORDERS, FACTS):
        for sequence in range(1, (await bus.js.stream_info(stream)).state.last_seq + 1):
            raw = await bus.js.get_msg(stream, sequence)
            message = subjects.decode_message(raw.subject or "", raw.data or b"")
            state = apply(
                state, message, stream, sequence, raw.time.timestamp() if raw.time else 0.0
            )
    await snapshot.store_snapshot(bus, state)


async def test_explain_of_any_log_has_no_traceback(bus: Bus, nats_url: str, prompt: Prompt) -> None:
    await told(bus, *one_of_each())

    said = await prompt("explain", "digits", "--nats", nats_url)

    assert said.code in (0, 1) and "Traceback" not in said.err


@pytest.mark.parametrize("at", ["soon", "25:00"])
async def test_an_invalid_time_is_wrong_use(
    at: str, nats_server: NatsServer, prompt: Prompt
) -> None:
    said = await prompt("explain", "mnist", "--nats", nats_server.url, "--at", at)

    assert said.code == 2


async def test_explain_without_the_policy_shows_the_allocators_last_reason(
    bus: Bus, nats_url: str, prompt: Prompt
) -> None:
    await told(bus, node(cpu=3), accepted(request(policy="mine:fair")))
    said = JobView(
        job="mnist", namespace="default", uid=UID, phase="Pending", submitted_s=0.0, why="too small"
    )
    await bus.js.publish(bucket_subject(JOBS, "default.mnist"), msgspec.json.encode(said))

    lines = [
        line.strip()
        for line in (await prompt("explain", "mnist", "--nats", nats_url)).out.splitlines()
    ]

    assert "now        too small" in lines
    assert lines[-1].startswith("note       policy mine:fair (of default/mnist) is not known here")
