"""Tests of programs on a real server with accounts: no request reads another tenant's program.

A job can read its own program again.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from nats.errors import NoRespondersError

from services.trainer.pod import executor
from services.trainer.program import BadProgram
from shared.auth.permissions import (
    JOB,
    OPERATOR,
    SUBMITTER,
    chunk_subject,
    description_subject,
    inbox_prefix,
    program_stream,
)
from shared.bus import programs
from shared.bus.client import Refused
from shared.bus.programs import digest_of, meta_token, store_program
from shared.bus.subjects import program_bucket
from shared.messages import Program
from tests.conftest import NatsServer
from tests.shared import secured_server
from tests.shared.secured_server import Visitor, credentials, unlimited, visitor

SECRET, OWN, SIBLING = (
    f"def model(): {name!r}".encode() for name in ("team-a", "team-b", "sibling")
)
DIGEST = digest_of(OWN)
TEAM_A, TEAM_B = program_bucket("team-a"), program_bucket("team-b")
STREAM_A, STREAM_B = program_stream("team-a"), program_stream("team-b")
WIDE = (
    "$O.>",
    f"$O.{TEAM_A}.>",
    f"{description_subject(TEAM_A)}.*",
    f"{description_subject('*')}.*",
    f"{chunk_subject(TEAM_A)}.*",
    "*",
    ">",
)
BODIES: tuple[dict[str, Any] | None, ...] = (
    None,
    {"seq": 1},
    *({"last_by_subj": wide} for wide in WIDE),
    *({"next_by_subj": wide, "seq": 1} for wide in WIDE),
    *({"multi_last": [wide]} for wide in WIDE),
    {"batch": 10, "seq": 1},
    *({"batch": 10, "next_by_subj": wide, "seq": 1} for wide in WIDE),
    *({"batch": 10, "multi_last": [wide], "max_bytes": 1 << 20} for wide in WIDE),
)


class Guest(NamedTuple):
    """An attacker in team-b. `name` is the user name in its credentials and inboxes."""

    user: str
    name: str


GUESTS = (Guest(SUBMITTER, "submitter.team-b"), Guest(JOB, "job.team-b.mine"))
EACH = pytest.mark.parametrize("guest", GUESTS, ids=lambda guest: guest.user)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """Run a server on which team-a has a program, and team-b has two, one of them the job's."""
    async with secured_server.guarded(tmp_path) as running:
        async with visitor(running.url, credentials(OPERATOR)) as person:
            for namespace, body in (("team-a", SECRET), ("team-b", OWN), ("team-b", SIBLING)):
                await store_program(person.bus, namespace, digest_of(body), body)
        yield running


def of(guest: Guest) -> str:
    return credentials(guest.user, "team-b.mine", DIGEST)


async def answer(visitor: Visitor, subject: str, body: object = None) -> bytes:
    """Return the headers and content of an answer, or nothing if it is refused or missing."""
    try:
        raw = msgspec.json.encode(body) if body is not None else b""
        message = await visitor.client.request(subject, raw, timeout=60)
    except (Refused, NoRespondersError):
        return b""
    return repr(message.headers).encode() + message.data


def tells(text: bytes, program: bytes) -> bool:
    """Return whether an answer contains a program or its digest.

    The digest may have its form in a description or in a subject.
    """
    digest = digest_of(program)
    return any(part in text for part in (program, digest.encode(), meta_token(digest).encode()))


def gets() -> Iterator[str]:
    for stream in (STREAM_A, STREAM_B, "*", ">", "OBJ_*"):
        yield f"DIRECT.GET.{stream}"
        yield f"STREAM.MSG.GET.{stream}"
        for wide in (
            *WIDE,
            f"{description_subject(TEAM_B)}.*",
            f"{description_subject(TEAM_B)}.>",
            f"$O.{TEAM_B}.>",
        ):
            yield f"DIRECT.GET.{stream}.{wide}"
    yield f"DIRECT.GET.{STREAM_B}.{description_subject(TEAM_B)}.{meta_token(DIGEST)}"


@EACH
async def test_no_get_request_reads_another_tenants_program(
    server: NatsServer, guest: Guest
) -> None:
    """The subject, the body or both have wildcards.

    A job gets no other program of its namespace.
    """
    heard = []
    async with visitor(server.url, of(guest)) as attacker:
        for api in (attacker.client.api, "$JS.API"):
            for subject in gets():
                for body in BODIES if api == attacker.client.api else (None,):
                    heard.append(await answer(attacker, f"{api}.{subject}", body))

    assert [text for text in heard if tells(text, SECRET)] == []
    assert any(tells(text, OWN) for text in heard), "what is allowed is answered"
    assert any(tells(text, SIBLING) for text in heard) == (guest.user == SUBMITTER)


def consumers() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the subjects of requests for a consumer, and what their bodies ask for."""
    filters = (
        *WIDE,
        f"{description_subject(TEAM_B)}.*",
        f"$O.{TEAM_B}.>",
        f"{chunk_subject(TEAM_B)}.*",
    )
    for stream in (STREAM_A, STREAM_B, "*"):
        for wide in filters:
            for asked in (
                {"filter_subject": wide},
                {"filter_subjects": [wide, f"{description_subject(TEAM_B)}.*"]},
                {},
            ):
                yield f"{stream}.c.{wide}", asked
        for wide in WIDE:  # the subject is allowed, the filter in the body is not
            yield f"{stream}.c.{chunk_subject(TEAM_B)}.*", {"filter_subject": wide}
            yield (
                f"{stream}.c.{chunk_subject(TEAM_B)}.*",
                {"filter_subjects": [wide, f"{chunk_subject(TEAM_B)}.*"]},
            )
        yield f"{stream}.c", {}
        yield stream, {}


@EACH
async def test_no_consumer_reads_another_tenants_program(server: NatsServer, guest: Guest) -> None:
    """A consumer that can be created has contents of the own namespace, and no description."""
    made = set()
    async with visitor(server.url, of(guest)) as attacker:
        for number, (subject, asked) in enumerate(consumers()):
            name = f"c{number}"
            stream = subject.split(".")[0]
            config = {
                "name": name,
                "ack_policy": "none",
                "deliver_policy": "all",
                "replay_policy": "instant",
                **asked,
            }
            target = f"{attacker.client.api}.CONSUMER.CREATE.{subject}".replace(".c", f".{name}", 1)
            text = await answer(attacker, target, {"stream_name": stream, "config": config})
            if text and "error" not in msgspec.json.decode(text[text.index(b'{"') :]):
                made.add((stream, *asked.values()))

    assert made == {(STREAM_B, f"{chunk_subject(TEAM_B)}.*")}


@EACH
async def test_another_tenants_program_cannot_be_replaced(server: NatsServer, guest: Guest) -> None:
    async with visitor(server.url, of(guest)) as attacker:
        for subject in (
            f"{description_subject(TEAM_A)}.{meta_token(digest_of(SECRET))}",
            f"{chunk_subject(TEAM_A)}.x",
            "$O.*.M.*",
        ):
            assert not await attacker.may_say(subject, b"{}")
        own = await attacker.may_say(f"{description_subject(TEAM_B)}.x", b"{}")
    assert own == (guest.user == SUBMITTER)

    async with visitor(server.url, credentials(OPERATOR)) as person:
        assert await programs.read_program(person.bus, "team-a", digest_of(SECRET)) == SECRET


async def test_a_reply_goes_only_to_the_users_own_inbox(server: NatsServer) -> None:
    async with visitor(server.url, of(GUESTS[1])) as attacker:
        assert not await attacker.may_subscribe(f"{inbox_prefix('submitter.team-a')}.>")
        assert not await attacker.may_subscribe("$O.>")


# ---------------------------------------------------------------- a job finds its own again


async def test_a_program_stored_again_is_available_to_later_pods_of_a_running_job(
    server: NatsServer, tmp_path: Path
) -> None:
    """`nats object put` stores it under a new id and deletes the content that was there before."""
    text, program = of(GUESTS[1]), Program(name="net.py", digest=DIGEST)
    async with visitor(server.url, text) as pod:
        await executor.fetch_program(pod.bus, "team-b", program, tmp_path / "first")

    async with visitor(server.url, unlimited()) as person:
        before = await programs.read_description(person.bus, "team-b", DIGEST)
        await (await person.bus.program_store("team-b")).put(DIGEST, OWN)
        after = await programs.read_description(person.bus, "team-b", DIGEST)
        left = await person.bus.js.stream_info(
            STREAM_B, subjects_filter=f"{chunk_subject(TEAM_B)}.*"
        )
    assert before.nuid != after.nuid and f"{chunk_subject(TEAM_B)}.{before.nuid}" not in (
        left.state.subjects or {}
    )

    async with visitor(server.url, text) as pod:
        path = await executor.fetch_program(pod.bus, "team-b", program, tmp_path / "second")
    assert path.read_bytes() == OWN


async def test_a_missing_program_is_an_error_at_once(server: NatsServer, tmp_path: Path) -> None:
    missing = digest_of(os.urandom(8))
    async with visitor(server.url, credentials(JOB, "team-b.mine", missing)) as pod:
        with pytest.raises(BadProgram, match="the store has no"):
            program = Program(name="net.py", digest=missing)
            await executor.fetch_program(pod.bus, "team-b", program, tmp_path / "pod")
